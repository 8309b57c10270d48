"""Corrections of the update, and blocks of rows and elements, against slow versions written out in numpy."""

import itertools
import random
import warnings

import numpy as np
import pytest
import torch
from problems import loss_of, network, train, weights
from slow_dcl import SlowDCL, adam, project, sgd
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import congruency
import congruency._torchvision_compat  # before timm
from congruency.step.updates import decay_factor

STEPS = 18
RATES = (0.3, 0.1)  # of the two parameter groups


def groups_of(model, rates=(0.2, 0.2)):
    first, last = model[0], model[2]
    return [
        {"params": [first.weight, last.bias], "lr": rates[0]},
        {"params": [first.bias, last.weight], "lr": rates[1]},
    ]


def blocks_of(model, blocks, rates):
    """Where the flat vector holds each block's entries, and each block's learning rate."""
    rate_of = {p: group["lr"] for group in groups_of(model, rates) for p in group["params"]}
    spans, start = {}, 0
    for p in model.parameters():
        spans[p] = np.arange(start, start + p.numel())
        start += p.numel()
    if blocks == "joint":
        return [np.arange(start)], [max(rates)]
    if blocks == "group":
        held = groups_of(model, rates)
        return [np.concatenate([spans[p] for p in group["params"]]) for group in held], list(rates)
    lengths = {"tensor": lambda p: p.numel(), "row": lambda p: p[0].numel(), "element": lambda p: 1}
    parts = [(part, rate_of[p]) for p, span in spans.items() for part in span.reshape(-1, lengths[blocks](p))]
    return [part for part, _ in parts], [rate for _, rate in parts]


def compute_gradients(model, step, drop_first=False):
    model.zero_grad()
    loss_of(model, step).backward()
    if drop_first and step % 3 == 2:
        model[0].weight.grad = None


def flat_gradient(model):
    parts = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
    present = [torch.full((p.numel(),), p.grad is not None) for p in model.parameters()]
    return torch.cat(parts).numpy(), torch.cat(present).numpy()


def adamw(lr, decay):
    plain = adam(lr)

    def update(w, g, present):
        return plain(w, g, present) - np.where(present, lr * decay * w, 0.0)

    update.change = plain.change
    return update


OPTIMIZERS = {
    "sgd": (lambda groups: torch.optim.SGD(groups), lambda: sgd(0.2), 1.0),
    "momentum": (
        lambda groups: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.01),
        lambda: sgd(0.2, momentum=0.9, weight_decay=0.01),
        1.0,
    ),
    "adam": (lambda groups: torch.optim.Adam(groups), lambda: adam(0.2), 1.0),
    "adamw": (lambda groups: torch.optim.AdamW(groups, weight_decay=0.3), lambda: adamw(0.2, 0.3), 1 - 0.2 * 0.3),
}


def slow_path(settings, correct, update, factor, drop_first):
    model = network()
    kind = settings.pop("blocks")
    blocks, rates = blocks_of(model, kind, (0.2, 0.2))
    slow = SlowDCL(blocks, **settings)
    path, corrected = [], 0
    for step in range(STEPS):
        compute_gradients(model, step, drop_first)
        gradient, present = flat_gradient(model)
        w = weights(model).numpy()
        if correct == "gradient":
            x = slow.correct(w, gradient, present)
            corrected += not np.allclose(x, gradient, rtol=1e-12, atol=0)
            w = update(w, x, present)
        else:
            decayed = np.where(present, factor * w, w)
            y = decayed - update(w, gradient, present)
            x = slow.correct(w, y, present, gradient=gradient, decayed=decayed, rates=rates)
            corrected += not np.allclose(x, y, rtol=1e-12, atol=0)
            w = decayed - x
            if kind != "element":  # as Cautious: elements are masked in the update alone
                update.change(slow.momentum)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w), model.parameters())
        path.append(w)
    return np.stack(path), corrected


def fast_path(settings, make_optimizer, drop_first=False, rates=(0.2, 0.2)):
    model = network()
    optimizer = make_optimizer(groups_of(model, rates))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the paper's form with momentum
        dcl = congruency.DCL(optimizer, **settings)
    path = []
    for step in range(STEPS):
        compute_gradients(model, step, drop_first)
        optimizer.step()
        path.append(weights(model).numpy())
    return np.stack(path), int(dcl.stats.corrected_steps)


