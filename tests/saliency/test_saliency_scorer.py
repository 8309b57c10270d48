"""Scores of whole data sets: baselines and the human ceiling, images of different sizes, images without fixations."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from saliency_data import picture, small_osie

from congruency.saliency import data, metrics
from congruency.saliency.baselines import (
    CENTRE,
    below_centre,
    centre_gaussian,
    fixation_prior,
    reference_scores,
)  # fmt: skip
from congruency.saliency.ceiling import human_ceiling
from congruency.saliency.scorer import METRICS, ground_truths, mean_scores, score, with_uniform


@pytest.fixture
def uneven(tmp_path):
    """Three images of two sizes; the last has no fixations."""
    for name, size in (("a", (30, 40)), ("b", (20, 24)), ("c", (30, 40))):
        picture(tmp_path / f"{name}.png", *size)
    (tmp_path / "fixations.csv").write_text("image,x,y\na,3,4\na,20,10\nb,12,10\nb,12,10\nb,1,19\n")
    return data.folder(tmp_path)


def test_scores_are_those_of_each_image_alone(uneven):
    maps = {0: torch.rand(30, 40), 1: torch.rand(20, 24), 2: torch.rand(30, 40)}
    values = score(lambda indices: torch.stack([maps[i] for i in indices]), uneven, METRICS, sigma=2.0)
    for i in (0, 1):
        v = uneven[i]
        counts = data.fixation_counts([v.points], (v.height, v.width))
        assert values["NSS"][i].item() == pytest.approx(metrics.nss(maps[i][None], counts).item(), abs=1e-5)
        blurred = data.density(counts, 2.0)
        assert values["CC"][i].item() == pytest.approx(metrics.cc(maps[i][None], blurred).item(), abs=1e-5)
        other = uneven[1 - i]
        negatives = data.fixation_counts([other.points], (v.height, v.width), frames=[(other.height, other.width)])
        expected = metrics.auc_shuffled(maps[i][None], counts, negatives).item()
        assert values["sAUC"][i].item() == pytest.approx(expected)
        floor = 0.5 / (v.height * v.width)  # one other image and a uniform one
        prior = data.density(negatives, 2.0)
        gain = metrics.information_gain(maps[i][None], counts, 0.5 * prior / prior.sum() + floor).item()
        assert values["IG"][i].item() == pytest.approx(gain, rel=1e-3)
    assert all(scores[2].isnan() for scores in values.values())
    means = mean_scores(values, uneven)
    assert means["NSS"] == pytest.approx(values["NSS"][:2].mean().item())


@pytest.mark.parametrize("protocol", ["exact", "mit"])
@pytest.mark.parametrize("images", [1, 2, 3, 30])
def test_the_gain_of_the_truth_itself_is_never_absurd(images, protocol):
    """Over few other images too: their baseline has a floor, and with none it is uniform."""
    viewed = looking(population(7, images=images), 5, seed=8)
    counts = torch.cat([data.fixation_counts([v.points], (45, 60)) for v in viewed.viewings])
    truth = data.density(counts, 3.0)
    gain = mean_scores(score(lambda i: truth[list(i)], viewed, ["IG"], protocol=protocol), viewed)["IG"]
    uniform = torch.ones(45, 60)
    over_uniform = score(lambda i: truth[list(i)], viewed, ["IG"], protocol=protocol, baseline=uniform)["IG"]
    assert 0 < gain < over_uniform.mean() + 5  # bits; a baseline without a floor gives more than 20
    if images == 1:
        assert gain == pytest.approx(over_uniform.item(), rel=1e-5)


def test_a_given_baseline_is_resized_and_must_be_positive(uneven):
    maps = torch.rand(30, 40) + 0.1
    gains = score(lambda i: maps.expand(len(i), -1, -1), uneven, ["IG"], baseline=maps)["IG"]
    assert gains[:2].tolist() == pytest.approx([0, 0], abs=1e-5)
    for wrong in (torch.zeros(3, 4), maps - 1, maps[None], maps.fill_(torch.nan)):
        with pytest.raises(ValueError, match="must be one map, positive at every pixel"):
            score(lambda i: torch.rand(len(i), 3, 4), uneven, ["IG"], baseline=wrong)


def test_a_nan_prediction_makes_the_mean_nan(uneven):
    def predict(indices):
        maps = torch.rand(len(indices), 30, 40)
        maps[torch.tensor(indices) == 1] = torch.nan
        return maps

    assert mean_scores(score(predict, uneven), uneven)["NSS"] != mean_scores(score(predict, uneven), uneven)["NSS"]


def test_maps_of_another_size_are_resized(uneven):
    values = score(lambda indices: torch.rand(len(indices), 7, 9), uneven, ["NSS"])
    assert values["NSS"].isnan().tolist() == [False, False, True]
    with pytest.raises(ValueError, match="there is no metric 'AUPR'"):
        score(lambda indices: torch.rand(len(indices), 7, 9), uneven, ["AUPR"])


def test_ground_truths_are_batched_by_size(uneven):
    parts = list(ground_truths(uneven, batch=1))
    assert [part.indices for part in parts] == [(0,), (2,), (1,)]
    assert parts[0].negatives.sum() == 3


@pytest.fixture
def columns(tmp_path):
    """Images with three fixations each, two of them on one pixel, all in a column of its own; one has none."""
    lines = ["image,x,y"]
    for i in range(15):
        picture(tmp_path / f"{i:02}.png", 20, 30)
        lines += [f"{i:02},{2 * i},3", f"{i:02},{2 * i},3", f"{i:02},{2 * i},{i}"] if i != 5 else []
    (tmp_path / "fixations.csv").write_text("\n".join(lines))
    return data.folder(tmp_path)


def in_order(viewed, **options):
    """The negatives of all images, in the data set's order."""
    parts = sorted(
        (i, n) for part in ground_truths(viewed, **options) for i, n in zip(part.indices, part.negatives, strict=True)
    )
    return torch.stack([negatives for _, negatives in parts])


