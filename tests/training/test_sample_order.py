"""Which runs see the samples in the same order, from the seed down to the batches and through the command line."""

import itertools
import os
import signal

import pytest
import torch
from typer.testing import CliRunner

from congruency import cli
from congruency.classification import task
from congruency.classification.augmentation import Augmentation
from congruency.classification.batches import Batches
from congruency.classification.task import Setup, ordered
from congruency.datasets import LabelledImages
from congruency.studies.classification.jobs import Data, ImageJob
from congruency.training import Correction, load_checkpoint, order_seed, read_record, without_times

BASE, DCL, GEM = Correction(), Correction(name="dcl", window=5), Correction(name="gem")
RAW = Augmentation((0.0,), (1 / 255,))  # values as they are, to know each image by
METHODS = (BASE, DCL, GEM)


def setup(seed, order, **more):
    return Setup(model="mlp", augmentation=RAW, epochs=3, seed=seed, sample_order=order, **more)


def seen(seed, method, order, epoch=0, **more):
    """The numbers of the images in the order in which a run of these sees them."""
    made = ordered(setup(seed, order, **more), method)
    images = torch.arange(40, dtype=torch.uint8).view(-1, 1, 1, 1).expand(40, 1, 2, 2).contiguous()
    data = LabelledImages(images, torch.zeros(40, dtype=torch.int64), ("one",))
    batches = Batches(data, 8, RAW, seed=made.seed, order=made.order, order_seed=made.order_seed)
    return list(itertools.chain(*(x[:, 0, 0, 0].round().long().tolist() for x, _ in batches.train_batches(epoch))))


def test_a_fixed_order_is_that_of_all_runs():
    orders = {tuple(seen(seed, method, "fixed")) for seed in (0, 1, 7) for method in METHODS}
    assert len(orders) == 1
    assert sorted(*orders) == list(range(40))
    assert seen(3, DCL, "fixed", order_seed=5) == seen(8, GEM, "fixed", order_seed=5)
    assert seen(3, DCL, "fixed", order_seed=5) != seen(3, DCL, "fixed", order_seed=6)
    assert seen(3, DCL, "fixed", order_seed=5) == seen(5, BASE, "seed"), "the order that a run of that seed has alone"


def test_independent_orders_are_shared_by_no_two_runs():
    orders = {tuple(seen(seed, method, "independent")) for seed in (0, 1, 7) for method in METHODS}
    assert len(orders) == 9
    assert seen(1, DCL, "independent") == seen(1, DCL, "independent"), "and yet a run can be repeated"


def test_the_order_of_the_seed_is_that_of_all_methods():
    assert seen(1, BASE, "seed") == seen(1, DCL, "seed") == seen(1, GEM, "seed") != seen(2, BASE, "seed")


@pytest.mark.parametrize("order", ["seed", "fixed", "independent"])
def test_epochs_differ_from_each_other(order):
    epochs = {tuple(seen(0, DCL, order, epoch)) for epoch in range(4)}
    assert len(epochs) == 4


def test_the_order_leaves_the_augmentation_to_the_seed():
    crops = Augmentation((0.0,), (1 / 255,), crop="padded", flip=True)
    pictures = LabelledImages(torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8), torch.zeros(20).long(), ("a",))
    one, other = (Batches(pictures, 20, crops, seed=seed, order_seed=3) for seed in (0, 1))
    (a, _), (b, _) = next(iter(one.train_batches(0))), next(iter(other.train_batches(0)))
    assert not torch.equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shuffled", 0, BASE), "order must be one of 'seed', 'fixed', 'independent'"),
        (("fixed", 0, BASE, -1), "negative"),
    ],
)
def test_unknown_orders_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        order_seed(*arguments)


def test_finished_runs_of_the_seeds_order_keep_their_name():
    """The digests of jobs are as they were before there were other orders."""

    def digest(**changes):
        job = ImageJob(setup=setup(0, **{"order": "seed", **changes}), method=BASE, data=Data(name="x"), columns={})
        return job.digest()

    assert digest() == digest(order="seed", order_seed=None)
    assert len({digest(), digest(order="fixed"), digest(order="fixed", order_seed=1), digest(order="independent")}) == 4


SMALL = ["train", "--dataset", "digits", "--model", "mlp", "--per-class", "8", "--batch-size", "16", "--device", "cpu"]


def train(out, *words, epochs="2", code=0):
    result = CliRunner().invoke(cli.build(), [*SMALL, "--epochs", epochs, "--out", str(out), *words])
    assert result.exit_code == code, result.output
    return result


def test_the_command_says_so_in_the_record(tmp_path):
    train(tmp_path / "a", "--order", "fixed", "--order-seed", "4", "--seed", "1", epochs="1")
    described = read_record(tmp_path / "a").run["task"]
    assert (described["sample_order"], described["order_seed"]) == ("fixed", 4)
    train(tmp_path / "b", "--order", "independent", "--seed", "1", epochs="1")
    described = read_record(tmp_path / "b").run["task"]
    assert (described["sample_order"], described["order_seed"]) == ("independent", order_seed("independent", 1, BASE))
    for words in (["--order", "none"], ["--order-seed", "3"], ["--order", "independent", "--order-seed", "3"]):
        assert "order" in train(tmp_path / "c", *words, code=2).output


@pytest.mark.parametrize("order", [["--order", "fixed", "--order-seed", "9"], ["--order", "independent"]])
def test_a_run_with_another_order_is_resumed_to_the_bit(tmp_path, monkeypatch, order):
    words = [*order, "--method", "dcl", "--window", "4", "--seed", "3"]
    train(tmp_path / "whole", *words)
    with monkeypatch.context() as patch:
        evaluate = task.evaluate
        patch.setattr(task, "evaluate", lambda *a: os.kill(os.getpid(), signal.SIGTERM) or evaluate(*a))
        train(tmp_path / "cut", *words, code=75)
    train(tmp_path / "cut", *words, "--resume")
    whole, cut = (read_record(tmp_path / name) for name in ("whole", "cut"))
    assert without_times(whole.steps + whole.epochs) == without_times(cut.steps + cut.epochs)
    ends = [load_checkpoint(sorted((tmp_path / name / "checkpoints").iterdir())[-1]) for name in ("whole", "cut")]
    assert all(torch.equal(ends[0]["model"][name], ends[1]["model"][name]) for name in ends[0]["model"])
    assert "sample_order was" in " ".join(
        train(tmp_path / "cut", "--method", "dcl", "--window", "4", "--seed", "3", "--resume", code=2).output.split()
    )
