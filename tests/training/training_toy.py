"""A small classification problem for the training loop: two moons of numbers, an MLP, batches by seed and epoch."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

from congruency.training import Task, load_checkpoint, read_record, without_times

SAMPLES, FEATURES, CLASSES = 96, 6, 3
DEVICE = torch.device(os.environ.get("CONGRUENCY_TEST_DEVICE", "cpu"))


class Numbers:
    """Batches that depend on the epoch and the position alone, split over processes."""

    def __init__(self, place, batch=16, noise=False, pause=0.0):
        generator = torch.Generator().manual_seed(7)
        self.targets = torch.randint(CLASSES, (SAMPLES,), generator=generator)
        centres = torch.randn(CLASSES, FEATURES, generator=generator)
        self.inputs = centres[self.targets] + torch.randn(SAMPLES, FEATURES, generator=generator)
        self.place, self.batch, self.noise, self.pause = place, batch, noise, pause
        self.asked = []

    def __len__(self):
        return SAMPLES // self.batch

    def train_batches(self, epoch, start=0):
        self.asked.append((epoch, start))
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for i in range(start, len(self)):
            here = order[i * self.batch : (i + 1) * self.batch][self.place.rank :: self.place.world_size]
            inputs = self.inputs[here]
            time.sleep(self.pause)
            if self.noise:  # from torch's own random state, when the batch's turn has come
                inputs = inputs + 0.1 * torch.randn_like(inputs)
            yield inputs, self.targets[here]


def network(dropout=0.0):
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES))


def error(outputs, targets):
    return {"error": (outputs.argmax(dim=1) != targets).float().mean()}


def evaluation(data):
    def evaluate(model):
        assert not model.model.training
        outputs = model(data.inputs.to(data.place.device))
        targets = data.targets.to(data.place.device)
        return {"loss": F.cross_entropy(outputs, targets).item(), **error(outputs, targets)}

    return evaluate


def build(place, *, dropout=0.0, noise=False, batch=16, pause=0.0, lr=0.3, optimizer=None, **changes):
    data = Numbers(place, batch, noise, pause)
    task = {
        "model": network(dropout),
        "optimizer": optimizer or (lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)),
        "loss": F.cross_entropy,
        "data": data,
        "schedule": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
        "figures": error,
        "evaluate": evaluation(data),
        "description": {"what": "numbers"},
    }
    return Task(**{**task, **changes})


def flat(model):
    return torch.cat([parameter.detach().flatten().double().cpu() for parameter in model.parameters()])


def assert_equal_here(a, b):
    """Bit for bit on the CPU; on a GPU within the differences between two programs."""
    torch.testing.assert_close(
        a, b, **({"rtol": 0, "atol": 0} if DEVICE.type == "cpu" else {"rtol": 1e-3, "atol": 1e-4})
    )


def everything(folder):
    """Everything that a run writes, without times."""
    record = read_record(folder)
    newest = sorted((folder / "checkpoints").glob("*.pt"))[-1]
    state = load_checkpoint(newest)
    del state["record"], state["means"]
    return [without_times([record.run, *record.steps, *record.epochs]), newest.name, state]


def assert_same(a, b):
    """Equality bit for bit."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b or (a != a and b != b)