def test_mit_negatives_are_those_of_ten_other_images(columns):
    negatives = in_order(columns, protocol="mit", seed=3)
    for i, counts in enumerate(negatives):
        looked_at = counts.sum(0).nonzero().flatten() // 2
        assert len(looked_at) == 10
        assert counts.sum() == 30
        assert i not in looked_at
        assert 5 not in looked_at
    assert len({tuple(counts.sum(0).tolist()) for counts in negatives}) > 10  # each image draws its own ten
    assert negatives.equal(in_order(columns, protocol="mit", seed=3, batch=4))
    assert not negatives.equal(in_order(columns, protocol="mit", seed=4))


def test_mit_negatives_are_all_others_if_they_are_few(uneven):
    for few, all_others in zip(ground_truths(uneven, protocol="mit"), ground_truths(uneven), strict=True):
        assert few.negatives.equal(all_others.negatives)


def test_salicon_negatives_count_images(columns):
    negatives = in_order(columns, protocol="salicon", batch=4)
    counts = torch.cat([data.fixation_counts([v.points], (20, 30)) for v in columns.viewings])
    assert negatives.equal(metrics.shuffled_negatives(counts > 0).float())


@pytest.mark.parametrize("protocol", ["exact", "mit", "salicon"])
def test_scores_follow_the_protocol_whatever_the_batches(columns, protocol):
    maps = torch.rand(15, 20, 30, generator=torch.Generator().manual_seed(0))
    names = ["sAUC", "AUC", "AUC-Judd", "IG"]
    options = {"sigma": 2.0, "protocol": protocol, "seed": 2}
    values, apart = (score(lambda i: maps[list(i)], columns, names, batch=batch, **options) for batch in (25, 4))
    counts = torch.cat([data.fixation_counts([v.points], (20, 30)) for v in columns.viewings])
    draws = {"protocol": protocol, "seed": 2}
    expected = {
        "sAUC": metrics.auc_shuffled(maps, counts, in_order(columns, **draws), **draws),
        "AUC": metrics.auc_borji(maps, counts, **draws),
        "AUC-Judd": metrics.auc_judd(maps, counts, **draws),
        "IG": metrics.information_gain(  # whatever the protocol, the baseline keeps its floor
            maps - maps.amin((1, 2), keepdim=True) if protocol == "mit" else maps,
            counts.sign() if protocol == "mit" else counts,
            with_uniform(data.density(metrics.shuffled_negatives(counts), 2.0), 13),
        ),
    }
    for name in names:
        torch.testing.assert_close(values[name], expected[name].double(), equal_nan=True)
        torch.testing.assert_close(values[name], apart[name], equal_nan=True)
        assert values[name].isnan().nonzero().flatten().tolist() == [5]


