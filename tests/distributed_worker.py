"""What each of two processes does in the distributed tests: ``torchrun distributed_worker.py CASE FOLDER``."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from problems import batch, network, weights
from processes import leave
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import congruency
from congruency import distributed

STEPS = 16
SETTINGS = {
    "one": {"window": 6},
    "three": {"window": 7, "references": 3, "mode": "anchor", "margin": 0.05},
    "tensors": {"window": 7, "references": 2, "blocks": "tensor"},
    "gradients": {"window": 6, "references": 2, "accumulate": "gradients", "mode": "anchor", "margin": 0.05},
}

FAMILY = {
    "cautious": lambda optimizer: congruency.Cautious(optimizer, decay=True),
    "update": lambda optimizer: congruency.DCL(
        optimizer, correct="update", window=7, references=2, mode="anchor", margin=0.05
    ),
    "element": lambda optimizer: congruency.DCL(optimizer, correct="update", blocks="element", window=6),
    "row": lambda optimizer: congruency.DCL(optimizer, blocks="row", window=6, floor=0.9, returning=False),
    "row update": lambda optimizer: congruency.DCL(
        optimizer, correct="update", blocks="row", window=6, mode="anchor", margin=0.05
    ),
}


def step_loss(model, step, rank=None):
    """The mean over both halves of a batch, or over one rank's half."""
    inputs, targets = batch(step, torch.float32)
    if rank is not None:
        inputs, targets = inputs[rank::2], targets[rank::2]
    return (model(inputs) - targets).square().mean()


def train(model, optimizer, steps, rank=None, meter=None):
    for step in steps:
        optimizer.zero_grad()
        step_loss(model, step, rank).backward()
        if meter is not None:
            meter.update()
        optimizer.step()


def build(settings, wrap=None):
    model = network(torch.float32)
    model = wrap(model) if wrap else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return model, optimizer, congruency.DCL(optimizer, **{"floor": None, **settings})


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # by default it would be of GPUs, if there are any
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model):
    return torch.cat([distributed.full(p.detach()).flatten().double() for p in model.parameters()])


def ddp(folder, rank):
    for name, settings in SETTINGS.items():
        model, optimizer, dcl = build(settings, DistributedDataParallel)
        train(model, optimizer, range(STEPS), rank)
        torch.save((weights(model), int(dcl.stats.corrected_steps)), folder / f"ddp-{name}-{rank}.pt")


def learn_tasks(model, rank=None):
    """Three tasks with GEM; both halves of every batch, or one rank's half."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    size = 12 if rank is None else 6  # the same two batches
    gem = congruency.GEM(optimizer, model=model, loss=torch.nn.functional.mse_loss, size=size, margin=0.2)
    for step in range(STEPS):
        inputs, targets = batch(step, torch.float32)
        inputs, targets = (inputs, targets) if rank is None else (inputs[rank::2], targets[rank::2])
        gem.observe(inputs, targets + step // 6, step // 6)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets + step // 6).backward()
        optimizer.step()
    return weights(model), int(gem.stats.corrected_steps)


def train_family(name, wrap=None, rank=None):
    """The family on AdamW with decoupled decay, in float64: no rounding of the reductions may turn a sign."""
    model = network(torch.float64)
    model = wrap(model) if wrap else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    corrector = FAMILY[name](optimizer)
    shares = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step, torch.float64)
        halves = [(inputs[r::2], targets[r::2]) for r in ((0, 1) if rank is None else (rank,))]
        (sum((model(x) - y).square().mean() for x, y in halves) / len(halves)).backward()
        optimizer.step()
        shares.append(float(corrector.stats.kept))
    return whole(model), int(corrector.stats.corrected_steps), torch.tensor(shares)


def ddp_family(folder, rank):
    for name in FAMILY:
        torch.save(train_family(name, DistributedDataParallel, rank), folder / f"ddp_family-{name}-{rank}.pt")


def fsdp_family(folder, rank):
    for name in FAMILY:
        torch.save(train_family(name, shard, rank), folder / f"fsdp_family-{name}-{rank}.pt")


def ddp_gem(folder, rank):
    torch.save(learn_tasks(DistributedDataParallel(network(torch.float32)), rank), folder / f"gem-{rank}.pt")


def fsdp(folder, rank):
    sizes = []
    reduce = dist.all_reduce
    distributed.torch.distributed.all_reduce = lambda t, **k: (sizes.append(t.numel()), reduce(t, **k))[1]
    for name, settings in SETTINGS.items():
        model, optimizer, dcl = build(settings, shard)
        sizes.clear()
        train(model, optimizer, range(STEPS), rank)
        rows, blocks = settings.get("references", 1), 4 if settings.get("blocks") == "tensor" else 1
        assert max(sizes) <= blocks * (rows + 1) ** 2, sizes  # the inner products and nothing else travel
        torch.save((whole(model), int(dcl.stats.corrected_steps)), folder / f"fsdp-{name}-{rank}.pt")


def fsdp_meter(folder, rank):
    model, optimizer, _ = build(SETTINGS["one"], shard)
    meter = congruency.CongruencyMeter(model.parameters())
    train(model, optimizer, range(STEPS), rank, meter)
    result = meter.compute()
    torch.save((float(result.congruency), float(result.magnitude)), folder / f"meter-{rank}.pt")


def fsdp_state(folder, rank):
    """Save in the middle, sharded and whole; go on from each; all must end alike."""
    settings = SETTINGS["three"]
    model, optimizer, dcl = build(settings, shard)
    train(model, optimizer, range(9), rank)
    full = dcl.state_dict(full_tensors=True)
    torch.save(full, folder / f"full-{rank}.pt")
    torch.save(dcl.state_dict(), folder / f"sharded-{rank}.pt")
    dcp.save({"model": model.state_dict(), "dcl": dcl.state_dict()}, checkpoint_id=folder / "dcp")
    start = copied((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(9, STEPS), rank)
    expected = whole(model)
    for kind in ("full", "sharded", "dcp"):
        again, again_optimizer, again_dcl = build(settings, shard)
        model_state, optimizer_state = copied(start)
        again.load_state_dict(model_state)
        again_optimizer.load_state_dict(optimizer_state)
        if kind == "dcp":
            state = {"dcl": again_dcl.state_dict()}
            dcp.load(state, checkpoint_id=folder / "dcp")
            again_dcl.load_state_dict(state["dcl"])
        else:
            again_dcl.load_state_dict(torch.load(folder / f"{kind}-{rank}.pt", weights_only=True))
        train(again, again_optimizer, range(9, STEPS), rank)
        assert torch.equal(whole(again), expected), kind


def copied(state):
    """The state with tensors of its own: loading an optimizer's state may share them."""
    return torch.utils._pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, state)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    globals()[sys.argv[1]](Path(sys.argv[2]), dist.get_rank())
    leave()
