"""Replayed steps against steps that run as usual; what cannot be captured is refused."""

import os
import signal
from functools import partial

import pytest
import torch
from torch import nn
from training_toy import CLASSES, DEVICE, FEATURES, SAMPLES, Numbers, assert_same, build, evaluation, everything, flat

from congruency.training import CheckpointError, Correction, TrainingConfig, read_record, train

gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA graphs need a GPU: CONGRUENCY_TEST_DEVICE=cuda")
METHODS = [Correction(), Correction(name="dcl", window=5, scope="all"),
           Correction(name="dcl", mode="anchor", margin=0.1, offset=1),
           Correction(name="gem"), Correction(name="gem", scope="all"),
           Correction(name="l2sp", scope="all", strength=0.3)]  # fmt: skip


class Uneven(Numbers):
    """Four batches of 20 and one of 16."""

    def __len__(self):
        return -(-SAMPLES // self.batch)


def task(place, dropout=0.0, **changes):
    data = Uneven(place, 20)
    return build(place, dropout=dropout, data=data, evaluate=evaluation(data), **changes)


def trained(folder, dropout=0.0, epochs=4, **settings):
    models = []

    def make(place):
        made = task(place, dropout)
        models.append(made.model)
        return made

    config = TrainingConfig(epochs=epochs, accelerator="cuda", flush_every=3, **settings)
    train(make, config, folder)
    return flat(models[0]), read_record(folder)


def lines(record, *names):
    return torch.tensor([[line[name] for name in names] for line in record.steps])


@gpu
@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{method.mode}-{method.scope}")
def test_replayed_steps_equal_those_of_the_eager_run(tmp_path, method, precision):
    near = {"rtol": 1e-3, "atol": 1e-4} if precision == "32" else {"rtol": 0.05, "atol": 0.02}
    settings = {"method": method, "precision": precision}
    weights, record = trained(tmp_path / "eager", **settings)
    replayed, captured = trained(tmp_path / "captured", **settings, capture=True)
    assert len(captured.steps) == len(record.steps) == 20
    torch.testing.assert_close(replayed, weights, **near)
    torch.testing.assert_close(lines(captured, "loss", "error"), lines(record, "loss", "error"), **near)
    congruencies = (torch.tensor([line["congruency"] for line in each.steps[1:]]) for each in (captured, record))
    torch.testing.assert_close(*congruencies, **near)


@gpu
def test_random_numbers_equal_those_of_the_eager_run(tmp_path):
    weights, record = trained(tmp_path / "eager", dropout=0.4)
    replayed, captured = trained(tmp_path / "captured", dropout=0.4, capture=True)
    torch.testing.assert_close(lines(captured, "loss"), lines(record, "loss"), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(replayed, weights, rtol=1e-3, atol=1e-4)
    assert len({line["loss"] for line in captured.steps}) == len(captured.steps)


@gpu
def test_a_captured_run_resumes_after_sigterm(tmp_path):
    settings = {"dropout": 0.4, "method": METHODS[1], "capture": True}
    trained(tmp_path / "whole", **settings)

    class Stopping(Uneven):
        def train_batches(self, epoch, start=0):
            for i, pair in enumerate(super().train_batches(epoch, start)):
                if (epoch, start + i) == (2, 1):
                    os.kill(os.getpid(), signal.SIGTERM)
                yield pair

    def stopped(place):
        made = partial(build, place, dropout=0.4)
        data = Stopping(place, 20)
        return made(data=data, evaluate=evaluation(data))

    config = TrainingConfig(epochs=4, accelerator="cuda", flush_every=3, method=METHODS[1], capture=True)
    assert not train(stopped, config, tmp_path / "parts").finished
    assert train(partial(task, dropout=0.4), config, tmp_path / "parts", resume=True).finished
    whole, parts = (read_record(tmp_path / name) for name in ("whole", "parts"))
    torch.testing.assert_close(lines(parts, "loss"), lines(whole, "loss"), rtol=1e-3, atol=1e-4)
    assert everything(tmp_path / "parts")[1] == everything(tmp_path / "whole")[1]


@gpu
def test_normalisation_and_clipping(tmp_path):
    """Replays update the running averages, and clipping sees their gradients."""

    def one(folder, **settings):
        models = []

        def make(place):
            first, last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
            models.append(nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), last))
            return task(place, model=models[0])

        train(make, TrainingConfig(epochs=4, accelerator="cuda", clip=0.5, **settings), folder)
        return models[0].state_dict()

    eager, replayed = one(tmp_path / "eager"), one(tmp_path / "captured", capture=True)
    assert int(replayed["1.num_batches_tracked"]) == 20
    torch.testing.assert_close(replayed, eager, rtol=1e-3, atol=1e-4)


@gpu
def test_compiled_and_captured(tmp_path):
    weights, _ = trained(tmp_path / "eager")
    replayed, _ = trained(tmp_path / "captured", capture=True, compile=True)
    torch.testing.assert_close(replayed, weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"precision": "16"}, {"strategy": "ddp"}], ids=str)
def test_settings_that_cannot_be_captured_are_refused(settings):
    with pytest.raises(ValueError, match="capture is for one process, one batch per step"):
        TrainingConfig(epochs=1, capture=True, **settings)


def test_a_cpu_has_no_graphs(tmp_path):
    with pytest.raises(ValueError, match="capture needs one process on a GPU"):
        train(build, TrainingConfig(epochs=1, accelerator="cpu", capture=True), tmp_path / "run")


def test_a_compile_mode_with_cuda_graphs_is_refused():
    with pytest.raises(ValueError, match="uses CUDA graphs itself; leave capture off"):
        TrainingConfig(epochs=1, capture=True, compile="reduce-overhead")


def test_a_checkpoint_without_the_capture_field_is_resumed(tmp_path):
    stopping = TrainingConfig(epochs=3, accelerator=DEVICE.type, checkpoint_epochs=1)
    train(build, stopping, tmp_path / "whole")
    train(build, stopping, tmp_path / "old")
    first, last = sorted((tmp_path / "old" / "checkpoints").glob("*.pt"))
    last.unlink()
    state = torch.load(first, weights_only=True)
    del state["config"]["capture"], state["config"]["method"]["trigger"]
    torch.save(state, first)
    assert train(build, stopping, tmp_path / "old", resume=True).finished
    assert_same(everything(tmp_path / "old")[0][1:], everything(tmp_path / "whole")[0][1:])
    for checkpoint in (tmp_path / "old" / "checkpoints").iterdir():
        checkpoint.unlink()
    state["config"]["colour"] = "red"
    torch.save(state, first)
    with pytest.raises(CheckpointError, match="has no colour; it was written by another release"):
        train(build, stopping, tmp_path / "old", resume=True)