def test_the_centre_gaussian_follows_the_fixations(tmp_path):
    osie = data.osie(small_osie(tmp_path, images=40))
    gaussian = centre_gaussian(osie, (30, 40))
    x = torch.cat([v.points for v in osie.viewings])[:, 0].mean()
    assert gaussian.amax(0).argmax().item() == pytest.approx(x.item(), abs=1)
    assert gaussian.max() <= 1


def slow_likelihood(viewed, folds, size, sigma, share):
    """Bits per fixation above uniform, image by image, each under the estimate from the images of other folds."""
    counts = [data.fixation_counts([v.points], size, frames=[(v.height, v.width)])[0].double() for v in viewed.viewings]
    total = 0.0
    for i, own in enumerate(counts):
        others = sum(c / c.sum() for j, c in enumerate(counts) if j % folds != i % folds)
        blurred = data.density(others.unsqueeze(0), sigma)[0]
        mixed = (1 - share) * blurred / blurred.sum() + share / blurred.numel()
        total += float((own * (mixed * blurred.numel()).log2()).sum() / own.sum())
    return total / len(counts)


def test_the_mean_map_is_fitted_by_cross_validation(tmp_path):
    osie, size = data.osie(small_osie(tmp_path, images=9)), (15, 20)
    prior = fixation_prior(osie, size, folds=3)
    chosen = slow_likelihood(osie, 3, size, prior.bandwidth * 20, prior.uniform)
    assert prior.bits == pytest.approx(chosen, rel=1e-5)
    for bandwidth in (0.01, 0.05, 0.1, 0.2):
        for share in (1e-6, 0.01, 0.1):
            assert slow_likelihood(osie, 3, size, bandwidth * 20, share) < chosen + 0.01 * abs(chosen)
    assert prior.whole.sum().item() == pytest.approx(1)
    assert prior.folds.shape == (3, 15, 20)
    with pytest.raises(ValueError, match="at least two images with fixations"):
        fixation_prior(osie.subset([0]))


def test_the_bandwidth_follows_the_spread_of_the_fixations(tmp_path):
    """Where everyone looks at one point it is the narrowest; where nobody repeats anything, wide."""
    lines = ["image,x,y"]
    for i in range(12):
        picture(tmp_path / f"{i}.png", 60, 80)
        lines += [f"{i},40,30"] * 3
    (tmp_path / "fixations.csv").write_text("\n".join(lines))
    narrow = fixation_prior(data.folder(tmp_path), (60, 80))
    assert (narrow.bandwidth, narrow.uniform) == (0.01, 1e-6)
    wide = fixation_prior(data.osie(small_osie(tmp_path / "osie", images=12)), (60, 80))
    assert wide.bandwidth > 0.05


