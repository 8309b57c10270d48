"""Cautious optimizers: timm's own, definitions written out element by element, and training loops of every kind."""

import copy
import gc
import math
import pickle
import warnings
import weakref

import pytest
import torch
from problems import loss_of, network, train, weights
from torch import nn
from torch.nn import functional

import congruency
import congruency._torchvision_compat  # before timm

timm_optim = pytest.importorskip("timm.optim", reason="timm is not installed")

STEPS = 20


def noisy_problem(dtype=torch.float64, seed=0):
    """A two-layer network on a noisy regression: matrices, vectors and no exact zeros among the gradients."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3)).to(dtype)
    solution = torch.randn(8, 3, dtype=dtype)

    def loss(step):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(16, 8, generator=generator, dtype=dtype)
        noise = torch.randn(16, 3, generator=generator, dtype=dtype)
        return functional.mse_loss(model(inputs), inputs @ solution / 3 + 0.1 * noise)

    return model, loss


def run(make_optimizer, steps, dtype=torch.float64, wrap=None):
    """Train; the weights after every step, how often the correction changed a step, and the losses."""
    model, loss = noisy_problem(dtype)
    optimizer = make_optimizer(model.parameters())
    corrector = wrap(optimizer) if wrap else None
    path, losses = [], []
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(step)
        value.backward()
        optimizer.step()
        path.append(weights(model))
        losses.append(value.item())
    return torch.stack(path), corrector, losses


def timm_optimizer(name, rate, decay):
    def make(parameters):
        settings = {"lr": rate, "weight_decay": decay}
        if name.endswith("adafactor"):  # by name it has no momentum, so that nothing would be masked
            return timm_optim.Adafactor(parameters, betas=(0.9, 0.999), caution=name[0] == "c", **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return timm_optim.create_optimizer_v2(parameters, name, **settings)

    return make


# timm's cautious optimizer, the plain one, learning rate, weight decay. Without decay where timm adds it to the
# gradient before it masks by that (Adopt, RMSpropTF), leaves it out of the first step (AdoptW), or takes LAMB's trust
# ratio of the masked update.
EQUAL = [
    ("cadamw", "adamwlegacy", 0.01, 0.1),
    ("cadamc", "adamc", 0.01, 0.1),
    ("csgdw", "sgdw", 0.05, 0.1),
    ("csgdc", "sgdc", 0.05, 0.1),
    ("cnadamw", "nadamw", 0.01, 0.1),
    ("cnadamc", "nadamc", 0.01, 0.1),
    ("clion", "lion", 0.003, 0.1),
    ("clionc", "lionc", 0.003, 0.1),
    ("cadafactor", "adafactor", 0.01, 0.1),
    ("cadafactorbv", "adafactorbv", 0.01, 0.1),
    ("cadafactorbvc", "adafactorbvc", 0.01, 0.1),
    ("claprop", "laprop", 0.01, 0.1),
    ("cmars", "mars", 0.01, 0.1),
    ("cadopt", "adopt", 0.01, 0.0),
    ("cadoptw", "adoptw", 0.01, 0.0),
    ("cadoptc", "adoptc", 0.01, 0.0),
    ("clamb", "lamb", 0.01, 0.0),
    ("clambw", "lambw", 0.01, 0.0),
    ("crmsproptf", "rmsproptf", 0.003, 0.0),
]
# What timm masks there is not the update: Adan's and AdamP's parts of it before they are put together, SGDP's momentum
# before it is projected.
DIFFERENT = {"cadamp", "cadan", "cadanw", "csgdp"}


@pytest.mark.parametrize(("cautious", "plain", "rate", "decay"), EQUAL)
def test_trajectories_equal_those_of_timm(cautious, plain, rate, decay):
    """Over 200 steps in float64.

    y is read off the weights, so that it carries their rounding, 1e-16 relative to the weights, and 200 steps may
    multiply it: far below 1e-9, and that far below what one other sign would do, a step.
    """
    theirs, _, losses = run(timm_optimizer(cautious, rate, decay), 200)
    ours, corrector, _ = run(timm_optimizer(plain, rate, decay), 200, wrap=congruency.Cautious)
    uncorrected, _, _ = run(timm_optimizer(plain, rate, decay), 30)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert (uncorrected - theirs[:30]).abs().max() > 1e-3
    assert int(corrector.stats.corrected_steps) > 100
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])


@pytest.mark.parametrize(("cautious", "plain", "rate", "decay"), EQUAL[:6:2])
def test_trajectories_equal_those_of_timm_in_float32(cautious, plain, rate, decay):
    """Over 20 steps, since rounding, 6e-8 of the weights, turns the sign of a very small update sooner or later."""
    theirs, _, _ = run(timm_optimizer(cautious, rate, decay), 20, torch.float32)
    ours, _, _ = run(timm_optimizer(plain, rate, decay), 20, torch.float32, congruency.Cautious)
    uncorrected, _, _ = run(timm_optimizer(plain, rate, decay), 20, torch.float32)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert (uncorrected - theirs).abs().max() > 1e-3


def test_every_cautious_optimizer_of_timm_is_compared_or_known_to_differ():
    cautious = {name for name in timm_optim.list_optimizers() if timm_optim.get_optimizer_info(name).defaults
                and timm_optim.get_optimizer_info(name).defaults.get("caution")}  # fmt: skip
    assert {name for name, *_ in EQUAL} | DIFFERENT == cautious


@pytest.mark.parametrize(
    ("name", "rate"),
    [("adan", 0.01), ("adamp", 0.01), ("sgdp", 0.05), ("adafactorbv", 0.01), ("muon", 0.01), ("lion", 0.003),
     ("adopt", 0.01), ("madgrad", 0.01)],
)  # fmt: skip
def test_other_optimizers_of_timm_learn(name, rate):
    _, corrector, losses = run(timm_optimizer(name, rate, 0.01), 200, torch.float32, congruency.Cautious)
    assert int(corrector.stats.corrected_steps) > 20
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])


def optimizer_classes():
    others = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
    classes = [c for _, c in sorted(vars(torch.optim).items()) if isinstance(c, type)]
    return [c for c in classes if issubclass(c, torch.optim.Optimizer) and c not in others]


class Definition:
    """Checks after every step what the weights became, element by element in Python, from what they were before."""

    def __init__(self, optimizer, *, rescale=True, decay=False, max_rescale=None, params=None, **more):
        self.settings = {"rescale": rescale, "decay": decay, "max_rescale": max_rescale}
        self.optimizer = optimizer
        optimizer.register_step_pre_hook(lambda *_: self.note())
        optimizer.register_step_post_hook(lambda *_: self.note_plain())
        self.corrector = congruency.Cautious(optimizer, params, **self.settings, **more)
        optimizer.register_step_post_hook(lambda *_: self.check())
        self.masked = 0

    def parameters(self):
        return [(p, group) for group in self.optimizer.param_groups for p in group["params"]]

    def note(self):
        self.before = [p.detach().clone() for p, _ in self.parameters()]

    def note_plain(self):
        self.plain = [p.detach().clone() for p, _ in self.parameters()]

    def check(self):
        kept_elements = elements = product = update2 = gradient2 = 0
        for (p, group), before, plain in zip(self.parameters(), self.before, self.plain, strict=True):
            if p.grad is None or (self.corrector._chosen is not None and p not in self.corrector._chosen):
                assert torch.equal(p, plain)
                continue
            decoupled = group.get("decoupled_weight_decay") or isinstance(self.optimizer, torch.optim.Muon)
            factor = 1 - float(group["lr"]) * group.get("weight_decay", 0) if decoupled else 1.0
            ascent = -1 if group.get("maximize") else 1
            w, after, g = (t.flatten().double().tolist() for t in (before, plain, ascent * p.grad))
            y = [factor * a - b for a, b in zip(w, after, strict=True)]
            # what rounding decides may go either way: y is the difference of weights that are rounded
            unit = torch.finfo(p.dtype).eps * max(1.0, float(before.abs().max()))
            assert sum(0 < abs(v) <= 4 * unit for v in y) <= 0.1 * len(y) + 1
            agree = [v * c > 0 for v, c in zip(y, g, strict=True)]
            scale = 1.0
            if self.settings["rescale"]:
                scale = len(y) / max(sum(agree), 1e-3 * len(y))
                scale = min(scale, self.settings["max_rescale"] or math.inf)
            expected = []
            for weight, v, good in zip(w, y, agree, strict=True):
                opposes = v * weight < 0  # what is subtracted has the other sign: the update moves away from 0
                base = weight if self.settings["decay"] and opposes else factor * weight
                expected.append(base - scale * v * good)
            found = p.detach().flatten().double().tolist()
            for a, b, v in zip(found, expected, y, strict=True):
                assert a == pytest.approx(b, abs=8 * unit * max(1.0, scale)) or abs(v) <= 4 * unit
            self.masked += sum(not good for good in agree)
            kept_elements, elements = kept_elements + sum(agree), elements + len(y)
            product += sum(v * c for v, c in zip(y, g, strict=True))
            update2, gradient2 = update2 + sum(v * v for v in y), gradient2 + sum(c * c for c in g)
        stats = self.corrector.stats
        assert stats.kept.item() == pytest.approx(kept_elements / elements, abs=2 / elements)
        assert bool(stats.corrected) == (stats.kept.item() < 1)
        assert stats.congruency.shape == (1,)
        assert stats.congruency.item() == pytest.approx(product / math.sqrt(update2 * gradient2), abs=1e-4)
        assert stats.magnitude.item() == pytest.approx(math.sqrt(gradient2), rel=1e-4)


@pytest.mark.parametrize("cls", optimizer_classes(), ids=lambda cls: cls.__name__)
def test_every_optimizer_of_torch(cls, device):
    if cls is torch.optim.Adafactor:
        pytest.skip("its decay is measured in test_update.py; here its learning rate is not the one of the group")
    model = network(torch.float64, device=device)
    params = [p for p in model.parameters() if p.ndim == 2] if cls.__name__ == "Muon" else list(model.parameters())
    optimizer = cls(params, lr=0.02)
    definition = Definition(optimizer)
    train(model, optimizer, range(25))
    # without momentum an update has the gradient's signs; Rprop does not move at all where the gradient's has changed
    stateless = (torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.ASGD, torch.optim.RMSprop, torch.optim.SGD)
    assert (definition.masked == 0) == (cls in stateless)
    assert definition.corrector.stats.steps == 25
    assert int(definition.corrector.stats.corrected_steps) > 0 or cls in stateless


@pytest.mark.parametrize(
    "settings",
    [{}, {"rescale": False}, {"decay": True}, {"decay": True, "rescale": False}, {"max_rescale": 1.2},
     {"max_rescale": 1.0, "decay": True}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_definition(settings, dtype, device):
    model = network(dtype, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.3)
    definition = Definition(optimizer, **settings)
    train(model, optimizer, range(30))
    assert definition.masked > 100


@pytest.mark.parametrize(
    ("cls", "variant"),
    [
        (torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
        (torch.optim.SGD, {"fused": True, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"maximize": True, "momentum": 0.9}),
        (torch.optim.AdamW, {"maximize": True}),
        (torch.optim.Adam, {"fused": True, "amsgrad": True, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"fused": True, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"foreach": False, "weight_decay": 0.1, "lr": torch.tensor(0.02)}),
        (torch.optim.AdamW, {"capturable": True, "weight_decay": 0.1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("decay", [False, True])
def test_variants_with_several_groups(cls, variant, decay, device):
    if variant.get("capturable") and device.type == "cpu":
        pytest.skip("capturable optimizers exist on accelerators only")
    model = network(torch.float32, device=device)
    groups = [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters(), "lr": 0.01}]
    if isinstance(variant.get("lr"), torch.Tensor):
        groups = [{"params": model.parameters()}]
    optimizer = cls(groups, **{"lr": 0.02, **variant})
    definition = Definition(optimizer, decay=decay)
    train(model, optimizer, range(20))
    assert definition.masked > 20


def test_without_rescaling_it_is_the_projection_onto_descent_element_by_element():
    """Where no element of the gradient is exactly 0; there Cautious drops the step and the projection keeps it."""

    def path(make):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        corrector = make(optimizer)
        return torch.stack(train(model, optimizer, range(STEPS))), corrector

    def projection(optimizer):
        return congruency.Corrector(optimizer, constraints=[congruency.Descent()], correct="update", blocks="element")

    ours, cautious = path(lambda optimizer: congruency.Cautious(optimizer, rescale=False))
    theirs, corrector = path(projection)
    assert torch.equal(ours, theirs)
    assert int(cautious.stats.corrected_steps) == int(corrector.stats.corrected_steps) > 10
    assert torch.equal(cautious.stats.kept, corrector.stats.kept)


@pytest.mark.parametrize("rescale", [False, True])
def test_an_element_without_gradient_is_dropped(rescale):
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    congruency.Cautious(optimizer, rescale=rescale)
    for gradient in ([2.0, 1.0], [0.0, 1.0]):  # momentum alone moves the first element in the second step
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    # the first step is whole; of the second, (1, 1.5), the half that is kept is doubled
    assert weight.tolist() == [-2.0, -1.0 - 1.5 * (2 if rescale else 1)]


@pytest.mark.parametrize(("bound", "factor"), [(None, 8.0), (3.0, 3.0), (8.5, 8.0), (1.0, 1.0)])
def test_rescaling_and_its_bound(bound, factor):
    """One of eight elements agrees: the share 1/8 is made up for by a factor of 8, or of the bound."""
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    cautious = congruency.Cautious(optimizer, max_rescale=bound)
    weight.grad = torch.full((8,), 4.0)
    optimizer.step()
    weight.grad = torch.tensor([1.0] + [-1.0] * 7)
    optimizer.step()
    assert weight.tolist() == [-4.0 - 3.0 * factor] + [-4.0] * 7
    assert cautious.stats.kept.item() == 1 / 8


def test_the_share_is_at_least_a_thousandth():
    weight = nn.Parameter(torch.zeros(5000, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    cautious = congruency.Cautious(optimizer)
    weight.grad = torch.full((5000,), 4.0, dtype=torch.float64)
    optimizer.step()
    weight.grad = torch.full((5000,), -1.0, dtype=torch.float64)
    weight.grad[7] = 1.0
    optimizer.step()
    assert weight[7].item() == pytest.approx(-4 - 3 * 1000)  # not 5000
    assert cautious.stats.kept.item() == 1 / 5000


@pytest.mark.parametrize("bound", [0.5, 0.0, -1.0, math.nan])
def test_bounds_below_one_are_refused(bound):
    with pytest.raises(ValueError, match="max_rescale must be at least 1, or None for no bound, got"):
        congruency.Cautious(torch.optim.SGD(network().parameters(), lr=0.1), max_rescale=bound)


def test_repr_says_what_it_does():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    cautious = congruency.Cautious(optimizer, decay=True, max_rescale=4.0)
    train(model, optimizer, range(3))
    corrected = int(cautious.stats.corrected_steps)
    assert repr(cautious) == (
        "Cautious(rescale=True, decay=True, max_rescale=4.0, correct='update', trigger='always', blocks='element', "
        f"step 3, {corrected} corrected)"
    )


def test_stats_before_the_first_step_and_without_gradients():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    cautious = congruency.Cautious(optimizer)
    assert math.isnan(cautious.stats.kept.item())
    assert not bool(cautious.stats.corrected)
    train(model, optimizer, range(3))
    kept = cautious.stats.kept.item()
    assert 0 < kept <= 1
    optimizer.zero_grad()  # the last step's numbers do not change with the gradients
    assert cautious.stats.kept.item() == kept


def build(settings):
    """An optimizer and its corrector, for the tests that save and resume."""
    settings = dict(settings)
    model = network(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    kind = settings.pop("kind")
    return model, optimizer, getattr(congruency, kind)(optimizer, **settings)


@pytest.mark.parametrize("changes", [{"rescale": False}, {"decay": True}, {"max_rescale": 2.0}], ids=str)
def test_a_state_of_other_settings_is_refused(changes):
    _, _, cautious = build({"kind": "Cautious"})
    _, _, other = build({"kind": "Cautious", **changes})
    (name,) = changes
    with pytest.raises(ValueError, match=f"{name} was .* when this state was saved and is .* here"):
        other.load_state_dict(cautious.state_dict())


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "Cautious", "decay": True, "max_rescale": 3.0},
        {"kind": "DCL", "correct": "update", "window": 7, "references": 2, "blocks": "tensor", "floor": 1.0},
    ],
    ids=str,
)
def test_a_copy_with_its_optimizer_corrects_the_copy(settings, copied):
    model, optimizer, corrector = build(settings)
    train(model, optimizer, range(9))
    model_2, optimizer_2, corrector_2 = copied((model, optimizer, corrector))
    before = weights(model)
    train(model_2, optimizer_2, range(9, STEPS))
    assert torch.equal(weights(model), before)
    train(model, optimizer, range(9, STEPS))
    assert torch.equal(weights(model_2), weights(model))
    assert corrector_2.stats.steps == STEPS
    assert int(corrector_2.stats.corrected_steps) == int(corrector.stats.corrected_steps) > 0


def test_a_closure_is_run_once_and_gives_the_same():
    def path(with_closure):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        cautious = congruency.Cautious(optimizer)
        calls = 0
        for step in range(STEPS):

            def closure(step=step):
                nonlocal calls
                calls += 1
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                return loss

            if with_closure:
                loss = optimizer.step(closure) if step % 2 else optimizer.step(closure=closure)
                assert isinstance(loss, torch.Tensor)
            else:
                closure()
                optimizer.step()
        assert calls == STEPS
        return weights(model), int(cautious.stats.corrected_steps)

    (ours, corrected), (expected, count) = path(True), path(False)
    assert torch.equal(ours, expected)
    assert corrected == count > 0


def test_detach_leaves_the_optimizer_as_it_was():
    def path(detached):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        if detached:
            cautious = congruency.Cautious(optimizer)
            cautious.detach()
            cautious.detach()
        return weights_after(model, optimizer), optimizer

    def weights_after(model, optimizer):
        train(model, optimizer, range(STEPS))
        return weights(model)

    (ours, optimizer), (plain, _) = path(True), path(False)
    assert torch.equal(ours, plain)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_subset_of_the_parameters():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    definition = Definition(optimizer, params=[model[2].weight, model[2].bias])
    train(model, optimizer, range(STEPS))  # the definition asserts that the others are those of the plain optimizer
    assert definition.masked > 10
    assert sum(held.numel() for held in definition.corrector._before._held.values()) == model[2].weight.numel() + 3


def test_a_parameter_without_gradient_is_left_alone():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    definition = Definition(optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        if step % 3:
            model[0].weight.grad = None
        before = model[0].weight.detach().clone()
        optimizer.step()
        assert torch.equal(before, model[0].weight) == bool(step % 3)
    assert definition.masked > 10


def test_each_group_has_its_own_weight_decay_where_another_trained_before(device):
    """Groups of one size that take turns."""
    found = []
    for both in (False, True):
        first, second = (nn.Parameter(torch.ones(4, device=device)) for _ in range(2))
        groups = [{"params": [first], "weight_decay": 0.5}, {"params": [second], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.1)
        congruency.Cautious(optimizer)
        for sign in (1.0, -0.1):  # the second step is masked: all that remains of it is the decay
            for parameter in (first, second) if both else (second,):
                first.grad = second.grad = None
                parameter.grad = torch.full_like(parameter, sign)
                optimizer.step()
        found.append(second.detach())
    assert torch.equal(*found)


def test_bfloat16_weights(device):
    """y is the difference of two rounded weights; the sign of what rounding has left decides, exactly."""
    model = network(torch.bfloat16, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    before, plain = [], []
    optimizer.register_step_pre_hook(lambda *_: before.extend(p.detach().float() for p in model.parameters()))
    optimizer.register_step_post_hook(lambda *_: plain.extend(p.detach().float() for p in model.parameters()))
    cautious = congruency.Cautious(optimizer)
    masked = 0
    for step in range(STEPS):
        before.clear()
        plain.clear()
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        for p, old, new in zip(model.parameters(), before, plain, strict=True):
            y = old - new  # exact: both have 8 bits
            kept = y.sign() * p.grad.float().sign() > 0
            scale = kept.numel() / max(int(kept.sum()), 1e-3 * kept.numel())
            assert torch.equal(
                p,
                (old - torch.where(kept, y * torch.tensor(scale, dtype=torch.float32, device=device), 0.0)).bfloat16(),
            )
            masked += int((~kept).sum())
    assert masked > 100
    assert cautious.stats.kept.dtype == torch.float64


@pytest.mark.parametrize(
    "make",
    [congruency.Cautious, lambda o: congruency.Cautious(o, decay=True, rescale=False),
     lambda o: congruency.DCL(o, correct="update", mode="anchor", margin=0.1),
     lambda o: congruency.DCL(o, correct="update", mode="anchor", margin=0.1, blocks="row"),
     lambda o: congruency.DCL(o, correct="update", mode="anchor", margin=0.1, blocks="element"),
     lambda o: congruency.DCL(o, correct="update", mode="anchor", accumulate="gradients", margin=0.1)],
    ids=["cautious", "mask decay", "update", "row", "element", "gradients"],
)  # fmt: skip
def test_a_step_skipped_by_the_scaler_leaves_the_weights_bit_for_bit(make, device):
    """Fused AdamW skips by a flag, with weight decay 0.1 left out too; and scaled steps are those without a scaler."""

    def path(scaled):
        model = network(torch.float32, device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1, fused=True)
        corrector = make(optimizer)
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, growth_interval=1000)
        result = []
        for step in range(12):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            if not scaled:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                if step == 5:  # one more step, whose gradient overflows
                    model[2].weight.grad[0, 0] = math.inf
                    before = [p.detach().clone() for p in model.parameters()]
                    scaler.step(optimizer)
                    scaler.update()
                    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
                    optimizer.zero_grad()
                    scaler.scale(loss_of(model, step)).backward()
                scaler.step(optimizer)
                scaler.update()
            result.append(weights(model))
        return torch.stack(result), corrector

    (ours, corrector), (plain, _) = path(True), path(False)
    # the scaler's flag turns the factor of the decay into float32, and a float32 weight's y follows
    torch.testing.assert_close(ours[:5], plain[:5], rtol=1e-4, atol=1e-5)
    assert torch.isfinite(ours).all()
    assert int(corrector.stats.corrected_steps) > 3
    if not isinstance(corrector, congruency.DCL):  # the references' clock counts the skipped step
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)
    for source in corrector.sources:
        for slots in getattr(source, "_slots", {}).values():
            assert all(torch.isfinite(slot).all() for slot in slots)


def test_no_gradient_is_held_between_steps():
    """What is prepared for the next step knows gradients by their addresses; holding them would cost a copy."""
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    congruency.Cautious(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
    held = [weakref.ref(p.grad) for p in model.parameters()]
    optimizer.zero_grad()
    gc.collect()
    assert [ref() for ref in held] == [None, None]
