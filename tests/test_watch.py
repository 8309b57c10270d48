"""The warnings that nearly every step is corrected, and that none is."""

import warnings

import pytest
import torch

import congruency
from congruency.step.watch import Watch


def descend(steps, gradient_of, device="cpu", state=None, **settings):
    """Train one vector with given gradients; the corrector."""
    weight = torch.nn.Parameter(torch.zeros(4, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    dcl = congruency.DCL(optimizer, window=10, floor=None, **settings)
    if state is not None:
        dcl.load_state_dict(state)
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


def test_corrections_by_other_constraints_are_not_blamed_on_dcl(device):
    """Beside an episodic memory, say, which may well correct every step."""
    weight = torch.nn.Parameter(torch.zeros(2, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    never_up = congruency.Directions()
    never_up.set([[torch.tensor([-1.0, 0.0], device=device)]], [weight])
    corrector = congruency.Corrector(optimizer, constraints=[congruency.References(window=10, floor=None), never_up])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(300):
            weight.grad = torch.tensor([1.0, 1.0], device=device)
            optimizer.step()
    assert corrector.stats.corrected_steps == 300


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


def test_a_resumed_run_is_watched_from_where_it_resumes():
    """What was corrected, or not finite, before the checkpoint is no step of the resumed run."""
    dcl = descend(100, back_and_forth)
    for kind in ("corrected", "nonfinite"):
        state = dcl.state_dict()
        state["counts"] = {**state["counts"], kind: 5000}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            descend(400, lambda step: torch.tensor([-1.0, 0.1, 0, 0]), state=state)
    with pytest.warns(UserWarning, match="changed 100% of the last 100 gradients"):
        descend(400, back_and_forth, state=state)


def test_warns_once_where_nothing_is_corrected(device):
    onward = torch.tensor([-1.0, 0.1, 0, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        descend(1000, lambda step: onward, device)  # 900 of them could be corrected
        descend(2000, lambda step: -onward if step == 9 else onward, device)
    with pytest.warns(UserWarning, match=r"changed none of 1000 gradients.*no effect so far.*Cautious") as caught:
        descend(4000, lambda step: onward, device)
    assert len(caught) == 1


@pytest.mark.parametrize(("momentum", "count"), [(0.0, 1), (0.9, 0)])
def test_warns_once_where_cautious_has_nothing_to_do(momentum, count, device):
    """Without momentum RMSprop divides each gradient by a positive number: its update never opposes the gradient."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.RMSprop([weight], lr=1e-4, momentum=momentum)
    cautious = congruency.Cautious(optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2500):
            weight.grad = torch.randn(4).to(device)
            optimizer.step()
    assert len(caught) == count
    assert all("Cautious changed nothing in 1000 steps" in str(warning.message) for warning in caught)
    assert bool(cautious.stats.corrected_steps == 0) == bool(count)
