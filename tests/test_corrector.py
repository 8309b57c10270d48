"""The engine behind DCL: several constraint sources, bad input, memory."""

import warnings

import pytest
import torch
from problems import LargestResult, loss_of, network, train
from torch import nn

import congruency
from congruency.backends import torch as torch_backend


def sgd(**kwargs):
    return torch.optim.SGD(network().parameters(), lr=0.1, **kwargs)


def test_two_sources_are_one_problem():
    """References and memory gradients together (eq. 10) equal one projection against all rows, margins row by row."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    memory = congruency.Directions(margin=0.5)
    references = congruency.References(2, margin=0.1, mode="anchor")
    corrector = congruency.Corrector(optimizer, constraints=[references, memory])
    params = list(model.parameters())
    for step in range(8):
        past = [torch.autograd.grad(loss_of(model, 100 + k), params) for k in range(3)]
        memory.set(past, params)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        g = torch.cat([p.grad.flatten() for p in params])
        w = torch.cat([p.detach().flatten() for p in params])
        memory_rows = torch.stack([torch.cat([t.flatten() for t in one]) for one in past])
        slots = references._slots
        optimizer.step()
        x = torch.cat([p.grad.flatten() for p in params])
        constraints, margins = memory_rows, [0.5] * 3
        if step >= 2:
            points = torch.stack([torch.cat([slots[p][i].flatten() for p in params]) for i in range(2)])
            constraints, margins = torch.cat([w - points, memory_rows]), [0.1] * 2 + margins
        expected = congruency.project(g, constraints, torch.tensor(margins, dtype=torch.float64))
        torch.testing.assert_close(x, expected)
        assert torch.isnan(corrector.stats.congruency).tolist() == [step < 2] * 2 + [False] * 3
    before = corrector.stats.multipliers
    memory.set([], [])
    assert memory.active == 0
    assert torch.equal(corrector.stats.multipliers, before)  # still the last step's


def test_a_source_of_another_shape_is_refused_before_anything_is_read():
    class Short(congruency.Directions):
        def basis(self, parameter):
            return congruency.Basis([torch.zeros(2, dtype=torch.float64)])

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    source = Short()
    source.set([[torch.ones_like(p) for p in model.parameters()]], list(model.parameters()))
    congruency.Corrector(optimizer, constraints=[source])
    loss_of(model, 0).backward()
    with pytest.raises(ValueError, match=r"shape \(2,\) for a parameter whose gradient here has shape \(5, 4\)"):
        optimizer.step()


def test_a_source_with_too_few_vectors_is_refused():
    class Few(congruency.Directions):
        def basis(self, parameter):
            return congruency.Basis([parameter.detach()], chained=True)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    source = Few()
    source.set([[torch.ones_like(p) for p in model.parameters()]], list(model.parameters()))
    congruency.Corrector(optimizer, constraints=[source])
    loss_of(model, 0).backward()
    with pytest.raises(ValueError, match=r"Few has 1 active constraint\(s\) and gave 0 basis vector\(s\)"):
        optimizer.step()


def test_references_that_restart_beside_another_source_forget_their_distances():
    """A direction that no gradient opposes changes nothing: not which steps count as returning either."""

    def path(*others):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        references = congruency.References(window=8, floor=1.0)
        corrector = congruency.Corrector(optimizer, constraints=[references, *others])
        for other in others:
            other.set([[torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)]], [weight])
        points = []
        for _ in range(200):
            weight.grad = torch.randn(3, dtype=torch.float64)
            weight.grad[2].abs_().mul_(0.01)
            optimizer.step()
            points.append(weight.detach().clone())
        return torch.stack(points), int(corrector.stats.corrected_steps)

    alone, corrected = path()
    beside, _ = path(congruency.Directions())
    assert corrected > 10
    torch.testing.assert_close(beside, alone, rtol=1e-9, atol=1e-9)


class Gated(congruency.ConstraintSource):
    """The i-th unit vector, while the gate is open."""

    capacity = active = 1
    layout = "in one place"

    def __init__(self, i, device):
        self.gate = torch.zeros((), dtype=torch.bool, device=device)
        self.vector = torch.eye(2, device=device)[i]

    def combination(self):
        return torch.ones(1, 1, dtype=torch.float64)

    def basis(self, parameter):
        return congruency.Basis([self.vector])

    def settings(self):
        return {"source": "gated"}


@pytest.mark.parametrize("count", [1, 2])
def test_gates_that_change_between_steps_are_seen(count, device):
    weight = nn.Parameter(torch.zeros(2, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    sources = [Gated(i, device) for i in range(count)]
    corrector = congruency.Corrector(optimizer, constraints=sources)
    for step in range(4):
        for i, source in enumerate(sources):
            source.gate.fill_(step % 2 != i)
        weight.grad = torch.full_like(weight, -1.0)
        optimizer.step()
        assert weight.grad.tolist() == [0.0 if i < count and step % 2 != i else -1.0 for i in range(2)]
    assert int(corrector.stats.steps) == 4


@pytest.mark.parametrize(
    ("settings", "change", "before", "after"),
    [
        ({"floor": 1.0, "returning": False}, {"floor": 0.1}, [0.0, 1.0], [-1.0, 1.0]),
        ({"floor": None, "margin": 0.0}, {"margin": 2.0}, [0.0, 1.0], [1.0, 1.0]),
        ({"blocks": "element", "margin": 0.0}, {"margin": 2.0}, [0.0, 1.0], [1.0, 1.0]),
    ],
    ids=str,
)
def test_settings_that_change_between_steps_are_seen(settings, change, before, after, device):
    weight = nn.Parameter(torch.zeros(2, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    dcl = congruency.DCL(optimizer, **settings)
    optimizer.step()
    weight.data -= torch.tensor([1.0, 0.0], device=device)  # so that a = (1, 0)
    for expected in (before, before, after):
        if expected is after:
            vars(dcl.references).update(change)
        weight.grad = torch.tensor([-1.0, 1.0], device=device)
        optimizer.step()
        assert weight.grad.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"window": 0}, ValueError, "window must be a positive whole number of steps or None, got 0"),
        ({"window": -3}, ValueError, "window must be a positive whole number of steps or None, got -3"),
        ({"window": 2.5}, TypeError, "window must be a positive whole number of steps or None, got 2.5"),
        ({"window": True}, TypeError, "window must be a positive whole number of steps or None, got True"),
        ({"window": 5, "offset": 5}, ValueError, r"offset must be below the window \(5\), got 5"),
        ({"offset": -1}, ValueError, "offset must be a non-negative number of steps, got -1"),
        ({"references": 0}, ValueError, "references must be a positive whole number, got 0"),
        ({"references": 1.0}, TypeError, "references must be a positive whole number, got 1.0"),
        ({"references": 65}, ValueError, "references must be at most 64, got 65"),
        ({"mode": "concentrated"}, ValueError, "mode must be one of 'concentrate', 'anchor', got 'concentrated'"),
        ({"margin": -0.1}, ValueError, "margin must be finite and at least 0, got -0.1"),
        ({"margin": float("nan")}, ValueError, "margin must be finite and at least 0, got nan"),
        ({"margin": "0.5"}, TypeError, "margin must be a number, got '0.5'"),
        ({"trigger": "sometimes"}, ValueError, "trigger must be one of 'always', 'violated', got 'sometimes'"),
        ({"blocks": "layer"}, ValueError, "blocks must be one of 'joint', 'group', 'tensor', 'row', 'element', got"),
        ({"accumulate": "steps"}, ValueError, "accumulate must be one of 'weights', 'gradients', got 'steps'"),
        ({"params": []}, ValueError, "params is empty; pass at least one parameter, or None"),
        (
            {"params": [torch.zeros(3, requires_grad=True)]},
            ValueError,
            "1 of 1 params are not in the optimizer.*add_param_group",
        ),
        (
            {"params": network()},
            TypeError,
            r"params must be an iterable of parameters, got a Sequential; .*parameters\(\)",
        ),
        ({"params": nn.Parameter(torch.zeros(3))}, TypeError, "got a Parameter; pass \\[parameter\\]"),
        ({"params": network().named_parameters()}, TypeError, "params must hold tensors, got a tuple"),
    ],
)
def test_bad_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        congruency.DCL(sgd(), **settings)


def test_bad_optimizers_are_refused():
    with pytest.raises(TypeError, match=r"LBFGS is not supported.*use a first-order optimizer"):
        congruency.DCL(torch.optim.LBFGS(network().parameters()))
    with pytest.raises(TypeError, match=r"optimizer must be a torch.optim.Optimizer, got Sequential"):
        congruency.DCL(network())


def test_complex_parameters_are_refused_also_when_they_join():
    with pytest.raises(TypeError, match=r"parameter 0 is complex .*view_as_real"):
        congruency.DCL(torch.optim.SGD([nn.Parameter(torch.zeros(2, dtype=torch.complex64))]))
    optimizer = sgd()
    congruency.DCL(optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, dtype=torch.complex64))]})
    with pytest.raises(TypeError, match="parameter 4 is complex"):
        optimizer.step()


def test_bad_constraints_are_refused():
    with pytest.raises(ValueError, match="constraints is empty"):
        congruency.Corrector(sgd(), constraints=[])
    with pytest.raises(TypeError, match=r"constraints must be an iterable of constraint sources; pass \[source\]"):
        congruency.Corrector(sgd(), constraints=congruency.References())
    with pytest.raises(TypeError, match=r"hold congruency.ConstraintSource objects, such as .*, got .references"):
        congruency.Corrector(sgd(), constraints=["references"])
    with pytest.raises(TypeError, match="constraints"):
        congruency.Corrector(sgd())


@pytest.mark.parametrize(
    ("window", "references", "warns"), [(1, 1, True), (3, 3, True), (4, 3, False), (None, 5, False)]
)
def test_windows_that_never_correct_are_named(window, references, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        congruency.DCL(sgd(), window=window, references=references)
    messages = [str(w.message) for w in caught]
    assert any("never corrects anything" in m for m in messages) == warns
    if warns:
        assert caught[0].filename == __file__  # points at the user's line


def test_window_one_never_corrects():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with pytest.warns(UserWarning, match="never corrects"):
        dcl = congruency.DCL(optimizer, window=1)
    train(model, optimizer, range(10))
    assert int(dcl.stats.corrected_steps) == 0


def test_sparse_gradient_changes_nothing_before_it_is_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    dcl = congruency.DCL(optimizer)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="sparse"):
        optimizer.step()
    assert dcl.stats.steps == 0


def test_a_parameter_that_moves_to_another_group_is_seen():
    """Also where the order of all parameters stays the same."""
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": weights[:2]}, {"params": weights[2:]}], lr=1.0)
    dcl = congruency.DCL(optimizer, blocks="group", floor=None)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones(1)
        optimizer.step()
    assert dcl.stats.magnitude.flatten().tolist() == pytest.approx([2**0.5, 1.0])
    optimizer.param_groups[1]["params"].insert(0, optimizer.param_groups[0]["params"].pop())
    optimizer.step()
    assert dcl.stats.magnitude.flatten().tolist() == pytest.approx([2.0, 8**0.5])


def test_parameters_without_rows_have_nothing_to_correct(device):
    weight = nn.Parameter(torch.zeros(0, 3, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    dcl = congruency.DCL(optimizer, blocks="row", mode="anchor", margin=0.1)
    for _ in range(3):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    assert dcl.stats.congruency.shape == (0, 1)
    assert (int(dcl.stats.steps), int(dcl.stats.corrected_steps)) == (3, 0)


def test_a_parameter_without_rows_leaves_the_others_alone():
    """Its rows would begin where those of the next parameter do."""

    def path(*others):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        dcl = congruency.DCL(optimizer := torch.optim.SGD([*others, weight], lr=1.0), window=8, floor=1.0, blocks="row")
        points = []
        for step in range(100):
            weight.grad = torch.randn(3, dtype=torch.float64)
            for other in others:
                other.grad = torch.zeros_like(other) if step % 2 else None
            optimizer.step()
            points.append(weight.detach().clone())
        return torch.stack(points), int(dcl.stats.corrected_steps)

    alone, corrected = path()
    beside, _ = path(nn.Parameter(torch.zeros(0, dtype=torch.float64)))
    assert corrected > 10
    assert torch.equal(beside, alone)


def test_step_without_any_gradient_counts():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    dcl = congruency.DCL(optimizer)
    optimizer.step()
    assert all(p.grad is None for p in model.parameters())
    assert dcl.stats.steps == 1


@pytest.mark.parametrize("accumulate", ["weights", "gradients"])
@pytest.mark.parametrize("references", [1, 3])
def test_memory_is_the_references_and_nothing_else(references, accumulate):
    size = 3 * torch_backend._HOST_CHUNK
    p = nn.Parameter(torch.randn(size))
    optimizer = torch.optim.SGD([p], lr=0.1)
    dcl = congruency.DCL(optimizer, references=references, accumulate=accumulate, mode="anchor", margin=0.1)
    for _ in range(references + 1):  # the slots are made in the first step
        p.grad = torch.randn(size)
        optimizer.step()
    held = [slot for slots in dcl.sources[0]._slots.values() for slot in slots]
    assert sum(slot.untyped_storage().nbytes() for slot in held) == references * size * 4
    p.grad = torch.randn(size)
    dcl.detach()
    with LargestResult() as mode:
        dcl.correct()
    assert bool(dcl.stats.corrected)
    assert mode.largest <= torch_backend._HOST_CHUNK * 8 * 2  # one chunk of scratch, whatever the model's size


def test_the_kept_share_survives_zero_grad():
    """It is of the step that was made, whatever has become of the gradients since."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    cautious = congruency.Cautious(optimizer)
    train(model, optimizer, range(5))
    before = cautious.stats
    optimizer.zero_grad()
    after = cautious.stats
    assert 0 < before.kept < 1
    assert (after.kept, after.corrected) == (before.kept, before.corrected)