NAMES = ("correct", "mode", "window", "references", "offset", "margin", "trigger", "blocks", "accumulate", "optimizer")
FLOORS = [{"floor": None}, {"floor": 0.3, "returning": False}, {"floor": 0.6}, {"floor": 1.0}]


def floor_of(index, mode, blocks):
    """A row of one element stays where it is when it is corrected: whether its distance grew would be rounding's."""
    if mode == "anchor" or blocks == "element":  # have none
        return {"floor": None}
    floor = FLOORS[index % 4]
    return {"floor": 0.9} if blocks == "row" and floor == {"floor": 1.0} else floor


GRID = [
    case
    for case in itertools.product(
        ("gradient", "update"),
        ("concentrate", "anchor"),
        (None, 6),
        (1, 2, 3),
        (0, 1),
        (0.0, 0.3),
        ("always", "violated"),
        ("joint", "group", "tensor", "row", "element"),
        ("weights", "gradients"),
        OPTIMIZERS,
    )
    if case[0] == "update" or case[7] in ("row", "element")  # the rest of the gradient's is in test_trajectories.py
]
SAMPLE = random.Random(0).sample(GRID, 320)


@pytest.mark.parametrize("chunk", range(8))
def test_trajectories_equal_the_slow_version(chunk):
    changed = 0
    for index in range(chunk, len(SAMPLE), 8):
        settings = dict(zip(NAMES, SAMPLE[index], strict=True))
        settings |= floor_of(index // 8, settings["mode"], settings["blocks"])
        make_optimizer, make_update, factor = OPTIMIZERS[settings.pop("optimizer")]
        drop_first = index % 5 == 0 and make_optimizer is OPTIMIZERS["sgd"][0]
        fast, corrected = fast_path(settings, make_optimizer, drop_first)
        slow_settings = {"returning": True} | settings
        correct = slow_settings.pop("correct")
        slow, expected = slow_path(slow_settings, correct, make_update(), factor, drop_first)
        np.testing.assert_allclose(fast, slow, rtol=1e-6, atol=1e-8, err_msg=str(settings))
        assert corrected >= expected
        changed += expected
    assert changed > 100


@pytest.mark.parametrize("blocks", ["joint", "group", "tensor", "row", "element"])
def test_under_plain_sgd_an_update_is_corrected_as_the_gradient(blocks):
    """The step is the learning rate times the gradient, whatever each block's learning rate is."""
    changed = 0
    for mode, count, margin, trigger, floor in itertools.product(
        ("concentrate", "anchor"), (1, 3), (0.0, 0.2), ("always", "violated"), range(4)
    ):
        settings = {"mode": mode, "references": count, "margin": margin, "trigger": trigger, "blocks": blocks}
        settings |= floor_of(floor, mode, blocks)
        rates = (0.2, 0.2) if blocks == "joint" else RATES
        (ours, corrected), (theirs, expected) = (
            fast_path({"window": 7, "correct": correct, **settings}, torch.optim.SGD, rates=rates)
            for correct in ("update", "gradient")
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10, err_msg=str(settings))
        assert corrected == expected
        changed += corrected
    assert changed > 150


SOURCES = {
    "weights": lambda model: congruency.References(window=7, floor=None),
    "gradients": lambda model: congruency.References(2, window=7, floor=None, accumulate="gradients"),
    "anchor": lambda model: congruency.References(window=7, mode="anchor", margin=0.1),
    "floor": lambda model: congruency.References(window=7, floor=0.9, returning=False),
    "directions": lambda model: congruency.Directions(),
    "memory": lambda model: congruency.EpisodicMemory(model, nn.functional.mse_loss),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("blocks", ["joint", "row", "element"])
@pytest.mark.parametrize("correct", ["gradient", "update"])
def test_maximizing_the_negative_is_minimizing(source, blocks, correct):
    """Constraints that are gradients turn around with the loss, those that are displacements do not."""
    if source == "floor" and blocks == "element":
        pytest.skip("has no floor")

    def path(maximize):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, maximize=maximize)
        ascent = -1.0 if maximize else 1.0
        made = SOURCES[source](model)
        corrector = congruency.Corrector(optimizer, constraints=[made], correct=correct, blocks=blocks)
        if source == "directions":
            generator = torch.Generator().manual_seed(0)
            parts = [ascent * torch.randn(p.shape, generator=generator).double() for p in model.parameters()]
            made.set([parts], list(model.parameters()))
        if source == "memory":
            made.loss = lambda outputs, targets: ascent * nn.functional.mse_loss(outputs, targets)
            made.observe(torch.ones(4, 4).double(), torch.ones(4, 3).double(), 0)
            made.observe(torch.zeros(1, 4).double(), torch.zeros(1, 3).double(), 1)
        congruencies = []
        for step in range(STEPS):
            optimizer.zero_grad()
            (ascent * loss_of(model, step)).backward()
            optimizer.step()
            congruencies.append(corrector.stats.congruency[:1])
        return weights(model), torch.cat(congruencies), int(corrector.stats.corrected_steps)

    (up, seen_up, corrected_up), (down, seen_down, corrected_down) = path(True), path(False)
    torch.testing.assert_close(up, down, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(seen_up, seen_down, equal_nan=True)
    assert corrected_up == corrected_down > 0


class Projected:
    """Checks after every step that each row, element or the whole is the projection onto the given constraints."""

    def __init__(self, model, optimizer, sources, constraints, correct, blocks, trigger="always"):
        self.model, self.correct, self.constraints, self.trigger = model, correct, constraints, trigger
        self.optimizer, self.blocks, self.changed = optimizer, blocks_of(model, blocks, RATES), 0
        optimizer.register_step_pre_hook(lambda *_: self.note())
        optimizer.register_step_post_hook(lambda *_: setattr(self, "plain", weights(model).numpy()))
        self.corrector = congruency.Corrector(
            optimizer, constraints=sources, correct=correct, blocks=blocks, trigger=trigger
        )
        optimizer.register_step_post_hook(lambda *_: self.check())

    def note(self):
        self.before, self.gradient = weights(self.model).numpy(), flat_gradient(self.model)[0]
        self.rows = [(np.asarray(row), margin) for row, margin in self.constraints()]

    def check(self):
        if self.correct == "gradient":
            y, x = self.gradient, flat_gradient(self.model)[0]
        else:
            y, x = self.before - self.plain, self.before - weights(self.model).numpy()
        expected = y.copy()
        for block, rate in zip(*self.blocks, strict=True):
            rows = [(row[block], margin * (rate if self.correct == "update" else 1)) for row, margin in self.rows]
            if self.trigger == "violated" and not any(row @ y[block] < 0 for row, _ in rows):
                continue
            shifted = y[block] + sum(margin * row for row, margin in rows)
            expected[block] = project(shifted, np.stack([row for row, _ in rows]), 0.0)
        np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-9)
        self.changed += not np.allclose(x, y)


@pytest.mark.parametrize("trigger", ["always", "violated"])
@pytest.mark.parametrize("blocks", ["joint", "group", "row", "element"])
@pytest.mark.parametrize("correct", ["gradient", "update"])
def test_directions_and_memory_in_every_block(correct, blocks, trigger):
    """Two sources with margins of their own are one problem in every block."""
    model = network()
    optimizer = torch.optim.SGD(groups_of(model, RATES), momentum=0.5)
    directions = congruency.Directions(margin=0.1)
    memory = congruency.EpisodicMemory(model, nn.functional.mse_loss, size=8)
    given = [[torch.randn_like(p) for p in model.parameters()] for _ in range(2)]
    directions.set(given, list(model.parameters()))
    past = [(torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)) for _ in range(2)]

    def constraints():
        for direction in given:
            yield torch.cat([part.flatten() for part in direction]).numpy(), 0.1
        for inputs, targets in past:
            loss = nn.functional.mse_loss(model(inputs), targets)
            parts = torch.autograd.grad(loss, list(model.parameters()))
            yield torch.cat([part.flatten() for part in parts]).numpy(), 0.0

    with_grad = torch.enable_grad()(lambda: list(constraints()))
    checked = Projected(model, optimizer, [directions, memory], with_grad, correct, blocks, trigger)
    for task, (inputs, targets) in enumerate(past):
        memory.observe(inputs, targets, task)
    memory.observe(*(torch.zeros(1, n, dtype=torch.float64) for n in (4, 3)), 2)  # the task that is learned now
    train(model, optimizer, range(6))
    assert checked.changed == 6


