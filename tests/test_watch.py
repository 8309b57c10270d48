"""The warning that nearly every step is corrected."""

import warnings

import pytest
import torch

import congruency
from congruency.watch import Watch


def descend(steps, gradient_of, device="cpu", **settings):
    """Train one vector with given gradients; the corrector."""
    weight = torch.nn.Parameter(torch.zeros(4, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    dcl = congruency.DCL(optimizer, window=10, floor=None, **settings)
    for step in range(steps):
        weight.grad = gradient_of(step).to(device)
        optimizer.step()
    return dcl


def back_and_forth(step):
    """Each window starts along one axis; after that the gradient points back along it."""
    return torch.tensor([-1.0 if step % 10 == 0 else 1.0, 0, 0, 0])


def test_warns_once_when_nearly_every_step_is_corrected(device):
    with pytest.warns(UserWarning, match=r"DCL changed 100% of the last 100 gradients.*Cautious") as caught:
        descend(2000, back_and_forth, device)  # on a GPU the counter arrives a little later
    assert len(caught) == 1


def test_nothing_is_asked_of_the_device_while_a_graph_is_captured(monkeypatch):
    """A query would end the capture; the look is made at the next step outside of it."""

    class Event:
        def query(self):
            assert not torch.cuda.is_current_stream_capturing()
            return True

    watch = Watch(2, 0.9, "{share} of {steps}")
    watch._pending = (torch.tensor(2), Event(), 2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    watch.note(2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.warns(UserWarning, match="100% of 2"):
        watch.note(2)


@pytest.mark.parametrize("settings", [{"mode": "anchor"}, {"blocks": "tensor"}], ids=str)
def test_only_where_concentration_can_remove_the_restoring_force(settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        descend(400, back_and_forth, **settings)


def test_silent_where_few_steps_are_corrected():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dcl = descend(400, lambda step: torch.tensor([1.0 if step % 10 == 9 else -1.0, 0.1, 0, 0]))
    assert 0 < int(dcl.stats.corrected_steps) < 100
