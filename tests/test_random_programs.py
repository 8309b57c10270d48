"""Random programs of steps and events: what is kept from step to step gives the bits of what is prepared anew."""

import copy
import random

import pytest
import torch
from torch import nn

import congruency
from congruency.step.selection import Selection

SHAPES = [(3,), (2, 3), (), (0,), (2, 2, 2, 2), (40, 30), (4,), (4,)]
STEPS = 25


class Vectors(congruency.ConstraintSource):
    """Vectors that stay in one place and change there, behind a gate that opens and shuts."""

    capacity = active = 2
    layout = "in one place"

    def __init__(self, parameters, gated):
        self.held = {p: [torch.randn_like(p) for _ in range(2)] for p in parameters}
        self.gate = torch.ones((), dtype=torch.bool, device=parameters[0].device) if gated else None

    def combination(self):
        return torch.eye(2, dtype=torch.float64)

    def basis(self, parameter):
        return congruency.Basis(self.held[parameter])

    def settings(self):
        return {"source": "vectors"}


class Program:
    """One of two runs that draw the same; the second forgets before every step what the first keeps."""

    def __init__(self, seed, anew, device):
        torch.manual_seed(seed)
        self.draw, self.anew = random.Random(seed), anew
        draw = self.draw
        dtype = draw.choice([torch.float32, torch.float64])
        shapes = draw.sample(SHAPES, draw.randint(2, 5))
        self.channels_last = draw.random() < 0.3  # gradients; from step to step the same, so that rounding is
        self.parameters = [nn.Parameter(torch.randn(shape, dtype=dtype, device=device)) for shape in shapes]
        middle = draw.randint(1, len(shapes) - 1)
        groups = [{"params": self.parameters[:middle], "weight_decay": 0.5}, {"params": self.parameters[middle:]}]
        kind = draw.choice([torch.optim.SGD, torch.optim.AdamW])
        self.optimizer = kind(groups, lr=0.1, weight_decay=0.0)
        correct = draw.choice(["gradient", "gradient", "update"])
        blocks = draw.choice(["joint", "group", "tensor", "row", "element"])
        if correct == "update" and blocks == "element" and draw.random() < 0.7:
            self.corrector = congruency.Cautious(self.optimizer, decay=draw.random() < 0.5)
        else:
            constraints = [self.source(blocks, correct) for _ in range(draw.choice([1, 1, 2]))]
            self.corrector = congruency.Corrector(
                self.optimizer, constraints=constraints, correct=correct, blocks=blocks,
                trigger=draw.choice(["always", "violated"]),
            )  # fmt: skip

    def source(self, blocks, correct):
        draw = self.draw
        margin = draw.choice([0.0, 0.0, 0.1])
        kind = draw.choice(["references"] * 3 + ["vectors"] + ["descent"] * (correct == "update"))
        if kind == "descent":
            return congruency.Descent()
        if kind == "vectors":
            return Vectors(self.parameters, gated=blocks != "element" and draw.random() < 0.5)
        count, mode = draw.choice([1, 1, 3]), draw.choice(["concentrate", "anchor"])
        floor = None if blocks == "element" or mode == "anchor" else draw.choice([None, 0.3, 1.0])
        return congruency.References(
            count, window=draw.choice([None, count + 3]), mode=mode, margin=margin, floor=floor,
            returning=draw.random() < 0.5, accumulate=draw.choice(["weights", "gradients"]),
        )  # fmt: skip

    def event(self):
        """Change one thing between two steps."""
        draw, groups = self.draw, self.optimizer.param_groups
        source = draw.choice(self.corrector.sources)
        kinds = "margin floor vectors gate rate decay freeze moved threads group copy reset"
        kind = draw.choice(kinds.split())
        if kind == "margin" and not source.needs_update:
            source.margin = draw.choice([0.0, 0.2])
        elif kind == "floor" and source.floor is not None:
            source.floor = draw.choice([0.1, 0.5, 1.0])
        elif kind == "vectors" and isinstance(source, Vectors):
            for vectors in source.held.values():
                torch._foreach_mul_(vectors, -1.0)
        elif kind == "gate" and source.gate is not None:
            source.gate.logical_not_()
        elif kind in ("rate", "decay"):
            draw.choice(groups)["lr" if kind == "rate" else "weight_decay"] = draw.choice([0.05, 0.3])
        elif kind == "freeze":
            parameter = draw.choice(self.parameters)
            parameter.requires_grad_(not parameter.requires_grad)
        elif kind == "moved":
            parameter = draw.choice(self.parameters)
            parameter.data = parameter.data.clone()
        elif kind == "threads":
            torch.set_num_threads(draw.choice([1, 2]))
        elif kind == "group" and len(groups[0]["params"]) > 1:
            groups[1]["params"].insert(0, groups[0]["params"].pop())
        elif kind == "copy":
            copied = copy.deepcopy((self.parameters, self.optimizer, self.corrector))
            self.parameters, self.optimizer, self.corrector = copied
        elif kind == "reset":
            self.corrector.reset()

    def step(self):
        """An event, gradients that partly point back, and the optimizer's step; all weights and gradients after it."""
        if self.draw.random() < 0.6:
            self.event()
        missing = self.draw.sample(self.parameters, 1) if self.draw.random() < 0.2 else []
        for parameter in self.parameters:
            gradient = torch.randn_like(parameter) + self.draw.choice([0.0, 0.5]) * parameter.detach()
            if gradient.ndim == 4 and self.channels_last:
                gradient = gradient.to(memory_format=torch.channels_last)
            left_out = not parameter.requires_grad or any(parameter is other for other in missing)
            parameter.grad = None if left_out else gradient
        if self.anew:
            self.forget()
        self.optimizer.step()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return [tensor.detach().clone() for tensor in (*self.parameters, *gradients)]

    def forget(self):
        """Keep no more than a copy would."""
        corrector = self.corrector
        corrector._plan, corrector._selector._last = None, Selection([], [], 0)
        for part in (corrector._gather, corrector._problems):
            vars(part).update(part.__getstate__())


@pytest.mark.filterwarnings(
    "ignore:floor=None is the paper's form", "ignore:SGD without momentum", "ignore:none of the"
)
@pytest.mark.parametrize("seed", range(50))
def test_what_is_kept_gives_what_is_made_anew(seed, device):
    threads = torch.get_num_threads()
    paths = []
    try:
        for anew in (False, True):
            program = Program(seed, anew, device)
            paths.append([program.step() for _ in range(STEPS)])
    finally:
        torch.set_num_threads(threads)
    for step, (kept, made) in enumerate(zip(*paths, strict=True)):
        for one, other in zip(kept, made, strict=True):
            assert torch.equal(one, other), (seed, step)
