"""What each of two processes does in the distributed tests: ``torchrun training_worker.py STRATEGY FOLDER``."""

import atexit
import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from training_toy import CLASSES, FEATURES, Numbers, build

from congruency.distributed import full
from congruency.training import Correction, TrainingConfig, train

METHODS = {
    "baseline": {},
    "dcl": {"method": Correction(name="dcl", window=5, references=2)},
    "dcl-all": {
        "method": Correction(name="dcl", scope="all", mode="anchor", margin=0.1),
        "measure": "all",
        "clip": 0.5,
    },
    "gem": {"method": Correction(name="gem")},
    "accumulate": {"method": Correction(name="dcl", mode="anchor", margin=0.2, scope="all"), "accumulate": 4},
    "cautious": {"method": Correction(name="cautious", scope="all")},
    "update-cautious": {
        "method": Correction(
            name="dcl", scope="all", window=5, mode="anchor", margin=0.1, correct="update", cautious=True
        )
    },
    "floor": {"method": Correction(name="dcl", window=5, floor=0.3, returning=False)},
    "l2sp": {"method": Correction(name="l2sp", scope="all", strength=0.3)},
}


def config(strategy, **settings):
    return TrainingConfig(epochs=3, accelerator="cpu", strategy=strategy, flush_every=4, checkpoint_steps=5, **settings)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.02)


def methods(strategy, folder):
    for name, settings in METHODS.items():
        train(partial(build, optimizer=adam), config(strategy, **settings), folder / name)


def running_statistics(strategy, folder):
    """Processes see other samples, so their running averages differ; the memory's constraints must not."""
    scopes = ["head"] if strategy == "fsdp" else ["head", "all"]
    for scope in scopes:
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
        gem = Correction(name="gem", scope=scope)
        task = partial(build, optimizer=adam, model=model)
        train(task, config(strategy, method=gem), folder / f"statistics-{scope}")
        weights = torch.cat([full(parameter.detach()).flatten() for parameter in model.parameters()])
        others = [torch.empty_like(weights) for _ in range(2)]
        torch.distributed.all_gather(others, weights)
        assert torch.equal(*others), scope


class Stopping(Numbers):
    """SIGTERM reaches one of the processes only."""

    def train_batches(self, epoch, start=0):
        for i, batch in enumerate(super().train_batches(epoch, start), start=start):
            if self.place.rank == 1 and (epoch, i) == (1, 0):
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch


def resumed(strategy, folder):
    """Stopped by SIGTERM and resumed, beside an uninterrupted run."""
    settings = config(strategy, **METHODS["dcl-all"])
    task = partial(build, optimizer=adam, dropout=0.2, noise=True)
    train(task, settings, folder / "whole")
    stopped = train(lambda place: task(place, data=Stopping(place, noise=True)), settings, folder / "stopped")
    assert (stopped.finished, stopped.steps) == (False, 8), stopped  # at the flush after the signal
    assert train(task, settings, folder / "stopped", resume=True).finished


if __name__ == "__main__":
    torch.set_num_threads(1)
    methods(sys.argv[1], Path(sys.argv[2]))
    running_statistics(sys.argv[1], Path(sys.argv[2]))
    resumed(sys.argv[1], Path(sys.argv[2]))
    dist.barrier()
    atexit._run_exitfuncs()  # as Python does when it winds down, where gloo's threads would now and then abort it
    assert not dist.is_initialized()
    sys.stderr.flush()
    os._exit(0)
