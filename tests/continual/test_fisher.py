"""The diagonal of the Fisher information, against one sample and class at a time."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from congruency.continual.learners import ewc as module
from congruency.continual.learners.ewc import fisher_diagonal
from congruency.continual.networks import NarrowResNet18, mlp

CLASSES = 6


def slow(model, inputs, mask=None):
    """One sample and class at a time: mean of p(c) (d/dw log p(c))^2."""
    there = range(CLASSES) if mask is None else mask.isfinite().nonzero().flatten().tolist()
    found = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x in inputs:
        for c in there:
            log_p = (model(x.unsqueeze(0))[0] + (0 if mask is None else mask)).log_softmax(-1)[c]
            gradients = torch.autograd.grad(log_p, list(model.parameters()), allow_unused=True)
            for name, g in zip(found, gradients, strict=True):
                if g is not None:
                    found[name] += log_p.exp().detach() * g.square() / len(inputs)
    return found


def random_network(network):
    """In double precision, every parameter and running average drawn, in evaluation mode."""
    network = network.double().eval()
    with torch.no_grad():
        for p in network.parameters():
            p += 0.1 * torch.randn_like(p)
        for name, buffer in network.named_buffers():
            if name.endswith(("mean", "var")):
                buffer += torch.rand_like(buffer)
    return network


class Convolutions(nn.Sequential):
    """Groups, strides, dilation, padding that differ by direction, biases, and ReLUs that write over their input."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, (3, 2), stride=(2, 1), padding=(1, 2)),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 12, 3, groups=4, dilation=(1, 2), bias=False),
            nn.BatchNorm2d(12, eps=0.1),
            nn.ReLU(inplace=True),
            nn.Conv2d(12, 12, (2, 3), stride=2, padding=1, groups=12),
            nn.Tanh(),
            nn.Conv2d(12, 5, 1),
            nn.Flatten(),
            nn.LazyLinear(7),
            nn.BatchNorm1d(7),
            nn.ReLU(inplace=True),
            nn.Linear(7, CLASSES, bias=False),
        )
        self(torch.zeros(2, 3, 9, 8))


class Twice(nn.Module):
    """A layer used in two places."""

    def __init__(self):
        super().__init__()
        self.into, self.inner, self.out = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(self.inner(torch.tanh(self.inner(torch.tanh(self.into(x))))))


class FrozenTwice(Twice):
    """The same, where the graph does not show it."""

    def __init__(self):
        super().__init__()
        self.inner.requires_grad_(False)


class Borrowed(Twice):
    """A layer called once, whose weight is used a second time beside it."""

    def forward(self, x):
        values = torch.tanh(self.into(x))
        return self.out(torch.tanh(self.inner(values)) + functional.linear(values, self.inner.weight.T))


class Loose(Twice):
    """A weight used without its layer."""

    def forward(self, x):
        return self.out(functional.linear(torch.tanh(self.into(x)), self.inner.weight))


class Crops(Twice):
    """Each sample is split into two, and the outputs are averaged."""

    def forward(self, x):
        halves = torch.cat([x, x.flip(-1)])
        return self.out(torch.tanh(self.inner(torch.tanh(self.into(halves))))).unflatten(0, (2, -1)).mean(0)


class Cut(Twice):
    """A frozen layer."""

    def forward(self, x):
        with torch.no_grad():
            values = torch.tanh(self.into(x))
        return self.out(torch.tanh(self.inner(values)))


class Shared(Twice):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(4, 4)
        self.other.weight = self.inner.weight

    def forward(self, x):
        return self.out(self.other(torch.tanh(self.inner(torch.tanh(self.into(x))))))


class Doubling(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


class Idle(Twice):
    """One layer that is never called, one whose output is unused."""

    def __init__(self):
        super().__init__()
        self.never = nn.Linear(3, 3)

    def forward(self, x):
        values = torch.tanh(self.into(x))
        self.inner(values)
        return self.out(values)


class Tokens(nn.Module):
    """A linear layer that sees each sample several times."""

    def __init__(self):
        super().__init__()
        self.each, self.out = nn.Linear(1, 3), nn.Linear(15, CLASSES)

    def forward(self, x):
        return self.out(torch.tanh(self.each(x.unsqueeze(-1))).flatten(1))


NETWORKS = {
    "resnet": (lambda: NarrowResNet18(CLASSES, 2), (3, 32, 32)),
    "mlp": (lambda: mlp((20, 9, 8, CLASSES)), (4, 5)),
    "convolutions": (Convolutions, (3, 9, 8)),
    "idle layers": (Idle, (5,)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, CLASSES)), (5,)),
    "used twice": (Twice, (5,)),
    "weight used beside its layer": (Borrowed, (5,)),
    "weight used without its layer": (Loose, (5,)),
    "two crops": (Crops, (5,)),
    "cut off": (Cut, (5,)),
    "shared weight": (Shared, (5,)),
    "subclass": (lambda: nn.Sequential(Doubling(5, CLASSES)), (5,)),
    "several places": (Tokens, (5,)),
    "padded by reflection": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(40, CLASSES)
        ),
        (1, 4, 5),
    ),
    "padding by name": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(40, CLASSES)),
        (1, 4, 5),
    ),
    "batch statistics": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 2, bias=False),
            nn.BatchNorm2d(3, track_running_stats=False),
            nn.Flatten(),
            nn.Linear(36, CLASSES),
        ),
        (1, 4, 5),
    ),
    "frozen and used twice": (FrozenTwice, (5,)),
    "frozen": (lambda: nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, CLASSES)), (5,)),
}


def case(made, samples=3):
    torch.manual_seed(0)
    make, shape = made
    return random_network(make()), torch.randn(samples, *shape, dtype=torch.float64)


def masks():
    own = torch.full((CLASSES,), -torch.inf, dtype=torch.float64)
    own[[1, 2, 4]] = torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64)
    return {"all classes": None, "own classes": own}


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10 * value.abs().max().item(), msg=name)


@pytest.mark.parametrize("classes", masks())
@pytest.mark.parametrize("name", NETWORKS)
def test_it_equals_sample_by_sample_and_class_by_class(name, classes, monkeypatch):
    """Also if the samples are split into parts."""
    model, inputs = case(NETWORKS[name])
    mask = masks()[classes]
    found = fisher_diagonal(model, inputs, mask)
    monkeypatch.setattr(module, "_SAMPLES", 2)
    in_parts = fisher_diagonal(model, inputs, mask)
    model.requires_grad_(True)
    expected = slow(model, inputs, mask)
    assert_same(found, expected)
    assert_same(in_parts, expected)


def test_it_runs_in_evaluation_mode_and_leaves_no_gradients_or_hooks():
    model, inputs = case(NETWORKS["resnet"])
    expected = fisher_diagonal(model, inputs)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    with torch.no_grad():
        found = fisher_diagonal(model, inputs)
    assert_same(found, expected)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(value.requires_grad for value in found.values())
    assert not any(layer._forward_hooks for layer in model.modules())


def test_a_single_class_has_zero_fisher_information():
    model, inputs = case(NETWORKS["mlp"])
    mask = torch.full((CLASSES,), -torch.inf, dtype=torch.float64)
    mask[2] = 0.0
    assert all((value == 0).all() for value in fisher_diagonal(model, inputs, mask).values())
