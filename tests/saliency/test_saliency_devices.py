"""The same numbers on an accelerator as on the CPU; CONGRUENCY_TEST_DEVICE=cuda runs these there."""

import pytest
import torch
from saliency_data import small_osie
from saliency_maps import problem

from congruency.saliency import data, metrics
from congruency.saliency.baselines import reference_scores
from congruency.saliency.task import Recipe, train_network

SIZE = {"images": 5, "height": 120, "width": 160, "fixations": 90}


@pytest.mark.parametrize("levels", [None, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_metrics_agree_with_the_cpu(device, levels, dtype):
    saliency, fixations = problem(**SIZE, levels=levels, dtype=dtype)
    fixations[2] = 0
    blurred = data.density(fixations.float(), 5.0)
    negatives = metrics.shuffled_negatives(fixations)
    calls = {
        metrics.nss: (fixations,),
        metrics.cc: (blurred,),
        metrics.kl: (blurred,),
        metrics.sim: (blurred,),
        metrics.information_gain: (fixations, blurred.mean(0)),
        metrics.auc_judd: (fixations,),
        metrics.auc_borji: (fixations,),
        metrics.auc_shuffled: (fixations, negatives),
    }
    for score, truth in calls.items():
        there = score(saliency.to(device), *(x.to(device) for x in truth))
        assert there.device.type == device.type
        torch.testing.assert_close(there.cpu(), score(saliency, *truth), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("protocol", ["mit", "salicon"])
def test_every_device_draws_the_same(device, protocol):
    saliency, fixations = problem(**SIZE)
    negatives = metrics.shuffled_negatives(fixations)
    there = [x.to(device) for x in (saliency, fixations, negatives)]
    for score, count in ((metrics.auc_judd, 2), (metrics.auc_borji, 2), (metrics.auc_shuffled, 3)):
        expected = score(*(saliency, fixations, negatives)[:count], protocol=protocol)
        torch.testing.assert_close(score(*there[:count], protocol=protocol).cpu(), expected, rtol=0, atol=1e-5)


def test_densities_agree_with_the_cpu(device):
    counts = problem(**SIZE)[1]
    torch.testing.assert_close(
        data.density(counts.to(device), 6.0).cpu(), data.density(counts, 6.0), rtol=1e-4, atol=1e-6
    )


def test_bounds_agree_with_the_cpu(device, tmp_path):
    osie = data.osie(small_osie(tmp_path, viewers=4))
    here, there = (reference_scores(osie, osie, ["AUC", "KL", "IG"], device=place) for place in (None, device))
    for row, values in here.items():
        assert there[row] == pytest.approx(values, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("method", ["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 update", "Cautious"])
def test_a_run_on_the_device(device, tmp_path, method):
    """In bfloat16 on an accelerator; not on a CPU, where not every processor that has its instructions runs them."""
    osie = data.prepare_in_memory(data.osie(small_osie(tmp_path / "osie", images=6)), (48, 64))
    recipe = Recipe(model="dinet", backbone="resnet10t", epochs=1, batch=3, method=method)
    precision = "32" if device.type == "cpu" else "bf16"
    trained = train_network(recipe, 0, osie, osie, tmp_path / "run", device=device.type, precision=precision)
    assert trained.scores
    assert all(value == value for value in trained.scores.values())
