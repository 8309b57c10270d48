"""The AUCs: known values, all pairs, scipy and scikit-learn, invariances, the published protocols."""

import numpy as np
import pytest
import torch
from saliency_maps import (
    centre_biased,
    judd_by_thresholds,
    pairs_auc,
    problem,
    repeated,
    salicons_shuffled,
    stepped_auc,
)
from scipy import stats
from sklearn.metrics import roc_auc_score

from congruency.saliency.metrics import auc_borji, auc_judd, auc_shuffled, roc, sampled, shuffled_negatives

LEVELS = [None, 2, 5]


def test_areas_by_hand():
    saliency = torch.tensor([[[1.0, 2.0], [3.0, 2.0]]])
    fixations = torch.tensor([[[0, 1], [0, 0]]])  # the 2 against 1, 3, 2: won, lost, tied
    assert auc_judd(saliency, fixations).item() == pytest.approx(1.5 / 3)
    assert auc_borji(saliency, fixations).item() == pytest.approx((1 + 2 * 0.5) / 4)
    negatives = torch.tensor([[[3, 0], [1, 0]]])
    assert auc_shuffled(saliency, fixations, negatives).item() == pytest.approx(3 / 4)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("fixations", [1, 9, 300])
def test_exact_areas_are_counts_of_pairs(levels, fixations):
    saliency, counts = problem(fixations=fixations, levels=levels)
    negatives = shuffled_negatives(counts)
    for i, (s, f, n) in enumerate(zip(saliency.numpy(), counts.numpy(), negatives.numpy(), strict=True)):
        positive = repeated(s, f)
        assert auc_judd(saliency, counts)[i].item() == pytest.approx(pairs_auc(positive, s[f == 0]), abs=1e-6)
        assert auc_borji(saliency, counts)[i].item() == pytest.approx(pairs_auc(positive, s.ravel()), abs=1e-6)
        expected = pairs_auc(positive, repeated(s, n))
        assert auc_shuffled(saliency, counts, negatives)[i].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("levels", LEVELS)
def test_exact_areas_equal_scikit_learn_and_scipy(levels):
    saliency, counts = problem(height=40, width=50, fixations=60, levels=levels)
    for i, (s, f) in enumerate(zip(saliency.numpy(), counts.numpy(), strict=True)):
        once = roc_auc_score(f.ravel() > 0, s.ravel())
        assert auc_judd(saliency, counts > 0)[i].item() == pytest.approx(once, abs=1e-6)
        weighted = roc_auc_score(f.ravel() > 0, s.ravel(), sample_weight=np.maximum(f.ravel(), 1))
        assert auc_judd(saliency, counts)[i].item() == pytest.approx(weighted, abs=1e-6)
        positive, negative = repeated(s, f), s.ravel()
        u = stats.mannwhitneyu(positive, negative).statistic
        assert auc_borji(saliency, counts)[i].item() == pytest.approx(u / positive.size / negative.size, abs=1e-6)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("fixations", [1, 9, 300])
def test_the_device_implementation_gives_the_same_areas(levels, fixations):
    """The implementation for accelerators, run on the CPU."""
    saliency, counts = (x.flatten(1) for x in problem(fixations=fixations, levels=levels))
    negatives = {"unfixated": (counts == 0).float(), "all": torch.ones_like(counts)}
    for kind, weights in negatives.items():
        torch.testing.assert_close(
            roc._area_of_pixels(saliency, counts, weights), roc._exact(saliency, counts, kind), equal_nan=True
        )
    torch.testing.assert_close(
        roc._area_of_pixels(saliency, counts, counts.flip(0)), roc._exact(saliency, counts, counts.flip(0))
    )


def test_the_device_implementation_handles_undefined_areas():
    saliency, counts = (x.flatten(1) for x in problem())
    saliency[0, 3], counts[1] = torch.nan, 0
    assert roc._area_of_pixels(saliency, counts, (counts == 0).float()).isnan().tolist() == [True, True, False]
    counts[2, 5] = -1
    assert roc._area_of_pixels(saliency, counts, torch.ones_like(counts)).isnan().tolist() == [True, True, True]


@pytest.mark.parametrize("grow", [torch.exp, lambda s: s**3, lambda s: 255 * s - 4, torch.logit])
def test_exact_areas_are_invariant_under_increasing_functions(grow):
    saliency, counts = problem(dtype=torch.float64)
    negatives = shuffled_negatives(counts)
    changed = grow(saliency)
    torch.testing.assert_close(auc_judd(changed, counts), auc_judd(saliency, counts))
    torch.testing.assert_close(auc_borji(changed, counts), auc_borji(saliency, counts))
    torch.testing.assert_close(auc_shuffled(changed, counts, negatives), auc_shuffled(saliency, counts, negatives))
    torch.testing.assert_close(auc_judd(-saliency, counts), 1 - auc_judd(saliency, counts))


