"""NSS, CC, KL, SIM and information gain: known values, other libraries, invariances, undefined cases."""

import math

import numpy as np
import pytest
import torch
from saliency_maps import problem
from scipy import stats

from congruency.saliency.metrics import cc, information_gain, kl, nss, sim

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def densities(seed=1, images=3, height=12, width=17):
    return torch.rand(images, height, width, generator=torch.Generator().manual_seed(seed)) + 0.01


def test_nss_by_hand():
    saliency = torch.tensor([[[0.0, 0.0], [0.0, 4.0]]])  # mean 1, variance 3 (ddof 0) or 4 (ddof 1)
    fixations = torch.tensor([[[1, 0], [0, 2]]])
    assert nss(saliency, fixations).item() == pytest.approx((-1 + 2 * 3) / 3 / math.sqrt(3))
    assert nss(saliency, fixations, protocol="salicon").item() == nss(saliency, fixations).item()
    assert nss(saliency, fixations, protocol="mit").item() == pytest.approx((-1 + 3) / 2 / 2)


def test_nss_is_the_mean_zscore_at_the_fixations():
    saliency, fixations = problem(fixations=40)
    expected = [
        np.repeat(stats.zscore(s.double().numpy().ravel()), f.numpy().ravel().astype(int)).mean()
        for s, f in zip(saliency, fixations, strict=True)
    ]
    np.testing.assert_allclose(nss(saliency, fixations), expected, rtol=1e-6, atol=1e-6)


def scaled(array):
    return (array - array.min()) / (array.max() - array.min())


def shares(array):
    return array / array.sum()


def test_the_protocol_of_the_mit_benchmark():
    """Each fixated pixel once, MATLAB's standard deviation, maps scaled to [0, 1] before they are made to sum to 1."""
    saliency, fixations = problem(fixations=60, dtype=torch.float64)
    saliency, density, prior = saliency - 0.3, densities().double() + 2, densities(5).double()
    assert fixations.max() > 1
    eps = np.spacing(1.0)
    for i in range(len(saliency)):
        s, q, b, seen = saliency[i].numpy(), density[i].numpy(), prior[i].numpy(), fixations[i].numpy() > 0
        expected = ((s - s.mean()) / s.std(ddof=1))[seen].mean()
        assert nss(saliency, fixations, protocol="mit")[i].item() == pytest.approx(expected, rel=1e-12)
        overlap = np.minimum(shares(scaled(s)), shares(scaled(q))).sum()
        assert sim(saliency, density, protocol="mit")[i].item() == pytest.approx(overlap, rel=1e-12)
        gain = np.log2(eps + shares(scaled(s))[seen]) - np.log2(eps + shares(scaled(b))[seen])
        found = information_gain(saliency, fixations, prior, protocol="mit")[i].item()
        assert found == pytest.approx(gain.mean(), rel=1e-12)


@pytest.mark.parametrize("score", [nss, sim])
def test_an_unknown_protocol_is_refused(score):
    with pytest.raises(ValueError, match="protocol must be 'exact', 'mit' or 'salicon', got 'matlab'"):
        score(*problem(), protocol="matlab")


@pytest.mark.parametrize(("height", "width"), [(769, 1021), (1080, 1920)])
@pytest.mark.parametrize("kind", ["uniform", "peaked", "far from 0"])
def test_large_maps_in_float32_score_as_in_float64(device, kind, height, width):
    """To 1e-6 of the value, or of 1: the sums must not lose what the pixels have."""
    maps = torch.rand(4, height, width, generator=torch.Generator().manual_seed(height))
    fixations = (maps[3] < 3e-4).float()[None]
    rows, columns = torch.arange(height)[:, None] / height - 0.4, torch.arange(width) / width - 0.6
    peak = torch.exp(-0.5 * (rows**2 + columns**2) / 0.03**2)
    saliency = {"uniform": maps[0], "peaked": peak + 1e-4 * maps[0], "far from 0": 20 + maps[0]}[kind][None]
    density, prior = peak[None] + 1e-3 * maps[1], maps[2] + 0.01
    calls = {
        nss: (fixations,), cc: (density,), kl: (density,), sim: (density,), information_gain: (fixations, prior),
    }  # fmt: skip
    for score, truth in calls.items():
        given = [x.to(device) for x in (saliency, *truth)]
        exact = score(*(x.double() for x in given)).item()
        assert score(*given).item() == pytest.approx(exact, rel=1e-6, abs=1e-6), score.__name__