def test_directions_constrain_an_update_while_references_are_recorded():
    """The momentum is projected with what the present step knows of its constraints, not an earlier one."""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    directions = congruency.Directions()
    directions.set([[torch.eye(4)[0]], [torch.eye(4)[1]]], [weight])
    references = congruency.References(2, window=4)
    congruency.Corrector(optimizer, constraints=[references, directions], correct="update")
    for _ in range(6):  # the references start over at the fifth
        weight.grad = torch.tensor([-1.0, -1.0, 1.0, 1.0])
        optimizer.step()
    assert weight[:2].tolist() == [0, 0]
    assert optimizer.state[weight]["momentum_buffer"][:2].tolist() == [0, 0]


def test_a_joint_congruency_and_magnitude_of_updates():
    """stats says of updates what it says of gradients."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    before, plain = [], []
    optimizer.register_step_pre_hook(lambda *_: before.append(weights(model)))
    optimizer.register_step_post_hook(lambda *_: plain.append(weights(model)))
    dcl = congruency.DCL(optimizer, correct="update", floor=None, mode="anchor")
    train(model, optimizer, range(6))
    y, a = before[-1] - plain[-1], -(before[-1] - before[0])
    x = before[-1] - weights(model)
    assert dcl.stats.congruency.item() == pytest.approx((y @ a / y.norm() / a.norm()).item(), rel=1e-6)
    assert dcl.stats.corrected_congruency.item() == pytest.approx((x @ a / x.norm() / a.norm()).item(), abs=1e-6)
    assert dcl.stats.magnitude.item() == pytest.approx(a.norm().item(), rel=1e-6)
    assert dcl.stats.steps == 6


# ---- weight decay ----

# Decoupled by measurement, but part of the update: why decay_factor gives 1.
PART_OF_THE_UPDATE = {
    "ASGD": "without momentum, decay of the gradient cannot be told from decay of the weights",
    "SGD": "likewise",
    "adamp": "how much it decays depends on whether it projects the step",
    "cadamp": "likewise",
    "sgdp": "likewise",
    "csgdp": "likewise",
    "kron": "adds decay to the preconditioned gradient, as a part of its step",
    "lambc": "adds decay to the step, and here clips the trust ratio of both to 1",
}
# Multiplied by s, but what is subtracted depends on the decay too.
STEP_DEPENDS_ON_DECAY = {
    "Adafactor": "the step is proportional to the size of the weights",
    "laprop": "decays after the step, so that the step is multiplied by s too",
    "lapropc": "likewise",
    "claprop": "likewise",
    "lambw": "uses the trust ratio only with decay",
    "lambcd": "likewise",
    "clambw": "likewise",
    "madgradw": "decays the average of its iterates, then moves it toward the next one",
}


def path_with(make, decay):
    """Weights of four steps along given gradients, and decay_factor before each."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 5, dtype=torch.float64))
    optimizer = make([weight], decay)
    path, factors = [weight.detach().clone()], []
    for _ in range(4):
        weight.grad = torch.randn(6, 5, dtype=torch.float64)
        factors.append(float(decay_factor(optimizer, optimizer.param_groups[0])))
        optimizer.step()
        path.append(weight.detach().clone())
    return path, factors


