"""Replayed steps against steps that run as usual; what cannot be captured is refused."""

import os
import signal
from functools import partial

import pytest
import torch
from training_toy import DEVICE, SAMPLES, Numbers, build, evaluation, everything, flat

from congruency.training import Method, TrainingConfig, read_record, train

gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA graphs need a GPU: CONGRUENCY_TEST_DEVICE=cuda")
METHODS = [Method(), Method(name="dcl", window=5, scope="all"), Method(name="dcl", mode="anchor", margin=0.1, offset=1),
           Method(name="gem")]  # fmt: skip


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
@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{method.mode}")
def test_replayed_steps_are_those_of_the_eager_run(tmp_path, method, precision):
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
def test_random_numbers_are_those_of_the_eager_run(tmp_path):
    weights, record = trained(tmp_path / "eager", dropout=0.4)
    replayed, captured = trained(tmp_path / "captured", dropout=0.4, capture=True)
    torch.testing.assert_close(lines(captured, "loss"), lines(record, "loss"), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(replayed, weights, rtol=1e-3, atol=1e-4)
    assert len({line["loss"] for line in captured.steps}) == len(captured.steps)


@gpu
def test_a_captured_run_goes_on_after_sigterm(tmp_path):
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
def test_compiled_and_captured(tmp_path):
    weights, _ = trained(tmp_path / "eager")
    replayed, _ = trained(tmp_path / "captured", capture=True, compile=True)
    torch.testing.assert_close(replayed, weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"precision": "16"}, {"strategy": "ddp"}], ids=str)
def test_what_cannot_be_captured(settings):
    with pytest.raises(ValueError, match="capture is for one process, one batch a step"):
        TrainingConfig(epochs=1, capture=True, **settings)


def test_a_cpu_has_no_graphs(tmp_path):
    with pytest.raises(ValueError, match="capture needs a GPU"):
        train(build, TrainingConfig(epochs=1, accelerator="cpu", capture=True), tmp_path / "run")