def test_cc_equals_pearson_correlation():
    saliency, density = problem()[0], densities()
    expected = [stats.pearsonr(s.ravel(), d.ravel()).statistic for s, d in zip(saliency, density, strict=True)]
    np.testing.assert_allclose(cc(saliency, density), expected, rtol=1e-4, atol=1e-6)
    assert cc(density, density).tolist() == pytest.approx([1, 1, 1])
    assert cc(-density, density).tolist() == pytest.approx([-1, -1, -1])


def test_kl_and_sim_by_hand():
    saliency = torch.tensor([[[1.0, 1.0], [1.0, 1.0]]])
    density = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
    assert kl(saliency, density).item() == pytest.approx(math.log(2))
    assert sim(saliency, density).item() == pytest.approx(0.5)
    assert kl(density, density).item() == pytest.approx(0, abs=1e-6)
    assert sim(density, density).item() == pytest.approx(1)


def test_kl_equals_scipy_entropy():
    saliency, density = densities(2), densities()
    expected = [stats.entropy(d.ravel(), s.ravel()) for s, d in zip(saliency, density, strict=True)]
    np.testing.assert_allclose(kl(saliency, density), expected, rtol=1e-4)


def test_the_cost_of_a_zero_depends_on_epsilon():
    saliency, density = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, 1.0]]])
    expected = 0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 2**-52)
    assert kl(saliency, density).item() == pytest.approx(expected)
    assert kl(saliency, density, epsilon=0.0).item() == math.inf


def test_information_gain_in_bits_per_fixation():
    saliency = torch.tensor([[[4.0, 2.0], [1.0, 1.0]]])
    fixations = torch.tensor([[[2, 1], [0, 0]]])
    baseline = torch.ones(2, 2)
    assert information_gain(saliency, fixations, baseline).item() == pytest.approx((2 * 1 + 0) / 3)
    assert information_gain(saliency, fixations, saliency).item() == pytest.approx(0)


@pytest.mark.parametrize(("scale", "shift"), [(3.0, 0.0), (0.01, 5.0), (200.0, -7.0)])
def test_nss_and_cc_are_invariant_under_affine_maps(scale, shift):
    saliency, fixations = problem(dtype=torch.float64)
    changed = scale * saliency + shift
    torch.testing.assert_close(nss(changed, fixations), nss(saliency, fixations))
    torch.testing.assert_close(cc(changed, densities().double()), cc(saliency, densities().double()))
    torch.testing.assert_close(cc(densities().double(), changed), cc(densities().double(), saliency))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_very_small_and_very_large_maps_have_the_same_scores(scale):
    saliency, fixations = problem()
    torch.testing.assert_close(nss(scale * saliency, fixations), nss(saliency, fixations), **CLOSE)
    torch.testing.assert_close(cc(scale * saliency, densities() / scale), cc(saliency, densities()), **CLOSE)


@pytest.mark.parametrize("offset", [1e4, 1e6, -1e6])
def test_a_map_far_from_zero_loses_only_its_own_rounding(offset):
    """Compared with float64 on the same float32 values."""
    saliency, fixations = problem(height=120, width=160)
    saliency, density = 10 * saliency + offset, densities(height=120, width=160)
    assert saliency.dtype == torch.float32
    torch.testing.assert_close(nss(saliency, fixations).double(), nss(saliency.double(), fixations), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        cc(saliency, density).double(), cc(saliency.double(), density.double()), rtol=0, atol=1e-5
    )


def test_negative_counts_score_nan():
    saliency, fixations = problem(images=2)
    fixations[0, 0, 0] = -1
    assert nss(saliency, fixations).isnan().tolist() == [True, False]
    assert information_gain(saliency, fixations, densities(images=2)).isnan().tolist() == [True, False]


def test_kl_and_sim_are_invariant_under_scaling():
    saliency, density = densities(3), densities(4)
    torch.testing.assert_close(kl(saliency * 255, density / 9), kl(saliency, density), **CLOSE)
    torch.testing.assert_close(sim(saliency * 255, density / 9), sim(saliency, density), **CLOSE)


