"""The lower bound of Theorem 1 beside the congruency it bounds, on functions whose Lipschitz constant is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from congruency.measure import congruency
from congruency.measure.bound import BoundForm, lower_bound

__all__ = ["FORMS", "PROBLEMS", "Comparison", "Problem", "compare", "compare_all", "logistic", "quadratic"]

FORMS: tuple[BoundForm, ...] = get_args(BoundForm)
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Problem:
    """A function to descend on.

    Attributes:
        name: in tables.
        description: what it is, and where its constant comes from.
        gradient: (p,) -> (p,), float64.
        start: (p,).
        lipschitz: L, of the gradient: exact, or at least not too small.
    """

    name: str
    description: str
    gradient: Callable[[Tensor], Tensor]
    start: Tensor
    lipschitz: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Gradient descent with one step size; all of shape (K,), for iterations 1..K.

    Attributes:
        relative: the step size times L.
        measured: the congruency.
        bounds: each form of the bound.
    """

    relative: float
    measured: Tensor
    bounds: dict[BoundForm, Tensor]

    def gap(self, form: BoundForm = "sharp") -> float:
        """Mean of measured less bound: 0 is tight, and it cannot be above 2."""
        return float((self.measured - self.bounds[form]).nanmean())

    def vacuous(self, form: BoundForm = "sharp") -> float:
        """Share of the iterations, in percent, in which the bound is -1 and so says nothing."""
        return 100 * _share(self.bounds[form] <= -1, self.measured)

    def tight_for(self, within: float, form: BoundForm = "sharp") -> int:
        """How many first iterations the bound stays within so much of the measured value."""
        loose = (self.measured - self.bounds[form] > within).nonzero()
        return int(loose[0]) if len(loose) else len(self.measured)

    def vacuous_from(self, form: BoundForm = "sharp") -> int | None:
        """The first iteration, from 1, in which the bound is -1; None where it never is."""
        empty = (self.bounds[form] <= -1).nonzero()
        return int(empty[0]) + 1 if len(empty) else None

    def broken(self, form: BoundForm = "printed") -> float:
        """Share of the iterations, in percent, in which the congruency is below what should bound it."""
        return 100 * _share(self.bounds[form] > self.measured + _ROUNDING, self.measured)


def quadratic(size: int = 10, condition: float = 20.0) -> Problem:
    """``1/2 sum_i h_i x_i^2`` with curvatures from 1/condition to 1: L is the largest, 1."""
    curvatures = torch.logspace(0, 1, size, base=1 / condition, dtype=torch.float64)
    return Problem(
        "quadratic",
        f"half the sum of h x², {size} variables, h from {1 / condition:g} to 1: L is the largest h",
        lambda x: curvatures * x,
        torch.ones(size, dtype=torch.float64),
        1.0,
    )


def logistic(samples: int = 200, size: int = 10, penalty: float = 1e-3, seed: int = 0) -> Problem:
    """Logistic regression on two clouds of points: L is at most the largest eigenvalue of X'X / 4n, and the penalty.

    A quarter is the steepest that the logistic function gets; it does get there, at the start, where all is 0.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 2 * 2.0 - 1
    points = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    points = points + 0.5 * labels[:, None].double() * torch.linspace(1, 0, size, dtype=torch.float64)
    signed = points * labels[:, None].double()

    def gradient(w: Tensor) -> Tensor:
        return -(signed * torch.sigmoid(-(signed @ w))[:, None]).mean(0) + penalty * w

    largest = float(torch.linalg.eigvalsh(points.T @ points)[-1])
    return Problem(
        "logistic",
        f"logistic regression on {samples} points in {size} dimensions, two classes, a penalty of {penalty:g}: L from "
        "the largest eigenvalue of the points' second moments, over 4",
        gradient,
        torch.zeros(size, dtype=torch.float64),
        largest / (4 * samples) + penalty,
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {"quadratic": quadratic, "logistic": logistic}


def compare(problem: Problem, relative: float, steps: int) -> Comparison:
    """Descend with the step size ``relative / L`` and compare, from the first iteration on.

    It ends early where the gradients leave the range in which a cosine can be told.
    """
    if not relative > 0:
        raise ValueError(f"a step size must be positive, got {relative}")
    rate = relative / problem.lipschitz
    x, gradients = problem.start, []
    for _ in range(steps + 1):
        g = problem.gradient(x)
        if not 1e-100 < float(g.norm()) < 1e100:
            break
        gradients.append(g)
        x = x - rate * g
    if len(gradients) < 2:
        raise ValueError(f"{problem.name} with a step of {relative:g} / L has nothing to compare after one step")
    g = torch.stack(gradients)
    measured = congruency(g[1:], g.cumsum(0)[:-1])
    bounds = {form: lower_bound(g, rate, problem.lipschitz, form=form)[1:] for form in FORMS}
    return Comparison(relative, measured, bounds)


def compare_all(problem: Problem, relatives: Sequence[float], steps: int) -> list[Comparison]:
    """One comparison a step size."""
    return [compare(problem, relative, steps) for relative in relatives]


def _share(holds: Tensor, counted: Tensor) -> float:
    defined = ~counted.isnan()
    return float((holds & defined).sum() / defined.sum().clamp(min=1))