def check_decay(name, make):
    """Decoupled: the step ``s w - w_next`` along given gradients is the same with and without decay."""
    plain, ones = path_with(make, 0.0)
    decayed, factors = path_with(make, 0.1)
    assert ones == [1.0] * 4
    ratios = [
        (after - other + old) / before
        for before, after, old, other in zip(decayed[1:], decayed[2:], plain[1:], plain[2:], strict=False)
    ]  # from the second step on: Adopt's first only notes the gradient
    spread = max(float(ratio.max() - ratio.min()) for ratio in ratios)
    decoupled = spread < 1e-5 and abs(float(ratios[0].mean()) - 1) > 1e-4  # some compute in float32
    if name in PART_OF_THE_UPDATE:
        assert decoupled
        assert factors == [1.0] * 4
    elif name in STEP_DEPENDS_ON_DECAY:
        assert not decoupled
        assert factors == [pytest.approx(1 - 0.05 * 0.1)] * 4
    elif decoupled:
        assert factors[1:] == [pytest.approx(float(ratio.mean()), abs=1e-6) for ratio in ratios]
    else:
        assert factors == [1.0] * 4
    return decoupled


def test_the_decay_of_every_optimizer_of_torch():
    decoupled = set()
    for name, cls in sorted(vars(torch.optim).items()):
        if not isinstance(cls, type) or not issubclass(cls, torch.optim.Optimizer) or name in (
            "Optimizer", "LBFGS", "SparseAdam", "Rprop",  # without weight decay
        ):  # fmt: skip
            continue
        if check_decay(name, lambda params, decay, cls=cls: cls(params, lr=0.05, weight_decay=decay)):
            decoupled.add(name)
        if "decoupled_weight_decay" in cls.__init__.__code__.co_varnames and name != "AdamW":
            flag = {"decoupled_weight_decay": True}
            assert check_decay("", lambda p, decay, cls=cls, f=flag: cls(p, lr=0.05, weight_decay=decay, **f))
    assert decoupled == {"ASGD", "AdamW", "Muon", "SGD"}


