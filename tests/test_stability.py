"""Where the plain optimizer converges, so does the corrected one: random convex quadratics, every optimizer."""

import random
import warnings

import pytest
import torch
from torch import nn

import congruency

STEPS = 150
PROBLEMS = 12

# Learning rates for a largest curvature of 1, at which the plain optimizer converges within the steps.
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1.0),
    "SGD momentum 0.5": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5),
    "SGD momentum 0.9": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9),
    "SGD Nesterov 0.9": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, nesterov=True),
    "SGD momentum 0.99": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.99),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.5),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=10.0),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1, weight_decay=0.0),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.3),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.05),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.05, weight_decay=0.0),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.05),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.02),
    "RMSprop momentum 0.9": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.9),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.02),
}
WINDOWS = [(1, 2), (1, 5), (2, 10), (3, 50), (5, 100), (1, 500), (4, 20), (1, 50), (2, 7)]  # references, window


def problems():
    """Curvatures from 1 down to 1/condition, condition 1 to 1e4, in 2 to 200 dimensions, and a start for each."""
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    made = []
    for i in range(PROBLEMS):
        condition, shape = 10 ** (4 * i / (PROBLEMS - 1)), rng.choice([(1, 2), (1, 8), (4, 4), (10, 20)])
        curvature = condition ** -torch.rand(shape, generator=generator, dtype=torch.float64)
        curvature.view(-1)[0] = 1.0
        made.append((curvature, torch.randn(shape, generator=generator, dtype=torch.float64)))
    return made


def final_losses(make, wrap=None, together=False):
    """Of every problem, the greatest loss of the last third over the first, and how many steps were corrected.

    The greatest, since momentum oscillates: a single loss says more about the phase than about convergence.

    All problems are tensors of one optimizer: with blocks="tensor" each is corrected alone, with "joint" they are one
    problem, whose loss is their sum (``together``): a joint correction may move loss from one tensor to another.
    """
    held = problems()
    weights = [nn.Parameter(start.clone()) for _, start in held]
    optimizer = make(weights)
    corrector = wrap(optimizer) if wrap else None
    late = []
    for step in range(STEPS):
        for weight, (curvature, _) in zip(weights, held, strict=True):
            weight.grad = curvature * weight.detach()
        optimizer.step()
        if step >= STEPS - STEPS // 3:
            late.append([float(w.detach().flatten() @ (c * w.detach()).flatten())
                         for w, (c, _) in zip(weights, held, strict=True)])  # fmt: skip
    firsts = [float((curvature * start**2).sum()) for curvature, start in held]
    if together:
        late, firsts = [[sum(losses)] for losses in late], [sum(firsts)]
    losses = [max(column) / first for column, first in zip(zip(*late, strict=True), firsts, strict=True)]
    return losses, 0 if corrector is None else int(corrector.stats.corrected_steps)


def dcl(place, **settings):
    references, window = WINDOWS[place % len(WINDOWS)]
    return lambda optimizer: congruency.DCL(optimizer, references=references, window=window, **settings)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_converges_converges_with_every_default(name):
    """Converges: stays below half of its start at last. Corrected: too, and above the plain one by a tenth at most.

    A tenth of the start, since a correction may delay an optimizer; what diverges grows by orders of magnitude.
    """
    plain = {together: final_losses(OPTIMIZERS[name], together=together)[0] for together in (False, True)}
    assert sum(loss < 0.5 for loss in plain[False]) >= PROBLEMS // 2
    place = 4 * list(OPTIMIZERS).index(name)  # every window with gradients and with updates
    corrections = [(congruency.Cautious, False)]
    for k, correct in enumerate(("gradient", "update")):
        corrections += [(dcl(place + k, correct=correct, blocks="tensor"), False)]
        corrections += [(dcl(place + k + 1, correct=correct, blocks="joint"), True)]
    for wrap, together in corrections:
        found, _ = final_losses(OPTIMIZERS[name], wrap, together)
        for before, after in zip(plain[together], found, strict=True):
            if before < 0.5:
                assert after < 0.5, (wrap, before, after)
                assert after <= before + 0.1, (wrap, before, after)


def test_every_optimizer_of_torch_is_among_them():
    classes = {c for c in vars(torch.optim).values() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)}
    others = {torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam}  # which are refused
    assert {type(make([nn.Parameter(torch.zeros(2, 2))])) for make in OPTIMIZERS.values()} == classes - others


@pytest.mark.parametrize("name", ["SGD momentum 0.9", "SGD momentum 0.99", "Adam"])
def test_the_defaults_do_correct_there(name):
    """So that the test above says something."""
    for wrap in (dcl(6, blocks="tensor"), dcl(6, correct="update", blocks="tensor"), congruency.Cautious):
        assert final_losses(OPTIMIZERS[name], wrap)[1] > 0


def test_the_paper_form_diverges_with_momentum_and_warns():
    """The gradient that would bring the weights back is projected away while the momentum carries on outward."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match="floor=None is the paper's form, which can diverge with momentum"):
        congruency.DCL(optimizer, window=50, floor=None)
    adam = torch.optim.Adam([nn.Parameter(torch.zeros(2))])
    with pytest.warns(UserWarning, match="use the default floor, or an optimizer without momentum"):
        congruency.DCL(adam, floor=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses, _ = final_losses(
            OPTIMIZERS["SGD momentum 0.9"],
            lambda optimizer: congruency.DCL(optimizer, window=20, floor=None, blocks="tensor"),
        )
    worse = sum(not loss < 100 for loss in losses)
    assert worse >= 3


@pytest.mark.parametrize(
    ("settings", "momentum"), [({"floor": None}, 0.0), ({}, 0.9), ({"floor": None, "mode": "anchor"}, 0.9)], ids=str
)
def test_no_warning_where_nothing_diverges(settings, momentum):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        congruency.DCL(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=momentum), **settings)