@pytest.mark.parametrize("protocol", ["exact", "mit", "salicon"])
def test_a_constant_map_scores_one_half(protocol):
    saliency, counts = torch.full((2, 40, 50), 0.3), problem(images=2, height=40, width=50, fixations=30)[1]
    within = {"exact": 1e-6, "mit": 0.2, "salicon": 1e-6}[protocol]  # MIT's sampling noise with 30 fixations
    assert auc_judd(saliency, counts, protocol=protocol).tolist() == pytest.approx([0.5, 0.5], abs=within)
    assert auc_borji(saliency, counts, protocol=protocol).tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    area = auc_shuffled(saliency, counts, shuffled_negatives(counts), protocol=protocol)
    assert area.tolist() == pytest.approx([0.5, 0.5], abs=1e-6)


@pytest.mark.parametrize("protocol", ["exact", "mit", "salicon"])
def test_without_fixations_or_negatives_the_area_is_nan(protocol):
    saliency, counts = problem()
    counts[1] = 0
    negatives = problem(seed=5)[1]
    negatives[2] = 0
    assert auc_judd(saliency, counts, protocol=protocol).isnan().tolist() == [False, True, False]
    assert auc_borji(saliency, counts, protocol=protocol).isnan().tolist() == [False, True, False]
    assert auc_shuffled(saliency, counts, negatives, protocol=protocol).isnan().tolist() == [False, True, True]
    assert auc_judd(saliency, torch.ones_like(counts), protocol=protocol).isnan().all()


@pytest.mark.parametrize("protocol", ["exact", "mit", "salicon"])
def test_a_nan_in_the_saliency_is_not_the_highest_rank(protocol):
    saliency, counts = problem(images=2)
    saliency[0, 2, 2] = torch.nan
    assert auc_judd(saliency, counts, protocol=protocol).isnan().tolist() == [True, False]
    assert auc_borji(saliency, counts, protocol=protocol).isnan().tolist() == [True, False]
    area = auc_shuffled(saliency, counts, shuffled_negatives(counts), protocol=protocol)
    assert area.isnan().tolist() == [True, False]


def test_infinite_values_have_ranks_too():
    saliency = torch.tensor([[[torch.inf, torch.inf], [-torch.inf, 0.0]]])
    fixations = torch.tensor([[[1, 0], [0, 0]]])
    assert auc_judd(saliency, fixations).item() == pytest.approx(2.5 / 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16, torch.float64])
def test_areas_do_not_depend_on_the_dtype(dtype):
    saliency, counts = problem()
    saliency = (saliency * 255).round()
    for protocol in ("exact", "mit", "salicon"):
        same = auc_judd(saliency.to(dtype), counts.to(torch.int64), protocol=protocol)
        torch.testing.assert_close(same.float(), auc_judd(saliency, counts, protocol=protocol))
        assert same.dtype == (torch.float64 if dtype in (torch.int32, torch.float64) else torch.float32)


def test_mit_judd_is_the_area_at_the_fixated_values():
    saliency, counts = problem(height=40, width=50, fixations=25, dtype=torch.float64)
    ours = auc_judd(saliency, counts, protocol="mit")
    for i, (s, f) in enumerate(zip(saliency.numpy(), counts.numpy(), strict=True)):
        assert ours[i].item() == pytest.approx(judd_by_thresholds(s, f > 0), abs=1e-4)


def scaled(saliency):
    return (saliency - saliency.min()) / (saliency.max() - saliency.min())


def test_mit_borji_is_the_mean_of_its_splits():
    saliency, counts = problem(height=40, width=50, fixations=60, dtype=torch.float64)
    ours = auc_borji(saliency, counts, protocol="mit")
    random = np.random.default_rng(0)
    for i, (s, f) in enumerate(zip(saliency.numpy(), counts.numpy(), strict=True)):
        s = scaled(s)
        positive = s[f > 0]
        splits = [random.choice(s.ravel(), positive.size) for _ in range(400)]
        expected = [stepped_auc(positive, negative, np.arange(11) / 10) for negative in splits]
        assert ours[i].item() == pytest.approx(np.mean(expected), abs=5 * np.std(expected) / np.sqrt(100))


def test_salicon_area_has_100000_negatives_and_steps_of_a_hundredth():
    saliency, counts = problem(height=40, width=50, fixations=60, dtype=torch.float64)
    for score, free in ((auc_borji, False), (auc_judd, True)):
        ours = score(saliency, counts, protocol="salicon")
        for i, (s, f) in enumerate(zip(saliency.numpy(), counts.numpy(), strict=True)):
            s = scaled(s)
            pool = s[f == 0] if free else s.ravel()
            expected = stepped_auc(repeated(s, f), pool, np.arange(100) / 100)  # of all pixels: no sampling noise
            assert ours[i].item() == pytest.approx(expected, abs=0.005)