def test_the_decay_of_every_optimizer_of_timm():
    timm_optim = pytest.importorskip("timm.optim", reason="timm is not installed")
    checked = 0
    for name in timm_optim.list_optimizers():
        if name.startswith(("bnb", "fused")) or name == "adahessian":
            continue  # these need CUDA and packages of their own; this one a graph of the gradient

        def make(params, decay, name=name):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return timm_optim.create_optimizer_v2(params, name, lr=0.05, weight_decay=decay)

        try:
            checked += check_decay(name, make)
        except AssertionError as error:
            raise AssertionError(name) from error
    assert checked > 30


def test_decay_follows_the_learning_rate():
    """As a schedule changes it, as a tensor, and squared where timm corrects it by the peak."""
    weight = nn.Parameter(torch.ones(3, 3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    group = optimizer.param_groups[0]
    assert decay_factor(optimizer, group) == 0.95
    group["lr"] = 0.02
    assert decay_factor(optimizer, group) == 0.99
    group["lr"] = torch.tensor(0.2)
    assert float(decay_factor(optimizer, group)) == pytest.approx(0.9)
    corrected = pytest.importorskip("timm.optim").create_optimizer_v2([weight], "adamc", lr=0.1, weight_decay=0.5)
    assert decay_factor(corrected, corrected.param_groups[0]) == pytest.approx(0.95)
    corrected.param_groups[0]["lr"] = 0.02
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    corrected.step()
    factor = decay_factor(corrected, corrected.param_groups[0])
    assert factor == pytest.approx(1 - 0.02**2 / 0.1 * 0.5)
    torch.testing.assert_close(weight.detach(), factor * before)


@pytest.mark.parametrize("name", ["Muon", "Adafactor"])
def test_a_subclass_decays_as_its_parent(name):
    parent = getattr(torch.optim, name)
    assert check_decay(name, lambda p, decay: type("Own", (parent,), {})(p, lr=0.05, weight_decay=decay)) == (
        name == "Muon"
    )


@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
def test_decay_that_the_learning_rate_does_not_scale(unscaled, corrected):
    """Of timm's big vision Adafactor, under a schedule."""
    kind = pytest.importorskip("timm.optim").AdafactorBigVision
    weight = nn.Parameter(torch.ones(3, 3, dtype=torch.float64))
    optimizer = kind([weight], lr=0.1, weight_decay=0.3, unscaled_wd=unscaled, corrected_weight_decay=corrected)
    optimizer.param_groups[0]["lr"] = 0.02
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), decay_factor(optimizer, optimizer.param_groups[0]) * before)
    assert not torch.equal(weight, before)


# ---- what is refused ----


def sgd_of(model, **settings):
    return torch.optim.SGD(model.parameters(), lr=0.1, **settings)


