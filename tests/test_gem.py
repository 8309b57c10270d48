"""GEM inside optimizer.step(): against projections, quadprog, and GEM written out the straightforward way."""

import copy
import io

import numpy as np
import pytest
import torch
from oracles import solve_dual_by_quadprog
from problems import weights
from torch import nn
from torch.nn import functional

import congruency


def network(dtype=torch.float64):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 4)).to(dtype)


def normalised():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 4)).double()


def stream(tasks=4, batches=5, size=6, dtype=torch.float64):
    """Tasks that quarrel: each has a rule of its own to tell four classes apart."""
    generator = torch.Generator().manual_seed(11)
    for task in range(tasks):
        rule = torch.randn(8, 4, generator=generator)
        for _ in range(batches):
            inputs = torch.randn(size, 8, generator=generator)
            yield task, inputs.to(dtype), (inputs @ rule).argmax(-1)


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def slow_rows(model, kept):
    """A backward for every past task."""
    rows = []
    for inputs, targets in kept:
        twin = copy.deepcopy(model)
        loss = functional.cross_entropy(twin(inputs), targets)
        rows.append(flat(torch.autograd.grad(loss, list(twin.parameters()))))
    return torch.stack(rows)


class Straightforward:
    """GEM as its authors wrote it down: rows in a matrix, the dual by quadprog, only where a product is negative."""

    def __init__(self, model, lr, size, margin):
        self.model, self.lr, self.size, self.margin = model, lr, size, margin
        self.kept, self.solved = {}, 0

    def step(self, task, inputs, targets):
        x, y = self.kept.get(task, (inputs[:0], targets[:0]))
        self.kept[task] = torch.cat([x, inputs])[-self.size :], torch.cat([y, targets])[-self.size :]
        past = [self.kept[k] for k in self.kept if k != task]
        matrix = slow_rows(self.model, past).numpy() if past else np.zeros((0, 0))
        self.model.zero_grad()
        functional.cross_entropy(self.model(inputs), targets).backward()
        gradient = flat(p.grad for p in self.model.parameters()).numpy()
        if past and (matrix @ gradient < 0).any():
            v = solve_dual_by_quadprog(matrix @ matrix.T, matrix @ gradient, np.full(len(past), self.margin))
            gradient = gradient + v @ matrix
            self.solved += 1
        start = 0
        with torch.no_grad():
            for p in self.model.parameters():
                p -= self.lr * torch.from_numpy(gradient[start : start + p.numel()]).view_as(p)
                start += p.numel()