@pytest.mark.parametrize("separate", [True, False])
def test_reference_scores(separate):
    """Floors from a training set, or by cross-validation from the other images; people last."""
    viewed = looking(population(1), 6, seed=2)
    found = reference_scores(viewed, viewed if separate else None, ["NSS", "AUC", "CC", "KL"], size=(45, 60))
    mean = "mean training map" if separate else "mean map of the other images"
    assert list(found) == ["uniform", CENTRE, mean, "human ceiling"]
    assert found["uniform"]["NSS"] == found["uniform"]["CC"] == 0
    assert found["uniform"]["AUC"] == 0.5
    assert found["human ceiling"]["NSS"] > max(found[name]["NSS"] for name in ("uniform", CENTRE, mean))
    if separate:  # a map of the images' own fixations is better than one of the others'
        cross = reference_scores(viewed, None, ["NSS"], size=(45, 60), people=False)
        assert found[mean]["NSS"] > cross["mean map of the other images"]["NSS"]
    else:
        alone = reference_scores(viewed.subset([0]), None, ["NSS"], size=(33, 47), people=False)
        assert alone == {"uniform": {"NSS": 0.0}}


def test_people_are_scored_as_the_model_is():
    """With the blur that is asked for; not by a protocol for which there is no ceiling."""
    viewed = looking(population(1, images=4), 6, seed=2)
    usual, wide = (reference_scores(viewed, viewed, ["CC"], size=(45, 60), sigma=sigma) for sigma in (None, 9.0))
    other = reference_scores(replace(viewed, pixels_per_degree=9.0), viewed, ["CC"], size=(45, 60))
    assert wide["human ceiling"] == other["human ceiling"] != usual["human ceiling"]
    assert "human ceiling" not in reference_scores(viewed, viewed, ["NSS"], size=(45, 60), protocol="mit")


def test_one_image_to_train_on_has_no_floor_but_the_uniform_map():
    viewed = looking(population(0, images=3), 1, seed=1)
    assert list(reference_scores(viewed, viewed.subset([0]), ["NSS"], size=(45, 60))) == ["uniform"]


def test_a_model_below_the_centre_bias_is_named():
    floor = {CENTRE: {"NSS": 1.0, "KL": 1.3, "CC": 0.3}}
    assert below_centre({"NSS": 1.1, "KL": 1.2, "CC": 0.31}, floor) == ""
    text = below_centre({"NSS": 0.9, "KL": 1.4, "CC": 0.31, "IG": 0.0}, floor)
    assert text.startswith(f"worse than the centre bias in NSS (0.9000, {CENTRE} 1.0000), KL (1.4000, {CENTRE} 1.3000)")


def population(seed, images=12, height=45, width=60):
    """(images, H, W): where infinitely many viewers would look, a few places with their weights."""
    random = torch.Generator().manual_seed(seed)
    places = torch.rand(images, 5, 2, generator=random) * torch.tensor([height, width])
    weights = torch.rand(images, 5, generator=random) ** 2
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None, :]
    near = [
        [torch.exp(-0.5 * ((rows - y) ** 2 + (columns - x) ** 2) / 3.0**2) for y, x in image.tolist()]
        for image in places
    ]
    maps = torch.stack([torch.stack(some) for some in near])
    total = (weights[:, :, None, None] * maps).sum(1) + 1e-3
    return total / total.sum((-2, -1), keepdim=True)