class Swapping(torch.optim.Optimizer):
    """Trains another tensor after every step, as optimizers that flatten or shard parameters do."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        params = self.param_groups[0]["params"]
        for i, p in enumerate(params):
            params[i] = nn.Parameter(p - 0.1 * p.grad)
            params[i].grad = p.grad


@pytest.mark.parametrize("make", [congruency.Cautious, lambda o: congruency.DCL(o, correct="update", window=5)])
def test_an_optimizer_that_swaps_its_parameters_is_refused(make):
    model = network()
    optimizer = Swapping(model.parameters())
    make(optimizer)

    def run():
        for _ in range(3):
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.ones_like(p)
            optimizer.step()

    with pytest.raises(RuntimeError, match=r"replaced its parameters during step\(\).*use correct='gradient'"):
        run()


class Lion(torch.optim.Optimizer):
    """Chooses its learning rate itself, as transformers' Adafactor does by default."""

    def __init__(self, params, weight_decay=0.0):
        super().__init__(params, {"lr": None, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad.sign(), alpha=-0.1)


def test_an_optimizer_that_chooses_its_learning_rate():
    for make, decay in ((congruency.Cautious, 0.1), (lambda o: congruency.DCL(o, correct="update", margin=0.1), 0.0)):
        with pytest.raises(ValueError, match=r"Lion has no learning rate in its groups.*relative_step=False"):
            make(Lion(network().parameters(), decay))
    model = network()
    optimizer = Lion(model.parameters())
    congruency.Cautious(optimizer)
    congruency.DCL(optimizer, window=5, correct="update")
    train(model, optimizer, range(8))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"Descent\(\) constrains updates.*pass correct='update'"):
        congruency.Corrector(sgd_of(network()), constraints=[congruency.Descent()])
    with pytest.raises(ValueError, match="correct='update' needs attach=True"):
        congruency.DCL(sgd_of(network()), correct="update", attach=False)
    with pytest.raises(ValueError, match=r"floor=0.1 has no effect: mode 'anchor' has none; leave floor out"):
        congruency.DCL(sgd_of(network()), mode="anchor", floor=0.1)
    for correct in ("gradient", "update"):
        with pytest.raises(ValueError, match=r"floor=1.0 has no effect: the cosine of one element.*use other blocks"):
            congruency.DCL(sgd_of(network()), blocks="element", floor=1.0, correct=correct)
    with pytest.raises(ValueError, match="correct must be one of 'gradient', 'update', got 'momentum'"):
        congruency.DCL(sgd_of(network()), correct="momentum")
    for blocks in ("row", "element"):
        with pytest.raises(ValueError, match=f"capturable=True has no blocks='{blocks}'; use 'joint'"):
            congruency.DCL(sgd_of(network()), capturable=True, blocks=blocks)
    for make in (congruency.Cautious, lambda o: congruency.DCL(o, correct="update")):
        with pytest.raises(TypeError, match=r"LBFGS is not supported.*use a first-order optimizer"):
            make(torch.optim.LBFGS(network().parameters()))
    dcl = congruency.DCL(sgd_of(network()), correct="update")
    with pytest.raises(RuntimeError, match=r"updates inside optimizer.step\(\); do not call"):
        dcl.correct()
    model = network()
    both = [{"params": model[0].parameters(), "maximize": True}, {"params": model[2].parameters()}]
    mixed = torch.optim.SGD(both, lr=0.1, momentum=0.9)
    for make in (congruency.Cautious, lambda o: congruency.DCL(o, window=5)):
        with pytest.raises(ValueError, match="all parameter groups to minimize or all to maximize"):
            make(mixed)
    congruency.DCL(mixed, window=5, correct="update")  # compares two displacements


@pytest.mark.parametrize("make", [congruency.Cautious, lambda o: congruency.DCL(o, correct="update")])
def test_sparse_gradients_are_refused(make):
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    corrector = make(optimizer)
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="sparse gradient"):
        optimizer.step()
    assert corrector.stats.steps == 0
    assert torch.equal(embedding.weight, before)  # the optimizer has made no step either


# ---- together ----


