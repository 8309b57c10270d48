"""The AUCs: known answers, all pairs, scipy's and scikit-learn's answers, invariances, the published protocols."""

import numpy as np
import pytest
import torch
from saliency_maps import judd_by_thresholds, pairs_auc, problem, repeated, stepped_auc
from scipy import stats
from sklearn.metrics import roc_auc_score

from congruency.saliency.metrics import auc_borji, auc_judd, auc_shuffled, roc, shuffled_negatives

LEVELS = [None, 2, 5]


def test_areas_worked_out_by_hand():
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
def test_exact_areas_are_scikit_learns_and_scipys(levels):
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
def test_the_sort_of_all_pixels_gives_the_same_areas(levels, fixations):
    """The way taken on an accelerator, run here on the CPU."""
    saliency, counts = (x.flatten(1) for x in problem(fixations=fixations, levels=levels))
    negatives = {"unfixated": (counts == 0).float(), "all": torch.ones_like(counts)}
    for kind, weights in negatives.items():
        torch.testing.assert_close(
            roc._area_of_pixels(saliency, counts, weights), roc._exact(saliency, counts, kind), equal_nan=True
        )
    torch.testing.assert_close(
        roc._area_of_pixels(saliency, counts, counts.flip(0)), roc._exact(saliency, counts, counts.flip(0))
    )


def test_the_sort_of_all_pixels_knows_the_undefined():
    saliency, counts = (x.flatten(1) for x in problem())
    saliency[0, 3], counts[1] = torch.nan, 0
    assert roc._area_of_pixels(saliency, counts, (counts == 0).float()).isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("grow", [torch.exp, lambda s: s**3, lambda s: 255 * s - 4, torch.logit])
def test_increasing_functions_leave_exact_areas_alone(grow):
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
    within = {"exact": 1e-6, "mit": 0.2, "salicon": 1e-6}[protocol]  # MIT's noise on 30 fixations is what it is
    assert auc_judd(saliency, counts, protocol=protocol).tolist() == pytest.approx([0.5, 0.5], abs=within)
    assert auc_borji(saliency, counts, protocol=protocol).tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    area = auc_shuffled(saliency, counts, shuffled_negatives(counts), protocol=protocol)
    assert area.tolist() == pytest.approx([0.5, 0.5], abs=1e-6)


@pytest.mark.parametrize("protocol", ["exact", "mit", "salicon"])
def test_without_fixations_or_negatives_there_is_no_area(protocol):
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
def test_dtypes_leave_areas_alone(dtype):
    saliency, counts = problem()
    saliency = (saliency * 255).round()
    for protocol in ("exact", "mit", "salicon"):
        same = auc_judd(saliency.to(dtype), counts.to(torch.int64), protocol=protocol)
        torch.testing.assert_close(same.float(), auc_judd(saliency, counts, protocol=protocol))
        assert same.dtype == (torch.float64 if dtype in (torch.int32, torch.float64) else torch.float32)


def test_mits_judd_is_the_area_at_the_fixated_values():
    saliency, counts = problem(height=40, width=50, fixations=25, dtype=torch.float64)
    ours = auc_judd(saliency, counts, protocol="mit")
    for i, (s, f) in enumerate(zip(saliency.numpy(), counts.numpy(), strict=True)):
        assert ours[i].item() == pytest.approx(judd_by_thresholds(s, f > 0), abs=1e-4)


def scaled(saliency):
    return (saliency - saliency.min()) / (saliency.max() - saliency.min())


def test_mits_borji_is_the_mean_of_its_splits():
    saliency, counts = problem(height=40, width=50, fixations=60, dtype=torch.float64)
    ours = auc_borji(saliency, counts, protocol="mit")
    random = np.random.default_rng(0)
    for i, (s, f) in enumerate(zip(saliency.numpy(), counts.numpy(), strict=True)):
        s = scaled(s)
        positive = s[f > 0]
        splits = [random.choice(s.ravel(), positive.size) for _ in range(400)]
        expected = [stepped_auc(positive, negative, np.arange(11) / 10) for negative in splits]
        assert ours[i].item() == pytest.approx(np.mean(expected), abs=5 * np.std(expected) / np.sqrt(100))