@pytest.mark.parametrize("margin", [0.5, 0.0])
@pytest.mark.parametrize("make", [network, normalised])
def test_the_weights_are_those_of_the_straightforward_way(make, margin):
    model = make()
    slow = Straightforward(copy.deepcopy(model), 0.1, 10, margin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gem = congruency.GEM(optimizer, model=model, size=10, margin=margin)
    for task, inputs, targets in stream(tasks=5):
        gem.observe(inputs, targets, task)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        slow.step(task, inputs, targets)
        torch.testing.assert_close(weights(model), weights(slow.model), rtol=0, atol=1e-6)
    for found, wanted in zip(model.buffers(), slow.model.buffers(), strict=True):
        torch.testing.assert_close(found, wanted)
    assert int(gem.stats.corrected_steps) == slow.solved
    assert slow.solved > 5


@pytest.mark.parametrize("trigger", ["violated", "always"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("make", [network, normalised])
def test_the_corrected_gradient_is_the_projection(make, margin, trigger):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gem = congruency.GEM(optimizer, model=model, size=9, policy="first", margin=margin, trigger=trigger)
    kept, turned = {}, 0
    for task, inputs, targets in stream():
        x, y = kept.get(task, (inputs[:0], targets[:0]))
        kept[task] = torch.cat([x, inputs])[:9], torch.cat([y, targets])[:9]
        gem.observe(inputs, targets, task)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        past = [kept[k] for k in kept if k != task]
        g = flat(p.grad for p in model.parameters())
        rows = slow_rows(model, past) if past else g.new_zeros(0, len(g))
        optimizer.step()
        x = flat(p.grad for p in model.parameters())
        if not past or (trigger == "violated" and not (rows @ g < 0).any()):
            assert torch.equal(x, g)
            continue
        turned += 1
        torch.testing.assert_close(x, congruency.project(g, rows, margin), rtol=1e-9, atol=1e-12)
        assert (rows @ x >= -1e-12 * rows.norm(dim=1) * g.norm()).all()  # no past loss rises, to first order
        v = solve_dual_by_quadprog((rows @ rows.T).numpy(), (rows @ g).numpy(), np.full(len(past), margin))
        torch.testing.assert_close(x, g + torch.from_numpy(v) @ rows, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(gem.stats.multipliers, torch.from_numpy(v), rtol=1e-6, atol=1e-8)
        assert (gem.stats.multipliers >= margin).all()
    assert turned > 5


def test_past_losses_do_not_rise():
    """With a small step, where the first order is all there is; without GEM they do."""
    rises = []
    for corrected in (True, False):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        gem = congruency.GEM(optimizer, model=model, size=30, margin=0.0)
        if not corrected:
            gem.detach()
        for task, inputs, targets in stream(tasks=3):
            gem.observe(inputs, targets, task)
            past = [gem.memory._episodes[k] for k in gem.memory.past]
            before = [functional.cross_entropy(model(e.inputs), e.targets) for e in past]
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            after = [functional.cross_entropy(model(e.inputs), e.targets) for e in past]
            rises += [(corrected, float((b - a).detach())) for a, b in zip(before, after, strict=True)]
    assert max(rise for corrected, rise in rises if corrected) < 1e-7
    assert max(rise for corrected, rise in rises if not corrected) > 1e-5


def test_defaults_are_those_of_gem():
    model = network()
    gem = congruency.GEM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    assert (gem.memory.size, gem.memory.policy, gem.memory.margin) == (256, "ring", 0.5)
    assert gem.trigger == "violated"


def trained(model, gem, optimizer, steps):
    path = []
    for task, inputs, targets in steps:
        gem.observe(inputs, targets, task)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        path.append(weights(model))
    return path


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_tasks_some_at_a_time(chunk):
    paths = []
    for size in (None, chunk):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gem = congruency.GEM(optimizer, model=model, size=8, chunk=size)
        paths.append(trained(model, gem, optimizer, stream(tasks=5)))
    torch.testing.assert_close(torch.stack(paths[0]), torch.stack(paths[1]), rtol=1e-9, atol=1e-12)


def test_the_order_of_hooks_and_by_hand_are_the_same():
    paths = []
    for attach in (True, False):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gem = congruency.GEM(optimizer, model=model, size=8, attach=attach)
        if not attach:
            optimizer.register_step_pre_hook(lambda *_, gem=gem: gem.correct())
        paths.append(torch.stack(trained(model, gem, optimizer, stream())))
    assert torch.equal(*paths)


@pytest.mark.parametrize("policy", ["ring", "first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_state_resumes_bit_for_bit(dtype, policy):
    steps = list(stream(dtype=dtype))

    def fresh():
        model = network(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        return model, congruency.GEM(optimizer, model=model, size=8, policy=policy), optimizer

    whole = trained(*fresh(), steps)
    for stop in (0, 3, 5, 12):  # before anything, within a task, at a boundary, late
        model, gem, optimizer = fresh()
        trained(model, gem, optimizer, steps[:stop])
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (model, gem, optimizer)], file)
        file.seek(0)
        resumed = fresh()
        for part, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(state)
        assert resumed[1].memory.past == gem.memory.past
        path = trained(*resumed, steps[stop:])
        assert all(torch.equal(a, b) for a, b in zip(path, whole[stop:], strict=True))
        assert int(resumed[1].stats.corrected_steps) > 0


def test_masks_are_saved():
    model = network()
    gem = congruency.GEM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    mask = torch.tensor([0.0, 0.0, -torch.inf, -torch.inf], dtype=torch.float64)
    inputs = torch.randn(5, 8, dtype=torch.float64)
    gem.observe(inputs, torch.tensor([0, 1, 0, 1, 0]), 4, mask)
    gem.observe(inputs, torch.tensor([0, 1, 0, 1, 0]), 5)
    other = congruency.GEM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    other.load_state_dict(gem.state_dict())
    assert other.memory.past == [4]
    for name, rows in gem.memory.gradients().items():
        assert torch.equal(rows, other.memory.gradients()[name])
    assert not gem.memory.gradients()["2.bias"][0, 2:].any()  # a class out of the mask learns nothing


@pytest.mark.parametrize("change", [{"size": 7}, {"policy": "first"}, {"margin": 0.4}, {"trigger": "always"}], ids=str)
def test_a_state_of_other_settings_is_refused(change):
    def made(**settings):
        model = network()
        return congruency.GEM(torch.optim.SGD(model.parameters(), lr=0.1), model=model, **{"size": 8, **settings})

    (name,) = change
    with pytest.raises(ValueError, match=f"{name} was .* when this state was saved and is .* here"):
        made(**change).load_state_dict(made().state_dict())


def test_some_of_the_parameters():
    """Only the last layer is corrected, by its own part of the rows; the rest keeps its gradient."""
    model = network()
    last = list(model[2].parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gem = congruency.GEM(optimizer, last, model=model, margin=0.0)
    turned = 0
    for task, inputs, targets in stream():
        gem.observe(inputs, targets, task)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        g = flat(p.grad for p in model.parameters())
        size = sum(p.numel() for p in last)
        rows = [(e.inputs, e.targets) for e in (gem.memory._episodes[k] for k in gem.memory.past)]
        rows = slow_rows(model, rows)[:, -size:] if rows else None
        optimizer.step()
        x = flat(p.grad for p in model.parameters())
        assert torch.equal(x[:-size], g[:-size])
        if rows is not None:
            torch.testing.assert_close(x[-size:], congruency.project(g[-size:], rows), rtol=1e-9, atol=1e-12)
            turned += not torch.equal(x, g)
    assert turned


def test_gem_with_references_is_one_problem():
    """eq. 10: rows of both kinds, each kind with a margin of its own."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = congruency.EpisodicMemory(model, size=8, margin=0.5)
    references = congruency.References(2, margin=0.1, mode="anchor")
    corrector = congruency.Corrector(optimizer, constraints=[memory, references])
    points = []
    for step, (task, inputs, targets) in enumerate(stream(tasks=3)):
        memory.observe(inputs, targets, task)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        g, w = flat(p.grad for p in model.parameters()), weights(model)
        past = [(e.inputs, e.targets) for e in (memory._episodes[k] for k in memory.past)]
        rows, margins = (list(slow_rows(model, past)) if past else []), [0.5] * len(past)
        if step < 2:
            points.append(w)
        else:
            rows, margins = rows + [w - point for point in points], margins + [0.1] * 2
        optimizer.step()
        x = flat(p.grad for p in model.parameters())
        if rows:
            expected = congruency.project(g, torch.stack(rows), torch.tensor(margins, dtype=torch.float64))
            torch.testing.assert_close(x, expected, rtol=1e-8, atol=1e-11)
        assert corrector.stats.congruency.shape == (len(past) + 2,)