@pytest.mark.parametrize("first", ["dcl", "cautious"])
def test_dcl_and_cautious_on_one_optimizer(first):
    """The gradient is corrected before the step, the update after it, against the corrected gradient."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    gradients, plain, befores = [], [], []
    optimizer.register_step_pre_hook(lambda *_: gradients.append(flat_gradient(model)[0].copy()))
    optimizer.register_step_pre_hook(lambda *_: befores.append(weights(model).numpy()))
    optimizer.register_step_post_hook(lambda *_: plain.append(weights(model).numpy()))
    made = {}
    for name in ("dcl", "cautious") if first == "dcl" else ("cautious", "dcl"):
        if name == "dcl":
            made[name] = congruency.DCL(optimizer, mode="anchor", margin=0.05)
        else:
            made[name] = congruency.Cautious(optimizer, rescale=False)
    masked = 0
    for step in range(12):
        compute_gradients(model, step)
        optimizer.step()
        before, used = befores[-1], flat_gradient(model)[0]
        expected = gradients[-1]
        if step:
            displacement = before - befores[0]
            expected = project(gradients[-1], displacement[None], 0.05)
        np.testing.assert_allclose(used, expected, rtol=1e-6, atol=1e-10)
        y = before - plain[-1]
        kept = y * used > 0
        np.testing.assert_allclose(weights(model).numpy(), before - y * kept, rtol=1e-12, atol=1e-14)
        masked += (~kept).sum()
    assert masked > 50
    assert int(made["dcl"].stats.corrected_steps) == 11
    assert int(made["cautious"].stats.corrected_steps) > 5


@pytest.mark.parametrize("make", [congruency.Cautious, lambda o: congruency.DCL(o, correct="update", references=2)])
def test_memory_is_one_copy_of_the_parameters(make):
    """Beside the references, of which there are as many as asked for."""
    model = network(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    corrector = make(optimizer)
    train(model, optimizer, range(6))
    seen = {}

    def visit(value, depth=0):
        if isinstance(value, torch.Tensor):
            if not isinstance(value, nn.Parameter) and value.dtype == torch.float32:  # not the small algebra
                seen[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif depth < 8 and isinstance(value, dict):
            for part in value.values():
                visit(part, depth + 1)
        elif depth < 8 and isinstance(value, (list, tuple)):
            for part in value:
                visit(part, depth + 1)
        elif depth < 8 and type(value).__module__.startswith("congruency"):
            visit(getattr(value, "__dict__", {}), depth + 1)

    visit({k: v for k, v in vars(corrector).items() if k not in ("_solution", "_agreement", "_problems")})
    size = sum(p.untyped_storage().nbytes() for p in model.parameters())
    gradients = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    own = sum(nbytes for address, nbytes in seen.items() if address not in gradients | parameters)
    references = 2 if isinstance(corrector, congruency.DCL) else 0
    assert own == (1 + references) * size


@pytest.mark.parametrize("settings", [{"blocks": "element", "mode": "anchor"}, {"floor": None}], ids=str)
def test_weights_that_move_and_come_back(settings):
    """What was prepared for an address must not be used when the weights return to it with other copies beside them."""

    def path(moving):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        congruency.DCL(optimizer, correct="update", window=6, **settings)
        places = [(p.data, p.data.clone()) for p in model.parameters()]
        for step in range(14):
            if moving:
                for p, pair in zip(model.parameters(), places, strict=True):
                    new = pair[step // 3 % 2]
                    if new is not p.data:
                        p.data = new.copy_(p.data)
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        return weights(model)

    torch.testing.assert_close(path(True), path(False), rtol=0, atol=0)


@pytest.mark.parametrize("correct", ["gradient", "update"])
def test_factors_of_element_margins_are_never_read_by_the_host(correct, device):
    """The learning rate, the loss scale, and whether the step was skipped stay on the device."""
    weight = nn.Parameter(torch.randn(5, device=device))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.1, device=device))
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0, device=device), torch.zeros(1, device=device)
    dcl = congruency.DCL(optimizer, correct=correct, blocks="element", mode="anchor", margin=0.1)

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func is not torch.ops.aten._local_scalar_dense.default
            return func(*args, **kwargs or {})

    entries = dcl._selector.select().entries
    with Recorder():
        rates = dcl._gather._rates(entries, device)
    assert rates.tolist() == pytest.approx([4.0 if correct == "gradient" else 0.1])
    optimizer.found_inf.fill_(1.0)
    assert dcl._gather._rates(entries, device).tolist() == [4.0 if correct == "gradient" else 0.0]
