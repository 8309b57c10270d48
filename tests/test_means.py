"""The running means of a corrector are the means of the single steps' stats."""

import copy
import math

import pytest
import torch
from torch import nn

import congruency

KINDS = {
    "joint": lambda optimizer: congruency.DCL(optimizer, window=7, references=2, floor=None),
    "update": lambda optimizer: congruency.DCL(optimizer, window=7, correct="update", floor=None),
    "tensor": lambda optimizer: congruency.DCL(optimizer, window=7, blocks="tensor", floor=None),
    "element": lambda optimizer: congruency.DCL(optimizer, window=7, blocks="element", floor=None),
    "cautious": congruency.Cautious,
    "two sources": lambda optimizer: congruency.Corrector(
        optimizer,
        constraints=[congruency.References(2, window=5, floor=None), congruency.References(window=9, floor=None)],
    ),
}


def run(corrector, model, optimizer, steps):
    """Train; the stats of every step."""
    found = []
    for _ in range(steps):
        inputs = torch.randn(8, 4, device=model.weight.device)
        optimizer.zero_grad()
        (model(inputs) - inputs[:, :2].flip(1)).square().mean().backward()
        optimizer.step()
        found.append(corrector.stats)
    return found


def by_hand(stats):
    """The mean over constraints and blocks of each step, and of these over the steps that have one."""
    rows = {}
    for name in ("congruency", "corrected_congruency", "magnitude", "kept"):
        values = [float(getattr(each, name).nanmean()) for each in stats]
        defined = [value for value in values if not math.isnan(value)]
        if defined:
            rows[name] = sum(defined) / len(defined)
    rows["corrected_share"] = sum(bool(each.corrected.any()) for each in stats) / len(stats)
    return {**rows, "steps": float(len(stats))}


@pytest.mark.parametrize("kind", KINDS)
def test_means_are_those_of_the_steps_since_the_last_read(kind, device):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5 * (kind in ("update", "cautious")))
    corrector = KINDS[kind](optimizer)
    assert corrector.means() == {"steps": 0.0}
    for steps in (30, 1, 300):  # the last are more than are held at once
        expected = by_hand(run(corrector, model, optimizer, steps))
        assert corrector.means() == pytest.approx(expected, rel=1e-9)
    assert corrector.means() == {"steps": 0.0}


def test_means_start_over_with_a_loaded_state():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    dcl = congruency.DCL(optimizer, window=7)
    run(dcl, model, optimizer, 5)
    state = copy.deepcopy(dcl.state_dict())
    run(dcl, model, optimizer, 5)
    dcl.load_state_dict(state)
    assert dcl.means() == {"steps": 0.0}
    assert dcl.stats.steps == 5
    assert copy.deepcopy(dcl).means() == {"steps": 0.0}


def test_a_steps_numbers_as_a_dict():
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    dcl = congruency.DCL(optimizer, floor=None)
    counts = {"corrected_steps": 0.0, "nonfinite_steps": 0.0}
    assert dcl.stats.to_dict() == {"steps": 0.0, **counts}  # nothing is known yet
    for gradient in ([1.0, 0.0], [-1.0, 1.0]):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    found = dcl.stats.to_dict()
    assert all(type(value) is float for value in found.values())
    assert found == pytest.approx({
        "congruency": -math.sqrt(0.5), "corrected_congruency": 0.0, "magnitude": 1.0, "steps": 2.0,
        "corrected_steps": 1.0, "nonfinite_steps": 0.0,
    })  # fmt: skip


@pytest.mark.parametrize("kind", ["DCL", "Cautious"])
def test_steps_whose_gradients_stay_where_they_are(device, kind):
    """What is prepared is then used again, results and all: each step must be taken note of before the next."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(6, 4, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.5)
    own = {"floor": None, "attach": True} if kind == "DCL" else {}
    corrector = getattr(congruency, kind)(optimizer, **own)
    magnitudes = []
    for _ in range(9):
        optimizer.zero_grad(set_to_none=False)
        (weight * torch.randn(6, 4).to(device)).sum().backward()
        optimizer.step()
        magnitude = float(corrector.stats.magnitude.mean())
        if not math.isnan(magnitude):
            magnitudes.append(magnitude)
    assert len(set(magnitudes)) == len(magnitudes) >= 8
    assert corrector.means()["magnitude"] == pytest.approx(sum(magnitudes) / len(magnitudes), rel=1e-9)