def test_mit_shuffled_splits_draw_from_the_negatives():
    saliency, counts = problem(height=40, width=50, fixations=40, dtype=torch.float64)
    negatives = shuffled_negatives(problem(images=3, height=40, width=50, fixations=200, seed=4)[1].double())
    ours = auc_shuffled(saliency, counts, negatives, protocol="mit")
    random = np.random.default_rng(0)
    for i, (s, f, n) in enumerate(zip(saliency.numpy(), counts.numpy(), negatives.numpy(), strict=True)):
        s = scaled(s)
        positive, pool = s[f > 0], s[n > 0]
        splits = [random.choice(pool, positive.size, replace=False) for _ in range(400)]
        expected = [stepped_auc(positive, negative, np.arange(11) / 10) for negative in splits]
        assert ours[i].item() == pytest.approx(np.mean(expected), abs=5 * np.std(expected) / np.sqrt(100))


def test_mit_splits_with_all_candidates_are_deterministic():
    saliency, counts = problem(images=1, fixations=100, dtype=torch.float64)
    negatives = torch.zeros_like(counts)
    negatives[0, 2, 3:9] = 3
    first, second = (auc_shuffled(saliency, counts, negatives, protocol="mit", seed=seed) for seed in (0, 1))
    torch.testing.assert_close(first, second)
    s = scaled(saliency[0].numpy())
    expected = stepped_auc(s[counts[0].numpy() > 0], s[2, 3:9], np.arange(11) / 10)
    assert first.item() == pytest.approx(expected)


@pytest.mark.parametrize("levels", [None, 2, 4, 100, 255])
@pytest.mark.parametrize("fixations", [1, 9, 300])
def test_salicon_shuffled_area_weights_all_negatives_off_the_fixations(levels, fixations):
    saliency, counts = problem(fixations=fixations, levels=levels, dtype=torch.float64)
    saliency[:, 0, 0], saliency[:, 0, 1] = 1.0, 0.0  # the map's range, mostly not fixated
    negatives = problem(fixations=400, seed=4, dtype=torch.float64)[1]
    ours = auc_shuffled(saliency, counts, negatives, protocol="salicon")
    expected = [
        salicons_shuffled(*image) for image in zip(*(x.numpy() for x in (saliency, counts, negatives)), strict=True)
    ]
    np.testing.assert_allclose(ours, expected, atol=1e-12)
    assert ours.equal(auc_shuffled(saliency, counts, negatives, protocol="salicon", seed=1))


def test_salicon_shuffled_area_by_hand():
    saliency = torch.tensor([[[0.0, 0.5, 1.0, 0.25]]])
    fixations = torch.tensor([[[0, 2, 0, 0]]])
    negatives = torch.tensor([[[1, 7, 1, 2]]])  # the seven are on a fixated pixel
    # Lines through (0, 0), (1/4, 0) at thresholds above 1/2, (1/4, 1) at 1/2, and (1, 1).
    assert auc_shuffled(saliency, fixations, negatives, protocol="salicon").item() == pytest.approx(3 / 4)


def test_salicon_thresholds_stay_below_the_highest_value():
    """Values 0.5 and 0.495 with 0.5 the highest: the curve's first point is at 0.49, which both reach."""
    saliency = torch.tensor([[[0.0, 0.5, 1.0, 0.495]]], dtype=torch.float64)
    fixations, negatives = torch.tensor([[[0, 1, 0, 0]]]), torch.tensor([[[0, 0, 0, 1]]])
    assert auc_shuffled(saliency, fixations, negatives, protocol="salicon").item() == pytest.approx(0.5)
    assert auc_shuffled(saliency, fixations, negatives).item() == pytest.approx(1)


def test_salicon_shuffled_area_needs_negatives_off_the_fixations():
    saliency, counts = problem()
    assert auc_shuffled(saliency, counts, counts, protocol="salicon").isnan().all()


@pytest.mark.parametrize("protocol", ["exact", "salicon"])
def test_the_centre_bias_of_many_images_is_chance(protocol):
    """The fixations of 400 images cover most pixels: only their counts show the centre bias."""
    saliency, counts = centre_biased(400)
    area = auc_shuffled(saliency, counts, shuffled_negatives(counts > 0), protocol=protocol).mean().item()
    assert auc_borji(saliency, counts).mean().item() > 0.8
    assert area == pytest.approx(0.5, abs=0.02)


