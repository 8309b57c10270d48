"""What changes between two steps counts in the next one, however much of it was prepared before."""

import pytest
import torch
from problems import parameter, step
from torch import nn

import congruency
from congruency.step.counts import Counts


class Axes(congruency.ConstraintSource):
    """The first ``active`` axes, in memory that stays where it is."""

    capacity = active = 1
    layout: object = "in one place"
    factor = 1.0

    def __init__(self):
        self.axes = list(torch.eye(2, dtype=torch.float64))

    def combination(self):
        return self.factor * torch.eye(self.active, dtype=torch.float64)

    def basis(self, parameter):
        return congruency.Basis(self.axes[: self.active])

    def settings(self):
        return {"source": "axes"}


def constrained(source, **settings):
    weight = parameter(0.0, 0.0)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    congruency.Corrector(optimizer, constraints=[source], **settings)
    for _ in range(2):
        step(optimizer, [-1.0, -1.0])
    assert weight.grad.tolist() == [0.0, -1.0]
    return weight, optimizer


def test_a_gate_that_a_source_has_from_now_on(device):
    source = Axes()
    weight, optimizer = constrained(source)
    source.gate = torch.tensor(False)
    step(optimizer, [-1.0, -1.0])
    assert weight.grad.tolist() == [-1.0, -1.0]


def test_another_number_of_constraints():
    source = Axes()
    weight, optimizer = constrained(source)
    for count, expected in ((2, [0.0, 0.0]), (1, [0.0, -1.0]), (0, [-1.0, -1.0]), (2, [0.0, 0.0])):
        source.active = count
        step(optimizer, [-1.0, -1.0])
        assert weight.grad.tolist() == expected


@pytest.mark.parametrize("blocks", ["joint", "element"])
def test_another_combination_of_a_source_whose_layout_is_not_known(blocks):
    source = Axes()
    source.layout = None
    weight, optimizer = constrained(source, blocks=blocks)
    source.factor = -1.0
    step(optimizer, [-1.0, -1.0])
    assert weight.grad.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("blocks", ["joint", "element"])
