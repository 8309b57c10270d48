"""Random programs of steps and events: every step is that of the slow model, and what is kept changes no bit."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from slow_step import SlowStep, cautious, flat
from torch import nn

import congruency
from congruency.step.selection import Selection
from congruency.step.updates import decay_factor

SHAPES = [(3,), (2, 3), (), (0,), (2, 2, 2, 2), (40, 30), (4,), (4,), (5, 5)]
STEPS = 25
KINDS = [
    "copy", "decay", "fewer", "floor", "freeze", "gate", "given", "group", "joined", "left", "margin", "moved",
    "pickle", "rate", "reset", "resumed", "returning", "saved", "threads", "turned", "vectors",
]  # fmt: skip


class Vectors(congruency.ConstraintSource):
    """Vectors that stay in one place and change there, some of which count, behind a gate that opens and shuts."""

    capacity = active = 2
    layout = "in one place"

    def __init__(self, parameters, gated, fixed):
        self.held = {p: [torch.randn_like(p) for _ in range(2)] for p in parameters}
        self.active, self.version, self.fixed = 2, 0 if fixed else None, fixed
        if gated:
            self.gate = torch.ones((), dtype=torch.bool, device=parameters[0].device)

    @property
    def recorded(self):
        return self.version

    def given(self, parameter):
        if parameter not in self.held:
            self.held[parameter] = [torch.ones_like(parameter) for _ in range(2)]
        return self.held[parameter][: self.active]

    def combination(self):
        return torch.eye(self.active, dtype=torch.float64)

    def basis(self, parameter):
        return congruency.Basis(self.given(parameter), fixed=min(self.fixed, self.active))

    def settings(self):
        return {"source": "vectors"}


class Given(congruency.Directions):
    """Directions that the slow model can ask for."""

    def given(self, parameter):
        return self._directions.get(parameter, [torch.zeros_like(parameter)] * self.active)


class Program:
    """A run whose settings, gradients and events are drawn from a seed; with ``anew`` it keeps nothing it prepared."""

    def __init__(self, seed, anew=False, device="cpu", dtype=None):
        torch.manual_seed(seed)
        self.draw, self.anew = random.Random(seed), anew
        draw = self.draw
        self.dtype = dtype or draw.choice([torch.float32, torch.float64])
        shapes = draw.sample(SHAPES, draw.randint(2, 5))
        self.parameters = [nn.Parameter(torch.randn(s, dtype=self.dtype, device=device)) for s in shapes]
        self.rested = []  # parameters that are not in the optimizer now
        middle = draw.randint(1, len(shapes) - 1)
        groups = [{"params": self.parameters[:middle], "weight_decay": 0.5}, {"params": self.parameters[middle:]}]
        kind, options = draw.choice([
            (torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.7}), (torch.optim.AdamW, {"eps": 0.1}),
            (torch.optim.AdamW, {"eps": 0.1}), (torch.optim.SGD, {"momentum": 0.7, "nesterov": True}),
        ])  # fmt: skip  # with a small eps gradients that are 0 but for rounding count
        options |= {"maximize": draw.random() < 0.15}
        self.fused = "momentum" not in options and draw.random() < 0.4  # torch's needs all gradients with momentum
        options |= {"fused": True} if self.fused else {"foreach": draw.random() < 0.5}
        self.optimizer = kind(groups, lr=0.1, weight_decay=0.0, **options)
        self.correctors = [self.corrector(correct) for correct in draw.choice(["g", "g", "u", "gu", "ggu"])]
        self.kept, self.saved, self.slow = [], None, [SlowStep(c.sources) for c in self.correctors]
        self.layout = (
            None if self.fused else draw.choice([None, "channels_last", "mixed"])
        )  # torch's fused ignore order

    def corrector(self, correct):
        draw, correct = self.draw, {"g": "gradient", "u": "update"}[correct]
        chosen = self.parameters[1:] if draw.random() < 0.2 else None
        blocks = draw.choice(["joint", "group", "tensor", "row", "element"])
        if correct == "update" and blocks == "element" and draw.random() < 0.7:
            return congruency.Cautious(
                self.optimizer, chosen, decay=draw.random() < 0.5, rescale=(rescale := draw.random() < 0.7),
                max_rescale=2.0 if rescale and draw.random() < 0.3 else None,
            )  # fmt: skip
        constraints = [self.source(blocks, correct) for _ in range(draw.choice([1, 1, 2]))]
        return congruency.Corrector(
            self.optimizer, chosen, constraints=constraints, correct=correct, blocks=blocks,
            trigger=draw.choice(["always", "violated"]),
        )  # fmt: skip

    def source(self, blocks, correct):
        draw = self.draw
        margin = draw.choice([0.0, 0.0, 0.1])
        kind = draw.choice(["references"] * 4 + ["vectors", "given"] + ["descent"] * (correct == "update"))
        if kind == "descent":
            return congruency.Descent()
        if kind == "given":
            return Given(margin)
        if kind == "vectors":
            return Vectors(self.parameters, blocks != "element" and draw.random() < 0.5, draw.choice([0, 2]))
        count, mode = draw.choice([1, 1, 3]), draw.choice(["concentrate", "anchor"])
        floor = None if blocks == "element" or mode == "anchor" else draw.choice([None, 0.3, 0.3, 1.0])
        window = draw.choice([None, count + 3])
        return congruency.References(
            count, window=window, offset=draw.choice([0, 0, 1]), mode=mode, margin=margin,
            floor=floor, returning=draw.random() < 0.5, accumulate=draw.choice(["weights", "gradients"]),
        )  # fmt: skip

    def event(self):
        """Change one thing between two steps."""
        draw, groups = self.draw, self.optimizer.param_groups
        corrector = draw.choice(self.correctors)
        source = draw.choice(corrector.sources)
        parameter = draw.choice(self.parameters)
        kind = draw.choice(KINDS)
        vectors = isinstance(source, Vectors)
        if kind == "margin" and not source.needs_update:
            source.margin = draw.choice([0.0, 0.2])
        elif kind == "floor" and source.floor is not None:
            source.floor = draw.choice([0.1, 0.5, 1.0])
        elif kind == "returning":
            source.returning = not source.returning
        elif kind == "vectors" and vectors:
            for held in source.held.values():
                torch._foreach_mul_(held, -1.0)
            source.version = None if source.version is None else source.version + 1
        elif kind == "fewer" and vectors:
            source.active = draw.choice([0, 1, 2])
        elif kind == "gate" and vectors and corrector.blocks != "element":
            source.gate = draw.choice([None, torch.tensor(True), torch.tensor(False)])
            source.gate = source.gate if source.gate is None else source.gate.to(parameter.device)
        elif kind == "given" and isinstance(source, Given):
            some = draw.sample(self.parameters, draw.randint(1, len(self.parameters)))
            source.set([[torch.randn_like(p) for p in some] for _ in range(draw.randint(0, 3))], some)
        elif kind in ("rate", "decay"):
            value = draw.choice([0.05, 0.3])
            if kind == "rate" and draw.random() < 0.3 and not groups[0].get("foreach"):
                value = torch.tensor(value, dtype=torch.float64)
            draw.choice(groups)["lr" if kind == "rate" else "weight_decay"] = value
        elif kind == "freeze":
            parameter.requires_grad_(not parameter.requires_grad)
        elif kind == "moved":
            parameter.data = parameter.data.clone()
        elif kind == "turned" and parameter.ndim == 2 and parameter.shape[0] == parameter.shape[1]:
            if not (self.fused and parameter.is_cuda):  # torch's kernel refuses gradients of another layout there
                parameter.data = parameter.data.t()  # the same memory in another order
        elif kind == "threads":
            torch.set_num_threads(draw.choice([1, 2]))
        elif kind == "group" and len(groups[0]["params"]) > 1:
            groups[1]["params"].insert(0, groups[0]["params"].pop())
        elif kind == "left" and len(groups[0]["params"]) > 1:
            self.rested.append(groups[0]["params"].pop(0))
        elif kind == "joined" and self.rested:
            self.optimizer.add_param_group({"params": [self.rested.pop()], "weight_decay": 0.1})
        elif kind in ("copy", "pickle"):
            held = (self.parameters, self.rested, self.optimizer, self.correctors)
            held = copy.deepcopy(held) if kind == "copy" else pickle.loads(pickle.dumps(held))
            self.parameters, self.rested, self.optimizer, self.correctors = held
        elif kind == "reset":
            self.reset(corrector, self.slow[self.correctors.index(corrector)])
        elif kind == "saved":
            self.save()
        elif kind == "resumed" and self.saved is not None:
            self.resume()

    @staticmethod
    def reset(corrector, slow):
        corrector.reset()
        slow.lengths, slow.last_active, slow.time = {}, None, [0] * len(corrector.sources)
        for held in slow.slots:
            held.clear()

    def save(self):
        states = [corrector.state_dict() for corrector in self.correctors]
        places = {id(p): i for i, p in enumerate(self.parameters)}
        order = [[places[id(p)] for p in group["params"]] for group in self.optimizer.param_groups]
        weights = [p.detach().clone() for p in self.parameters]
        self.saved = copy.deepcopy((states, self.slow)), order, weights

    def resume(self):
        """Go back to the state that was saved, if the optimizer still has its parameters."""
        (states, slow), order, weights = self.saved
        places = {id(p): i for i, p in enumerate(self.parameters)}
        if order != [[places[id(p)] for p in group["params"]] for group in self.optimizer.param_groups]:
            return
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, weights, strict=True):
                parameter.copy_(saved)
        for corrector, state in zip(self.correctors, states, strict=True):
            for source, saved in zip(corrector.sources, state["settings"]["sources"], strict=True):
                for name in ("margin", "floor", "returning"):
                    if name in saved:
                        setattr(source, name, saved[name])
            corrector.load_state_dict(copy.deepcopy(state))
        self.slow = copy.deepcopy(slow)

    def gradient(self, parameter):
        """One that partly points back, in memory of its own, of an earlier one or of all, in whatever order."""
        draw = self.draw
        gradient = torch.randn_like(parameter) + draw.choice([0.0, 0.5]) * parameter.detach()
        gradient = gradient.contiguous()
        if self.layout == "channels_last" and gradient.ndim == 4:
            return gradient.to(memory_format=torch.channels_last)
        if self.layout == "mixed":
            kind = draw.choice(["own", "turned", "negated", "shifted", "before"])
            if kind == "turned" and gradient.ndim == 2:
                return gradient.t().contiguous().t()
            if kind == "negated" and not self.optimizer.param_groups[0]["foreach"]:
                return torch._neg_view(gradient)
            if kind == "shifted":
                wide = gradient.new_empty(gradient.numel() + 3)
                return wide[1 : 1 + gradient.numel()].view_as(gradient).copy_(gradient)
            if kind == "before" and parameter.grad is not None:
                return parameter.grad.copy_(gradient)
        return gradient

    def step(self, check=False):
        """An event, gradients and the optimizer's step; all weights and gradients after it."""
        draw = self.draw
        if draw.random() < 0.6:
            self.event()
        missing = draw.choice([0, 0, 0, 0, 1, 1, len(self.parameters)])
        missing = {id(p) for p in draw.sample(self.parameters, min(missing, len(self.parameters)))}
        for parameter in self.parameters:
            gradient = self.gradient(parameter)
            left_out = not parameter.requires_grad or id(parameter) in missing
            parameter.grad = None if left_out else gradient
        self.kept = (self.kept + [p.grad for p in self.parameters])[-draw.choice([0, 30]) :]  # others' memory is free
        scale, skipped = 1.0, False
        if self.fused:
            scale, skipped = draw.choice([1.0, 4.0]), draw.random() < 0.2
            self.optimizer.grad_scale = torch.tensor(scale, device=self.parameters[0].device)
            self.optimizer.found_inf = torch.tensor(float(skipped), device=self.parameters[0].device)
        for corrector in self.correctors if self.anew else []:
            forget(corrector)
        if check:
            self.compare(scale, skipped)
        else:
            self.take()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return [tensor.detach().clone() for tensor in (*self.parameters, *gradients)]

    def take(self):
        """The optimizer's step; sometimes its closure makes the gradients."""
        if self.overwrites or self.draw.random() < 0.8:
            self.optimizer.step()
            return
        gradients = [parameter.grad for parameter in self.parameters]

        def closure():
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient

        self.optimizer.zero_grad()
        self.optimizer.step(closure)

    @property
    def overwrites(self):
        """Whether torch writes to the gradients; they are put back where updates are corrected."""
        group = self.optimizer.param_groups[0]
        return group.get("nesterov") and group["foreach"]

    def compare(self, scale, skipped):
        """Take a step, and compare it with the slow one."""
        parameters, groups = self.parameters, self.optimizer.param_groups
        places = {id(p): i for i, p in enumerate(parameters)}
        selected = [[places[id(p)] for p in group["params"]] for group in groups]
        order = [i for group in selected for i in group]
        group_of = {i: k for k, group in enumerate(selected) for i in group}
        weights = {i: flat(p) for i, p in enumerate(parameters)}
        given = {i: flat(parameters[i].grad) for i in order if parameters[i].grad is not None}
        held = [i for i in order if parameters[i].requires_grad or i in given]
        pairs = list(zip(self.correctors, self.slow, strict=True))
        x, added, parts = given, [], []  # of each corrector, what it adds up, and which of the parameters it corrects
        for corrector, slow in pairs:  # gradients first, as they are attached
            chosen = corrector._chosen
            part = [i for i in order if chosen is None or any(parameters[i] is p for p in chosen)]
            slow.begin(corrector, [[i for i in group if i in part] for group in selected], weights, {*held} & {*part})
            own = {i: g for i, g in x.items() if i in part}
            if corrector.target == "gradient":
                own, _ = slow.correct(corrector, own, weights, own, parameters, group_of, scale=scale)
            x = {**x, **own}
            added.append({i: g / scale for i, g in own.items()})
            parts.append(part)
        zero = any(np.any((abs(x[i]) < 1e-9) & (given[i] != 0)) for i in x)  # but for rounding
        zero &= self.correctors[-1].target == "update"  # their signs decide there
        twin = self.twin(x, order, skipped, scale)
        after = {i: flat(p) for i, p in zip(order, twin_parameters(twin), strict=True)}
        momentum = {
            i: flat(buffer) for i, p in zip(order, twin_parameters(twin), strict=True)
            if i in given and (buffer := momentum_of(twin, p)) is not None
        }  # fmt: skip
        used = x if skipped else {i: g / scale for i, g in x.items()}
        ascent = -1.0 if groups[0]["maximize"] else 1.0
        for (corrector, slow), part in zip(pairs, parts, strict=True):
            own = {i: g for i, g in used.items() if i in part}
            if corrector.target == "update" and own:
                factors = [1.0 if skipped else float(decay_factor(self.optimizer, group)) for group in groups]
                factors = {i: factors[group_of[i]] for i in own}
                if isinstance(corrector, congruency.Cautious):
                    after |= cautious(slow, corrector, weights, after, factors, own, ascent)
                    continue
                decayed = {i: factors.get(i, 1.0) * w for i, w in weights.items()}
                y = {i: decayed[i] - after[i] for i in own}
                rates = [0.0 if skipped else float(group["lr"]) for group in groups]
                masks = corrector.blocks == "element"
                moved = None if masks else {i: m for i, m in momentum.items() if i in own}
                y, moved = slow.correct(corrector, y, decayed, own, parameters, group_of, rates=rates, momentum=moved)
                after |= {i: decayed[i] - y[i] for i in y}
                momentum |= {} if masks or skipped else moved
            elif corrector.target == "update":
                slow.correct(corrector, {}, weights, {}, parameters, group_of)
        self.take()
        for (corrector, slow), gradients in zip(pairs, added, strict=True):
            slow.finish(corrector, gradients, not skipped)
        if zero or any(slow.tied for slow in self.slow):  # what is added up from now on may differ
            for corrector, slow in pairs:
                self.reset(corrector, slow)
            return
        for i in order:
            np.testing.assert_allclose(flat(parameters[i]), after[i], rtol=1e-6, atol=1e-9, err_msg=f"weights {i}")
        for i, gradient in () if self.overwrites and self.correctors[-1].target == "gradient" else used.items():
            np.testing.assert_allclose(flat(parameters[i].grad), gradient, rtol=1e-6, atol=1e-9, err_msg=f"grad {i}")
        for i, expected in momentum.items():
            found = flat(momentum_of(self.optimizer, parameters[i]))
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=f"momentum {i}")

    def twin(self, gradients, order, skipped, scale):
        """A copy of the optimizer that has taken this step without any corrector."""
        twin = copy.deepcopy(self.optimizer)
        for i, p in zip(order, twin_parameters(twin), strict=True):
            p.grad = None
            if i in gradients:
                p.grad = torch.from_numpy(gradients[i].copy()).to(p).view(p.shape)
        if self.fused:
            twin.grad_scale, twin.found_inf = torch.tensor(scale), torch.tensor(float(skipped))
        twin.step()
        return twin


def twin_parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def momentum_of(optimizer, parameter):
    state = optimizer.state.get(parameter, {})
    return state.get("momentum_buffer", state.get("exp_avg"))


def forget(corrector):
    """Keep no more than a copy would."""
    corrector._plan, corrector._selector._seen, corrector._selector._last = None, [], Selection([], [], 0)
    entries = corrector._problems.distances._entries
    for part in (corrector._gather, corrector._problems):
        vars(part).update(part.__getstate__())
    if entries is not None:
        corrector._problems.distances._entries = corrector._selector.select().entries


IGNORED = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def threads():
    """The number of threads as it was, at the end."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@IGNORED
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("seed", range(50))
def test_what_is_kept_gives_what_is_made_anew(seed, device):
    paths = []
    for anew in (False, True):
        program = Program(seed, anew, device)
        paths.append([program.step() for _ in range(STEPS)])
    for step, (kept, made) in enumerate(zip(*paths, strict=True)):
        for one, other in zip(kept, made, strict=True):
            assert torch.equal(one, other), (seed, step)


@IGNORED
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("seed", range(50))
def test_every_step_is_that_of_the_slow_model(seed):
    program = Program(seed, dtype=torch.float64)
    for _ in range(STEPS):
        program.step(check=True)
