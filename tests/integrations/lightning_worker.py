"""What each of two processes does: ``torchrun lightning_worker.py FOLDER``."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lightning_models import BATCHES, OPTIONS, Daily, Regression, batches, flat, loader, plain, trainer
from processes import leave
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from congruency.integrations.common import attach
from congruency.integrations.lightning import DCLCallback
from congruency.integrations.torchmetrics import RunCongruency

from lightning.pytorch.callbacks import ModelCheckpoint  # isort: skip
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy  # isort: skip


def shard(net, mesh=None):
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


class Sharded(Regression):
    """FSDP2, as Lightning wants it: the module is parallelised in ``configure_model``."""

    def configure_model(self):
        shard(self.net, self.device_mesh["data_parallel"])


class DailyHalf(Daily):
    """One half-batch an epoch, so that checkpoints may lie anywhere."""

    def train_dataloader(self):
        return DataLoader([batches(dist.get_rank())[self.current_epoch]], batch_size=None)


class DailySharded(DailyHalf, Sharded):
    """The same in shards."""


def two(strategy, **settings):
    callback = DCLCallback(**OPTIONS)
    fixed = {"devices": 2, "use_distributed_sampler": False, "strategy": strategy}
    return trainer(callback, **{**fixed, **settings}), callback


def fsdp2():
    """On the CPU, which Lightning allows, and gloo."""
    return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)


def whole_run(strategy, module, wrap, folder, rank):
    """A fit, and beside it a loop of one's own with the same processes."""
    run, callback = two(strategy)
    run.fit(module, loader(rank))
    expected, dcl = plain(batches(rank), wrap=wrap)
    assert torch.equal(flat(module.net), expected)
    assert int(callback.stats.corrected_steps) == int(dcl.stats.corrected_steps)
    torch.save((expected, int(dcl.stats.corrected_steps)), folder / f"{type(module).__name__}-{rank}.pt")


def resumed(make_strategy, module, folder, name):
    """Gone on from a checkpoint in the middle of a window; beside it the run that made the checkpoint."""
    daily = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": BATCHES}
    keep = ModelCheckpoint(folder, filename=name, every_n_epochs=8)
    uninterrupted, goes_on = module(), module()
    two(make_strategy(), callbacks=[keep], **daily)[0].fit(uninterrupted)
    run, callback = two(make_strategy(), **daily)
    run.fit(goes_on, ckpt_path=folder / f"{name}.ckpt")
    assert callback.stats.steps == BATCHES
    assert torch.equal(flat(goes_on.net), flat(uninterrupted.net)), name


def flat_shards_are_refused():
    """FSDP1's parameters look whole and are not."""
    net = FullyShardedDataParallel(Regression().net, device_id=torch.device("cpu"))
    with pytest.raises(TypeError, match="FSDP1"):
        attach(net, [torch.optim.SGD(net.parameters(), lr=0.1)], "all", OPTIONS)


def metric_over_processes(rank):
    """Every process measures a run of its own; the mean is over all steps."""
    metric = RunCongruency()
    module = Regression()
    optimizer = torch.optim.SGD(module.net.parameters(), lr=0.1)
    for pair in batches(rank)[: 6 + rank]:
        optimizer.zero_grad()
        module.loss(pair).backward()
        metric.update(module.net.parameters())
        optimizer.step()
    sums = metric.sums_from_start.clone()
    dist.all_reduce(sums)
    assert sums[1] == 5 + 6  # the first update of each has no displacement yet
    assert metric.compute() == sums[0] / sums[1]
    assert metric.sums_from_start[1] == 5 + rank  # each continues with its own


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    whole_run(DDPStrategy(), Regression(), DistributedDataParallel, folder, rank)
    resumed(DDPStrategy, DailyHalf, folder, "ddp")
    whole_run(fsdp2(), Sharded(), shard, folder, rank)
    resumed(fsdp2, DailySharded, folder, "fsdp2")
    flat_shards_are_refused()
    metric_over_processes(rank)
    leave()