def test_salicons_area_has_100000_negatives_and_steps_of_a_hundredth():
    saliency, counts = problem(height=40, width=50, fixations=60, dtype=torch.float64)
    for score, free in ((auc_borji, False), (auc_judd, True)):
        ours = score(saliency, counts, protocol="salicon")
        for i, (s, f) in enumerate(zip(saliency.numpy(), counts.numpy(), strict=True)):
            s = scaled(s)
            pool = s[f == 0] if free else s.ravel()
            expected = stepped_auc(repeated(s, f), pool, np.arange(100) / 100)  # of all pixels: no sampling noise
            assert ours[i].item() == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("protocol", "thresholds"), [("mit", np.arange(11) / 10), ("salicon", np.arange(100) / 100)])
def test_shuffled_splits_draw_from_the_negatives(protocol, thresholds):
    saliency, counts = problem(height=40, width=50, fixations=40, dtype=torch.float64)
    negatives = shuffled_negatives(problem(images=3, height=40, width=50, fixations=200, seed=4)[1].double())
    ours = auc_shuffled(saliency, counts, negatives, protocol=protocol)
    random = np.random.default_rng(0)
    for i, (s, f, n) in enumerate(zip(saliency.numpy(), counts.numpy(), negatives.numpy(), strict=True)):
        s = scaled(s)
        positive = s[f > 0] if protocol == "mit" else repeated(s, f)
        pool = s[n > 0]
        splits = [random.choice(pool, positive.size, replace=False) for _ in range(400)]
        expected = [stepped_auc(positive, negative, thresholds) for negative in splits]
        assert ours[i].item() == pytest.approx(np.mean(expected), abs=5 * np.std(expected) / np.sqrt(100))


def test_splits_with_all_candidates_have_no_chance_in_them():
    saliency, counts = problem(images=1, fixations=100, dtype=torch.float64)
    negatives = torch.zeros_like(counts)
    negatives[0, 2, 3:9] = 1
    first, second = (auc_shuffled(saliency, counts, negatives, protocol="salicon", seed=seed) for seed in (0, 1))
    torch.testing.assert_close(first, second)
    s = scaled(saliency[0].numpy())
    expected = stepped_auc(repeated(s, counts[0].numpy()), s[2, 3:9], np.arange(100) / 100)
    assert first.item() == pytest.approx(expected)


@pytest.mark.parametrize("protocol", ["mit", "salicon"])
def test_draws_are_those_of_the_seed(protocol):
    saliency, counts = problem(levels=7)
    negatives = shuffled_negatives(counts)
    calls = [
        lambda seed: auc_judd(saliency, counts, protocol=protocol, seed=seed),
        lambda seed: auc_borji(saliency, counts, protocol=protocol, seed=seed),
        lambda seed: auc_shuffled(saliency, counts, negatives, protocol=protocol, seed=seed),
    ]
    for call in calls:
        assert call(3).equal(call(3))
        assert not call(3).equal(call(4))


def test_negatives_are_the_other_images_fixations():
    counts = problem()[1]
    torch.testing.assert_close(shuffled_negatives(counts)[0], counts[1] + counts[2])


def test_one_map_of_negatives_stands_for_all_images():
    saliency, counts = problem()
    shared = problem(images=1, seed=8)[1][0]
    torch.testing.assert_close(
        auc_shuffled(saliency, counts, shared), auc_shuffled(saliency, counts, shared.expand(3, -1, -1))
    )


def test_a_protocol_nobody_knows_is_named():
    with pytest.raises(ValueError, match="protocol must be 'exact', 'mit' or 'salicon', got 'judd'"):
        auc_borji(*problem(), protocol="judd")