def test_mit_area_ignores_counts():
    """Why MIT uses ten images: with the distinct pixels of many, the centre bias scores well."""
    saliency, counts = centre_biased(400)
    many = auc_shuffled(saliency[:20], counts[:20], shuffled_negatives(counts)[:20], protocol="mit").mean().item()
    ten = shuffled_negatives(counts[:11])
    few = auc_shuffled(saliency[:11], counts[:11], ten, protocol="mit").mean().item()
    assert few < many - 0.1


@pytest.mark.parametrize(
    ("score", "protocol"),
    [(auc_judd, "mit"), (auc_judd, "salicon"), (auc_borji, "mit"), (auc_borji, "salicon"), (auc_shuffled, "mit")],
)
def test_draws_depend_on_the_seed(score, protocol):
    saliency, counts = problem(levels=7)
    maps = (saliency, counts, shuffled_negatives(counts))[: 3 if score is auc_shuffled else 2]
    first, again, other = (score(*maps, protocol=protocol, seed=seed) for seed in (3, 3, 4))
    assert first.equal(again)
    assert not first.equal(other)


@pytest.mark.parametrize("protocol", ["mit", "salicon"])
@pytest.mark.parametrize("score", [auc_judd, auc_borji, auc_shuffled])
def test_neighbours_in_a_batch_do_not_change_the_draws(score, protocol):
    saliency, counts = problem(images=4, levels=7)
    maps = (saliency, counts, shuffled_negatives(counts))[: 3 if score is auc_shuffled else 2]
    together = score(*maps, protocol=protocol, seed=3)
    alone = torch.cat([score(*(x[i : i + 1] for x in maps), protocol=protocol, seed=3) for i in range(4)])
    assert together.equal(alone)
    assert together.equal(score(*(x.flip(0) for x in maps), protocol=protocol, seed=3).flip(0))


def test_draws_are_uniform_and_independent():
    """A uniform distribution on [0, 1), no correlation along a stream or between the streams of two images."""
    keys = sampled.image_keys(problem(images=2)[1].flatten(1))
    first, second = sampled.uniform_draws(keys, 0, 100_000)
    assert first.min() >= 0
    assert first.max() < 1
    assert stats.kstest(first.numpy(), "uniform").pvalue > 1e-3
    pairs = [(first, second), (first[1:], first[:-1]), (first, sampled.uniform_draws(keys, 1, 100_000)[0])]
    for x, y in pairs:
        assert abs(stats.pearsonr(x, y).statistic) < 5 / np.sqrt(100_000)
    assert sampled.uniform_draws(keys, 0, 10, start=50).equal(sampled.uniform_draws(keys, 0, 60)[:, 50:])


def test_draws_equal_splitmix64():
    """The published generator, one 64-bit word at a time."""

    def mixed(word):
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    assert mixed(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # its first output from state 0
    state, expected = mixed(12345 ^ mixed(7)), []
    for _ in range(20):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        expected.append((mixed(state) >> 11) / 2**53)
    assert sampled.uniform_draws(torch.tensor([12345]), 7, 20)[0].tolist() == expected


@pytest.mark.parametrize("protocol", ["exact", "mit", "salicon"])
def test_negative_counts_give_nan(protocol):
    saliency, counts = problem()
    negatives = shuffled_negatives(counts)
    wrong, bad = counts.clone(), negatives.clone()
    wrong[1, 0, 0], bad[2, 0, 0] = -1, -1
    assert auc_judd(saliency, wrong, protocol=protocol).isnan().tolist() == [False, True, False]
    assert auc_borji(saliency, wrong, protocol=protocol).isnan().tolist() == [False, True, False]
    assert auc_shuffled(saliency, wrong, bad, protocol=protocol).isnan().tolist() == [False, True, True]


def test_negatives_are_the_other_images_fixations():
    counts = problem()[1]
    torch.testing.assert_close(shuffled_negatives(counts)[0], counts[1] + counts[2])


def test_negatives_of_marked_pixels_count_images():
    marked = problem(fixations=60)[1] > 0
    assert shuffled_negatives(marked)[0].equal(marked[1].long() + marked[2].long())
    assert shuffled_negatives(marked).max() == 2


def test_one_map_of_negatives_for_all_images():
    saliency, counts = problem()
    shared = problem(images=1, seed=8)[1][0]
    torch.testing.assert_close(
        auc_shuffled(saliency, counts, shared), auc_shuffled(saliency, counts, shared.expand(3, -1, -1))
    )


def test_an_unknown_protocol_is_refused():
    with pytest.raises(ValueError, match="protocol must be 'exact', 'mit' or 'salicon', got 'judd'"):
        auc_borji(*problem(), protocol="judd")
