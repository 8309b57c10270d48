"""Gradients that lie elsewhere at every step: what was prepared is pointed at them, and gives what a new one gives."""

import copy
import weakref

import pytest
import torch
from torch import nn

import congruency
from congruency.backends import Passes, backend_for

MAKE = {
    "joint": lambda optimizer: congruency.DCL(optimizer, references=2, mode="anchor", margin=0.05),
    "windows": lambda optimizer: congruency.DCL(optimizer, references=3, window=5, mode="anchor", margin=0.05),
    "returning": lambda optimizer: congruency.DCL(optimizer, window=6, floor=1.0, blocks="tensor"),
    "tensor": lambda optimizer: congruency.DCL(optimizer, blocks="tensor", mode="anchor", margin=0.05),
    "element": lambda optimizer: congruency.DCL(optimizer, blocks="element", floor=None),
    "cautious": congruency.Cautious,
    "descent": lambda optimizer: congruency.Corrector(
        optimizer, constraints=[congruency.Descent()], correct="update", blocks="tensor"
    ),
}
STEPS = 12


class Run:
    """Steps whose gradients have addresses that none had before, since all are kept."""

    def __init__(self, kind, device, monkeypatch):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for group in self.optimizer.param_groups:  # with momentum few steps return
            group["momentum"] = 0.0 if kind == "returning" else 0.95
        self.corrector = MAKE[kind](self.optimizer)
        self.kept, self.path, self.built = [], [], 0
        made = Passes.__init__

        def counted(passes, *args, **named):
            self.built += 1
            made(passes, *args, **named)

        monkeypatch.setattr(Passes, "__init__", counted)

    def step(self, change=lambda i, gradient: gradient):
        for i, parameter in enumerate(self.model.parameters()):
            parameter.grad = change(i, torch.randn(parameter.shape).to(parameter))
            self.kept.append(parameter.grad)
        self.optimizer.step()
        self.path.append(torch.cat([p.detach().flatten() for p in self.model.parameters()]))


def both(kind, device, monkeypatch, change=lambda step: lambda i, gradient: gradient, event=lambda run, step: None):
    """How often steps were prepared where what is prepared is kept; the weights are the same as where it is not."""
    runs = []
    for anew in (False, True):
        with monkeypatch.context() as patch:
            run = Run(kind, device, patch)
            for step in range(3 * STEPS if kind == "returning" else STEPS):
                if anew:
                    run.corrector._gather._held.clear()
                event(run, step)
                run.step(change(step))
        assert int(run.corrector.stats.corrected_steps) > 0
        runs.append(run)
    kept, anew = runs
    torch.testing.assert_close(torch.stack(kept.path), torch.stack(anew.path), rtol=0, atol=0)
    assert anew.built >= STEPS - 2  # those that record references are prepared differently
    return kept.built


@pytest.mark.parametrize("kind", MAKE)
def test_moved_gradients_need_no_new_preparation(kind, device, monkeypatch):
    built = both(kind, device, monkeypatch)
    if backend_for(device.type).__name__ != "TorchBackend":
        assert built <= 2 + STEPS * (kind == "descent")  # whose momentum is prepared at every step


@pytest.mark.parametrize("kind", sorted(MAKE.keys() - {"returning"}))
def test_gradients_that_appear_and_disappear(kind, device, monkeypatch):
    """Where other parameters train at every step, no reference is known to return."""

    def change(step):
        return lambda i, gradient: None if (step + i) % 3 == 0 else gradient

    both(kind, device, monkeypatch, change)


@pytest.mark.parametrize("kind", MAKE)
def test_gradients_of_another_memory_layout(kind, device, monkeypatch):
    def channels_last(step):
        def change(i, gradient):
            return gradient.to(memory_format=torch.channels_last) if gradient.ndim == 4 and step % 2 else gradient

        return change

    def shifted(step):
        """At addresses that are no multiple of 16 in some steps."""

        def change(i, gradient):
            wide = torch.empty(gradient.numel() + 1, device=gradient.device)
            return wide[step % 3 == 2 :][: gradient.numel()].view_as(gradient).copy_(gradient)

        return change

    def negated(step):
        return lambda i, gradient: torch._neg_view(gradient) if step % 4 == 3 else gradient

    for change in (channels_last, shifted, negated):
        both(kind, device, monkeypatch, change)


def margin(run, step):
    run.corrector.sources[0].margin = 0.05 if step < 6 else 0.2


def moved(run, step):
    for parameter in run.model.parameters():
        parameter.data = parameter.data.clone() if step in (5, 6, 9) else parameter.data


def started_over(run, step):
    if step == 6:
        run.corrector.reset()


def resumed(run, step):
    if step == 3:
        run.saved = copy.deepcopy(run.corrector.state_dict())
    if step == 7:
        run.corrector.load_state_dict(run.saved)


def without_gradients(run, step):
    if step == 6:
        run.optimizer.zero_grad()
        run.optimizer.step()


@pytest.mark.parametrize("event", [margin, moved, started_over, resumed, without_gradients])
@pytest.mark.parametrize("kind", ["joint", "tensor", "windows", "returning"])
def test_what_changes_between_steps_is_seen(kind, event, device, monkeypatch):
    both(kind, device, monkeypatch, event=event)


@pytest.mark.parametrize(
    ("dtype", "blocks"), [(torch.float32, "joint"), (torch.bfloat16, "joint"), (torch.float32, "row")]
)
def test_gradients_are_freed_with_zero_grad(dtype, blocks, device):
    weight = nn.Parameter(torch.zeros(50, 2, dtype=dtype, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    congruency.DCL(optimizer, blocks=blocks, mode="anchor", margin=0.05)
    for _ in range(4):
        weight.grad = torch.randn_like(weight)
        gradient = weakref.ref(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        assert gradient() is None


def test_a_gradient_of_another_length_is_not_read(device):
    weight = nn.Parameter(torch.zeros(5000, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    dcl = congruency.DCL(optimizer, floor=None, attach=False)
    for _ in range(3):
        weight.grad = torch.randn(5000, device=device)
        dcl.correct()
        weight.data.add_(weight.grad)
    weight.grad.data = torch.randn(7, device=device)
    with pytest.raises(RuntimeError, match="size"):
        dcl.correct()


def test_parameters_of_another_dtype(device):
    """model.double() leaves the parameters the same objects."""
    model = nn.Linear(6, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dcl = congruency.DCL(optimizer, mode="anchor", margin=0.05)
    for kind in (torch.float32, torch.float64, torch.float32):
        model.to(kind)
        dcl.reset()
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(5, 6, dtype=kind, device=device)).square().mean().backward()
            optimizer.step()
        assert int(dcl.stats.nonfinite_steps) == 0
        assert model.weight.dtype == dcl.references._slots[model.weight][0].dtype == kind


def test_a_meter_reads_gradients_that_move(device):
    weight = nn.Parameter(torch.randn(40, device=device))
    meter, kept, values = congruency.CongruencyMeter([weight]), [], []
    start = weight.detach().clone()
    for _ in range(6):
        weight.grad = torch.randn(40, device=device)
        kept.append(weight.grad)
        meter.update()
        way = start - weight.detach()
        if way.any():
            values.append(float(nn.functional.cosine_similarity(weight.grad.double(), way.double(), dim=0)))
        weight.data.sub_(weight.grad, alpha=0.1)
    assert meter.compute().congruency == pytest.approx(sum(values) / len(values), abs=1e-6)