@pytest.mark.parametrize("value", [0.0, 0.1, 7.0])
def test_a_constant_saliency_map_scores_chance(value):
    saliency = torch.full((1, 30, 41), value)
    fixations, density = torch.zeros(1, 30, 41), densities(images=1, height=30, width=41)
    fixations[0, 3, 4] = 2
    assert nss(saliency, fixations).item() == 0
    assert cc(saliency, density).item() == 0
    uniform = torch.ones_like(saliency)
    torch.testing.assert_close(kl(saliency, density), kl(uniform, density), **CLOSE)
    torch.testing.assert_close(sim(saliency, density), sim(uniform, density), **CLOSE)
    assert information_gain(saliency, fixations, uniform).item() == pytest.approx(0, abs=1e-5)


def test_without_a_ground_truth_the_score_is_nan():
    saliency, fixations = problem(images=2)
    fixations[0] = 0
    assert nss(saliency, fixations).isnan().tolist() == [True, False]
    assert information_gain(saliency, fixations, saliency[0]).isnan().tolist() == [True, False]
    assert kl(saliency, fixations).isnan().tolist() == [True, False]
    assert sim(saliency, fixations).isnan().tolist() == [True, False]
    assert cc(saliency, fixations).isnan().tolist() == [True, False]


def test_a_nan_or_a_negative_value_is_not_hidden():
    saliency, fixations = problem(images=2)
    density = densities(images=2)
    saliency[0, 1, 1] = torch.nan
    for score in (nss(saliency, fixations), cc(saliency, density), kl(saliency, density), sim(saliency, density)):
        assert score.isnan().tolist() == [True, False]
    logits = problem(images=2)[0]
    logits[0, 0, 0] = -1
    for score in (kl(logits, density), sim(logits, density), information_gain(logits, fixations, density)):
        assert score.isnan().tolist() == [True, False]


@pytest.mark.parametrize("values", [[-1.0, -2.0, -1.0, -3.0], [0.5, -0.5, 0.25, -0.25], [3.0, -1.0, -1.0, 0.0]])
def test_no_sum_hides_a_negative_value(values):
    """Of all values, of values that cancel, and of some: neither map is a distribution."""
    wrong, right = torch.tensor(values).view(1, 2, 2), densities(images=1, height=2, width=2)
    for score in (kl, sim):
        assert score(wrong, right).isnan().all()
        assert score(right, wrong).isnan().all()
        assert score(torch.zeros_like(right), wrong).isnan().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_change_nothing_but_rounding(dtype):
    saliency = (problem()[0] * 255).round().to(torch.uint8).to(dtype)  # bfloat16 holds these integers too
    fixations, density = problem()[1], densities()
    exact = saliency.double()
    for score, truth in ((nss, fixations), (cc, density), (kl, density), (sim, density)):
        result = score(saliency, truth.to(torch.int32) if score is nss else truth)
        torch.testing.assert_close(result.double(), score(exact, truth.double()), rtol=1e-4, atol=1e-5)


def test_one_map_without_a_batch():
    saliency, fixations = problem(images=1)
    torch.testing.assert_close(nss(saliency[0], fixations[0]), nss(saliency, fixations)[0])


@pytest.mark.parametrize(
    ("saliency", "fixations", "message"),
    [
        (torch.rand(2, 4, 5), torch.ones(2, 5, 4), "saliency is 4 x 5 and fixations 5 x 4"),
        (torch.rand(2, 4, 5), torch.ones(3, 4, 5), "one for each image"),
        (torch.rand(5), torch.ones(5), r"maps of shape \(B, H, W\)"),
        (torch.rand(0, 4, 5), torch.ones(0, 4, 5), r"maps of shape \(B, H, W\)"),
    ],
)
def test_mismatched_shapes_are_reported(saliency, fixations, message):
    with pytest.raises(ValueError, match=message):
        nss(saliency, fixations)


def test_arrays_and_complex_maps_are_refused():
    with pytest.raises(TypeError, match="must be a tensor, got ndarray"):
        nss(np.ones((1, 2, 2)), torch.ones(1, 2, 2))
    with pytest.raises(TypeError, match="must be real"):
        nss(torch.ones(1, 2, 2, dtype=torch.complex64), torch.ones(1, 2, 2))