def looking(maps, viewers, seed, fixations=6):
    """A data set of these viewers: each looks at ``fixations`` pixels drawn from the population."""
    random = torch.Generator().manual_seed(seed)
    height, width = maps.shape[-2:]
    viewings = []
    for i, one in enumerate(maps):
        drawn = torch.multinomial(one.flatten(), viewers * fixations, replacement=True, generator=random)
        points = torch.stack([drawn % width, drawn // width], 1).double().view(viewers, fixations, 2)
        viewings.append(data.Viewing(Path(f"{i}.png"), height, width, tuple(points)))
    return data.SaliencyData("synthetic", tuple(viewings), pixels_per_degree=3.0)


@pytest.mark.parametrize("viewers", [9, 16])
def test_the_human_ceiling_is_the_score_of_the_population(viewers):
    """Against the truth that models get: the density of the population, blurred as the truth is.

    The estimate must be much nearer to it than the score of as many other people, which is no ceiling.
    """
    expected, found, people = (dict.fromkeys(METRICS, 0.0) for _ in range(3))
    for seed in (0, 10, 20):
        maps = population(seed)
        viewed, other = (looking(maps, viewers, seed=seed + i) for i in (1, 2))
        counts = torch.cat([data.fixation_counts([v.points], (v.height, v.width)) for v in other.viewings])
        for means, predicted in ((expected, data.density(maps, 3.0)), (people, data.density(counts, 3.0))):
            scores = mean_scores(score(lambda indices, p=predicted: p[list(indices)], viewed, METRICS), viewed)
            for name, value in scores.items():
                means[name] += value / 3
        for name, value in human_ceiling(viewed, METRICS).items():
            found[name] += value / 3
    for name in METRICS:
        gap = abs(people[name] - expected[name])
        assert abs(found[name] - expected[name]) < max(0.6 * gap, 0.006), name  # the AUCs of 36 images scatter by that


def test_cc_is_corrected_for_attenuation():
    """Spearman and Brown: sqrt(2 r / (1 + r)) for a split-half correlation r."""
    viewed = looking(population(3, images=30), 16, seed=4)
    halves = [
        torch.cat([data.fixation_counts([torch.cat(v.fixations[k::2])], (45, 60)) for v in viewed.viewings])
        for k in (0, 1)
    ]
    r = metrics.cc(*(data.density(half, 3.0) for half in halves)).mean().item()
    assert human_ceiling(viewed, ["CC"])["CC"] == pytest.approx((2 * r / (1 + r)) ** 0.5, abs=0.02)


def test_leave_one_out_is_pooled_and_extrapolated():
    """Four viewers: each by the three others, S(3), and by a random one, S(1); then S(3) + (S(3) - S(1)) / 2."""
    viewed = looking(population(5, images=1), 4, seed=6)
    counts = data.fixation_counts(viewed[0].fixations, (45, 60))

    def by(one, others):
        return metrics.nss(data.density(counts[others].sum(0)[None], 3.0), counts[one][None]).item()

    others = {one: [i for i in range(4) if i != one] for one in range(4)}
    three = sum(by(one, some) for one, some in others.items()) / 4
    least, most = (sum(pick(by(one, [i]) for i in some) for one, some in others.items()) / 4 for pick in (min, max))
    for seed in range(3):
        assert three + (three - most) / 2 <= human_ceiling(viewed, ["NSS"], seed=seed)["NSS"] + 1e-6
        assert human_ceiling(viewed, ["NSS"], seed=seed)["NSS"] <= three + (three - least) / 2 + 1e-6
    assert human_ceiling(viewed, ["NSS"]) == human_ceiling(viewed, ["NSS"])


def test_the_ceiling_needs_four_viewers():
    with pytest.raises(ValueError, match="synthetic does not have 4 separate viewers for every image, but 3"):
        human_ceiling(looking(population(0, images=2), 3, seed=0))


def test_the_ceiling_of_a_metric_that_no_image_has_is_unknown():
    """One image has no others, whose fixations the shuffled AUC needs."""
    ceiling = human_ceiling(looking(population(0, images=1), 5, seed=0), ["NSS", "sAUC"])
    assert ceiling["NSS"] > 0
    assert math.isnan(ceiling["sAUC"])


def test_viewers_who_look_at_the_same_place_have_a_perfect_ceiling():
    (one,) = looking(population(0, images=1), 4, seed=2, fixations=1).viewings
    same = data.SaliencyData("synthetic", (replace(one, fixations=one.fixations[:1] * 4),), pixels_per_degree=3.0)
    assert human_ceiling(same, ["CC"])["CC"] == pytest.approx(1)
