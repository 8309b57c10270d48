"""The torchmetrics classes: means over batches and processes equal those over all images at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import saliency_metric_worker as worker
import torch
from saliency_maps import problem

from congruency.saliency import metrics

CASES = {
    metrics.NSS: metrics.nss,
    metrics.CC: metrics.cc,
    metrics.KL: metrics.kl,
    metrics.SIM: metrics.sim,
    metrics.InformationGain: metrics.information_gain,
    metrics.AUCJudd: metrics.auc_judd,
    metrics.AUCBorji: metrics.auc_borji,
    metrics.AUCShuffled: metrics.auc_shuffled,
}


def inputs(kind, images=6):
    saliency, fixations = problem(images=images, fixations=20)
    fixations[2] = 0
    saliency += 0.01
    if kind is metrics.InformationGain:
        return saliency, fixations, torch.rand(images, 12, 17) + 0.1
    if kind is metrics.AUCShuffled:
        return saliency, fixations, problem(images=images, seed=9)[1]
    return saliency, fixations


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_the_mean_over_batches_excludes_images_without_ground_truth(kind):
    maps = inputs(kind)
    scores = CASES[kind](*maps)
    metric = kind()
    for batch in zip(*(x.split(4) for x in maps), strict=True):
        metric.update(*batch)
    assert scores.isnan().tolist() == [False, False, True, False, False, False]
    assert metric.compute().item() == pytest.approx(scores.nanmean().item(), rel=1e-6)
    assert metric.left_out.item() == 1


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_two_metrics_sum_to_one(kind):
    """States are summed over ranks, and by merging two metrics."""
    maps = inputs(kind)
    alone, first, second = kind(), kind(), kind()
    alone.update(*maps)
    first.update(*(x[:2] for x in maps))
    second.update(*(x[2:] for x in maps))
    first.merge_state(second)
    assert first.compute().item() == pytest.approx(alone.compute().item(), rel=1e-6)
    assert all(reduce is torch.sum or reduce.__name__ == "dim_zero_sum" for reduce in first._reductions.values())


def test_two_processes_agree_with_one(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = Path(__file__).with_name("saliency_metric_worker.py")
    done = subprocess.run(
        [*command, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    for name in worker.KINDS:
        expected = getattr(metrics, name)(*worker.images()).nanmean().item()
        assert first[name] == pytest.approx(expected, rel=1e-6)


def test_a_failed_map_is_not_left_out():
    saliency, fixations = problem()
    saliency[1] = torch.nan
    metric = metrics.NSS()
    metric.update(saliency, fixations)
    assert metric.compute().isnan()
    assert metric.left_out.item() == 0


def test_no_scored_image_gives_nan():
    metric = metrics.AUCJudd()
    metric.update(torch.rand(2, 4, 4), torch.zeros(2, 4, 4))
    assert metric.compute().isnan()
    assert metric.left_out.item() == 2


def test_classes_pass_on_protocol_and_seed():
    saliency, fixations = problem(levels=7)
    metric = metrics.AUCBorji(protocol="mit", seed=5)
    metric.update(saliency, fixations)
    expected = metrics.auc_borji(saliency, fixations, protocol="mit", seed=5)
    assert metric.compute().item() == pytest.approx(expected.mean().item())
    assert expected.mean() != metrics.auc_borji(saliency, fixations, protocol="mit", seed=6).mean()


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_one_ground_truth_for_several_maps(kind):
    saliency, *truth = inputs(kind)
    scores = CASES[kind](saliency, *(x[0] for x in truth))
    metric = kind()
    metric.update(saliency, *(x[0] for x in truth))
    assert metric.compute().item() == pytest.approx(scores.mean().item(), rel=1e-6)
    assert metric.left_out.item() == 0
    metric.update(saliency, *(x[2] for x in truth))  # the image without fixations
    assert metric.compute().item() == pytest.approx(scores.mean().item(), rel=1e-6)
    assert metric.left_out.item() == len(saliency)
    single = kind()
    single.update(saliency[1], *(x[1] for x in truth))
    assert single.compute().item() == pytest.approx(CASES[kind](saliency, *truth)[1].item(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("protocol", ["mit", "salicon"])
@pytest.mark.parametrize("kind", [metrics.AUCJudd, metrics.AUCBorji, metrics.AUCShuffled], ids=lambda k: k.__name__)
def test_draws_do_not_depend_on_order_or_batches(kind, protocol):
    maps = inputs(kind)
    forwards, backwards = kind(protocol=protocol), kind(protocol=protocol)
    forwards.update(*maps)
    for batch in zip(*(x.flip(0).split(4) for x in maps), strict=True):
        backwards.update(*batch)
    assert backwards.compute().item() == pytest.approx(forwards.compute().item(), rel=1e-7)


def test_salicon_needs_negatives_off_the_fixations():
    saliency, fixations = problem()
    negatives = problem(seed=9)[1]
    negatives[1] = fixations[1]
    metric = metrics.AUCShuffled(protocol="salicon")
    metric.update(saliency, fixations, negatives)
    expected = metrics.auc_shuffled(saliency, fixations, negatives, protocol="salicon")
    assert metric.compute().item() == pytest.approx(expected[[0, 2]].mean().item(), rel=1e-6)
    assert metric.left_out.item() == 1


def test_the_means_are_kept_in_double_precision():
    metric = metrics.NSS()
    metric.update(*problem())
    assert metric.compute().dtype == torch.float64
    assert metrics.KL.higher_is_better is False


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_maps_that_require_grad_are_scored(kind):
    saliency, *truth = inputs(kind)
    scores = CASES[kind](saliency.clone().requires_grad_(), *truth)
    assert not scores.requires_grad
    torch.testing.assert_close(scores, CASES[kind](saliency, *truth), equal_nan=True)
