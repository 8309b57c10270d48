"""Descending on a surface with an optimizer, plainly and with DCL: what the paper's Figure 5 shows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from congruency.dcl import DCL
from congruency.studies.analysis.surfaces import Surface

__all__ = ["MODES", "OPTIMIZERS", "Correction", "Descent", "Mode", "Path", "descend", "descend_all", "find"]

Mode = Literal["baseline", "concentrate", "anchor"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Descent:
    """An optimizer with what the figure gives it.

    Attributes:
        name: in tables.
        kind: a class of ``torch.optim``.
        rates: the learning rates to compare.
        window: of DCL, in steps.
        steps: how many.
        settings: the optimizer's other keywords.
    """

    name: str
    kind: str
    rates: tuple[float, ...]
    window: int | None
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be a positive number, got {self.steps}")
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"learning rates must be positive numbers, got {list(self.rates)}")
        if len(set(self.rates)) < len(self.rates):
            raise ValueError(f"learning rates must differ, got {list(self.rates)}")

    def make(self, weights: Tensor, rate: float) -> torch.optim.Optimizer:
        """The optimizer of a run."""
        made: torch.optim.Optimizer = getattr(torch.optim, self.kind)([weights], lr=rate, **self.settings)
        return made


OPTIMIZERS: dict[str, Descent] = {
    "gd": Descent("GD", "SGD", (0.1, 0.2), 2, 50),
    "rmsprop": Descent("RMSprop", "RMSprop", (0.02, 0.04), 2, 150, {"eps": 0.1}),
    "adam": Descent("Adam", "Adam", (0.05, 0.1), 6, 200, {"betas": (0.8, 0.999), "eps": 0.1}),
}
"""Those of the paper's figure, with its learning rates, windows and iterations."""


@dataclass(frozen=True, kw_only=True)
class Correction:
    """How DCL corrects in each mode: ``margin`` and ``trigger`` are the anchor's, the other mode has none."""

    references: int = 1
    offset: int = 0
    margin: float = 0.5
    trigger: Literal["always", "violated"] = "violated"

    def attach(self, optimizer: torch.optim.Optimizer, mode: Mode, window: int | None) -> DCL | None:
        """Correct the optimizer's steps from now on; None for the baseline."""
        if mode == "baseline":
            return None
        common: dict[str, Any] = {"references": self.references, "window": window, "offset": self.offset}
        if mode == "concentrate":
            return DCL(optimizer, mode=mode, **common)
        return DCL(optimizer, mode=mode, margin=self.margin, trigger=self.trigger, **common)


@dataclass(frozen=True, eq=False)
class Path:
    """Where a descent went.

    Attributes:
        mode: how gradients were corrected.
        rate: the learning rate.
        points: (steps + 1, 2) float64, the start first; fewer where it left all numbers behind.
        heights: (steps + 1,).
        corrected: how many of the steps DCL changed.
    """

    mode: Mode
    rate: float
    points: Tensor
    heights: Tensor
    corrected: int

    @property
    def length(self) -> float:
        """Of the way gone."""
        return float(torch.linalg.vector_norm(self.points.diff(dim=0), dim=1).sum())

    @property
    def distance(self) -> float:
        """From the first point to the last."""
        return float(torch.linalg.vector_norm(self.points[-1] - self.points[0]))

    @property
    def detour(self) -> float:
        """Length over distance: 1 for a straight line; nan where the path ends where it began."""
        return self.length / self.distance if self.distance > 0 else math.nan


def find(name: str) -> Descent:
    """An optimizer of the figure by its name, or any class of ``torch.optim`` with its own defaults.

    Raises:
        ValueError: there is none, or it cannot be corrected (LBFGS), or it is for sparse gradients.
    """
    known = OPTIMIZERS.get(name.lower())
    if known is not None:
        return known
    found = {each.lower(): each for each in dir(torch.optim) if _is_optimizer(each)}
    kind = found.get(name.lower())
    if kind is None:
        known_names = dict.fromkeys([*OPTIMIZERS, *sorted(found)])
        raise ValueError(f"no optimizer is called {name!r}; choose among {', '.join(known_names)}")
    return Descent(kind, kind, (0.05, 0.1), 6, 200)


def _is_optimizer(name: str) -> bool:
    kind = getattr(torch.optim, name)
    usable = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    return usable and name not in ("LBFGS", "SparseAdam", "Muon")  # Muon takes matrices only


def descend(surface: Surface, descent: Descent, mode: Mode, rate: float, correction: Correction | None = None) -> Path:
    """Go down; the same loop for every mode: gradient, then ``optimizer.step()``, which corrects it."""
    weights = torch.tensor(surface.start, dtype=torch.float64, requires_grad=True)
    optimizer = _made(descent, weights, rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the page says how many steps were corrected
        dcl = (correction or Correction()).attach(optimizer, mode, descent.window)
    points = [weights.detach().clone()]
    for _ in range(descent.steps):
        weights.grad = surface.gradient(weights)
        if not weights.grad.isfinite().all():
            break
        optimizer.step()
        if not (weights.isfinite().all() and surface(weights.detach()).isfinite()):
            break
        points.append(weights.detach().clone())
    trace = torch.stack(points)
    corrected = 0 if dcl is None else int(dcl.stats.corrected_steps)
    return Path(mode, rate, trace, surface(trace), corrected)


def _made(descent: Descent, weights: Tensor, rate: float) -> torch.optim.Optimizer:
    try:
        return descent.make(weights, rate)
    except (TypeError, ValueError) as reason:
        raise ValueError(f"torch.optim.{descent.kind} cannot be made so: {reason}") from None


def descend_all(
    surface: Surface, descent: Descent, correction: Correction | None = None, modes: Sequence[Mode] = MODES
) -> list[Path]:
    """Every mode at every learning rate, rates within modes."""
    return [descend(surface, descent, mode, rate, correction) for mode in modes for rate in descent.rates]