def test_a_source_that_gives_the_gradient_itself(blocks, device):
    """Where the gradient lies elsewhere in the next step, so does the source's vector."""

    class Opposite(Axes):
        layout = "the gradient"
        factor = -1.0

        def basis(self, parameter):
            return congruency.Basis([parameter.grad])

    weight = nn.Parameter(torch.zeros(50, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    congruency.Corrector(optimizer, constraints=[Opposite()], blocks=blocks)
    kept = []
    for _ in range(4):
        weight.grad = torch.randn_like(weight)
        kept.append(weight.grad)
        optimizer.step()
        assert weight.grad.abs().max() < 1e-6


def test_returning_that_is_switched():
    weight = parameter(0.0, 0.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    dcl = congruency.DCL(optimizer, floor=1.0)
    for _ in range(3):
        step(optimizer, [-1.0, 0.0])
    dcl.references.returning = False
    step(optimizer, [1.0, 1.0])  # the weights moved away in the step before
    assert weight.grad.tolist() == pytest.approx([0.0, 1.0])
    dcl.references.returning = True
    step(optimizer, [1.0, 1.0])  # how far they were is not known
    assert weight.grad.tolist() == [1.0, 1.0]


def test_a_source_without_a_floor_compares_no_distances():
    weight = parameter(0.0, 0.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    first, second = congruency.References(floor=1.0), congruency.References(floor=1.0)
    congruency.Corrector(optimizer, constraints=[first, second])
    first.floor = None
    for _ in range(3):
        step(optimizer, [-1.0, 0.0])
    step(optimizer, [1.0, 1.0])
    assert weight.grad.tolist() == pytest.approx([0.0, 1.0])


def test_distances_over_other_parameters_are_not_compared():
    """A parameter that leaves a group takes its distance along, and the weights have not come back."""
    near, far, other = parameter(0.0, 0.0), parameter(0.0), parameter(0.0)
    optimizer = torch.optim.SGD([{"params": [near, far]}, {"params": [other]}], lr=1.0)
    congruency.DCL(optimizer, floor=1.0, blocks="group")
    for _ in range(2):
        step(optimizer, [-1.0, 0.0], [-9.0], [0.0])
    optimizer.param_groups[1]["params"].insert(0, optimizer.param_groups[0]["params"].pop())
    step(optimizer, [1.0, 1.0], [0.0], [0.0])
    assert near.grad.tolist() == [1.0, 1.0]


def test_a_parameter_that_a_group_has_twice_counts_once():
    weight = parameter(0.0, 0.0)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.SGD([weight, weight], lr=0.0)
    congruency.Corrector(optimizer, constraints=[Axes()])
    weight.grad = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    optimizer.step()
    assert weight.grad.tolist() == [0.0, 1.0]


def test_weights_that_lie_in_another_order_in_the_same_memory(device):
    weight = nn.Parameter(torch.zeros(2, 2, device=device))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    dcl = congruency.DCL(optimizer, floor=None)
    meter = congruency.CongruencyMeter([weight])
    for gradient in ([[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [-1.0, 0.0]]):
        weight.grad = torch.tensor(gradient, device=device)
        if weight.grad[1, 0]:
            weight.data = weight.data.t()  # from (0, 1) to (1, 0): the gradient points back
        meter.reset()
        meter.update()
        optimizer.step()
    assert float(dcl.stats.congruency) == pytest.approx(-1.0)
    assert meter.compute().congruency == pytest.approx(-1.0)


@pytest.mark.parametrize("accumulate", ["weights", "gradients"])
def test_recording_starts_over_with_the_parameters_as_they_are(accumulate):
    """In their precision, and without those that are gone."""
    stays, goes = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([stays, goes], lr=0.1)
    dcl = congruency.DCL(optimizer, window=3, accumulate=accumulate)
    step(optimizer, [1.0, 2.0, 3.0], [1.0, 1.0])
    stays.data, stays.grad = stays.data.double(), None
    optimizer.param_groups[0]["params"].pop()
    dcl.reset()
    step(optimizer, [1.0, 2.0, 3.0])
    (held,) = dcl.state_dict()["sources"][0]["slots"].values()
    assert held[0].dtype is torch.float64
    assert dcl.references._slots.keys() == {stays}


def test_a_skipped_step_leaves_the_momentum_as_it_was():
    weight = parameter(0.0, 0.0)
    optimizer = torch.optim.AdamW([weight], lr=1.0, fused=True)
    directions = congruency.Directions()
    congruency.Corrector(optimizer, constraints=[directions], correct="update")
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(0.0)  # as GradScaler sets them
    step(optimizer, [-1.0, 1.0])
    before = optimizer.state[weight]["exp_avg"].clone()
    directions.set([[torch.tensor([1.0, 0.0], dtype=torch.float64)]], [weight])
    optimizer.found_inf.fill_(1.0)
    step(optimizer, [torch.inf, 1.0])
    assert torch.equal(optimizer.state[weight]["exp_avg"], before)
    optimizer.found_inf.zero_()
    step(optimizer, [-1.0, 1.0])
    assert float(optimizer.state[weight]["exp_avg"][0]) == 0.0


def test_decay_is_as_precise_with_a_scaler():
    """The optimizer's factor is a double's; in single precision a part of the decay would count as an update."""
    weight = parameter(1.0, 1.0)
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5, eps=1e-30, fused=True)
    corrector = congruency.Corrector(optimizer, constraints=[congruency.Descent()], correct="update")
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    step(optimizer, [0.0, 1.0])
    assert float(corrector._solution.gradient_norm2) == pytest.approx(0.1**2, rel=1e-12)


def test_what_corrects_gradients_is_made_before_what_corrects_updates():
    weight = parameter(0.0)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    congruency.Cautious(optimizer)
    directions = congruency.Directions()
    congruency.Corrector(optimizer, constraints=[directions])
    directions.set([[torch.ones(1, dtype=torch.float64)]], [weight])
    with pytest.raises(RuntimeError, match="make what corrects gradients before what corrects updates"):
        step(optimizer, [-1.0])


def test_the_device_counts_steps_from_the_first_with_a_gate():
    """The host knows of those before, and of those without a solution."""
    counts = Counts()
    counts._tally = torch.zeros(4, dtype=torch.int64)

    def taken(*, solved, gated):
        if solved:  # as the kernel that solves does
            counts._tally[3] += 1
        counts.add_step(solved=solved, gated=gated)
        return int(counts.steps)

    steps = [(False, False), (True, False), (False, False), (True, True), (False, True), (True, True), (True, False)]
    assert [taken(solved=solved, gated=gated) for solved, gated in steps] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("correct", ["gradient", "update"])
def test_a_parameter_of_another_shape_is_refused_until_recording_starts_over(correct, device):
    weight = nn.Parameter(torch.zeros(5, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    dcl = congruency.DCL(optimizer, floor=None, correct=correct)
    for length in (5, 5, 3):
        weight.grad, weight.data = None, torch.zeros(length, device=device)
        weight.grad = torch.ones_like(weight)
        if length == 3:
            with pytest.raises(ValueError, match=r"of shape \(5,\) for a parameter .* shape \(3,\)"):
                optimizer.step()
            dcl.reset()
        optimizer.step()
    assert weight.tolist() == pytest.approx([-0.2 if correct == "update" else -0.1] * 3)
