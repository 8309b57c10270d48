"""Descending on a surface with an optimizer, plainly and with DCL (the paper's Figure 5), and the minima reached."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from congruency.corrector import Trigger
from congruency.dcl import DCL

__all__ = [
    "MODES", "OPTIMIZERS", "SURFACES", "Agreement", "Correction", "Descent", "Minima", "Mode", "Path", "Surface",
    "agreements", "descend", "descend_all", "find", "letter", "settle", "surface_named",
]  # fmt: skip

Mode = Literal["baseline", "concentrate", "anchor"]
MODES: tuple[Mode, ...] = get_args(Mode)
_NEAR = 1e-2  # of the size of the picture: minima closer than this are one
_FLAT = 1e-5


@dataclass(frozen=True)
class Surface:
    """A function z = f(x, y) and the starting point of a descent on it."""

    name: str
    formula: str
    start: tuple[float, float]
    function: Callable[[Tensor, Tensor], Tensor] = field(repr=False, compare=False)

    def __call__(self, point: Tensor) -> Tensor:
        """Return the function's values (...) at points (..., 2)."""
        return self.function(point[..., 0], point[..., 1])

    def gradient(self, point: Tensor) -> Tensor:
        """Return the gradients (..., 2) at points (..., 2)."""
        leaf = point.detach().clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self(leaf).sum(), leaf)[0]


def _paper(x: Tensor, y: Tensor) -> Tensor:
    return -(x**2).sin() * (3 * y**2).cos() * (-((x * y) ** 2)).exp() - (-((x + y) ** 2)).exp()


SURFACES: dict[str, Surface] = {
    surface.name: surface
    for surface in (
        Surface("paper", "-sin(x**2)*cos(3*y**2)*exp(-(x*y)**2) - exp(-(x+y)**2)", (0.75, 1.0), _paper),
        Surface(
            "rosenbrock", "(1 - x)**2 + 10*(y - x**2)**2", (-1.0, 0.5), lambda x, y: (1 - x) ** 2 + 10 * (y - x**2) ** 2
        ),
        Surface(
            "himmelblau", "((x**2 + y - 11)**2 + (x + y**2 - 7)**2)/100", (0.0, 0.0),
            lambda x, y: ((x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2) / 100,
        ),
        Surface("ravine", "x**2/20 + y**2", (-2.0, 1.0), lambda x, y: x**2 / 20 + y**2),
        Surface(
            "waves", "(x**2 + y**2)/10 - cos(2*x)*cos(2*y)", (1.9, 1.2),
            lambda x, y: (x**2 + y**2) / 10 - (2 * x).cos() * (2 * y).cos(),
        ),
    )
}  # fmt: skip
"""By name; ``paper`` is the function of the paper's Figure 5."""


def surface_named(name: str, start: tuple[float, float] | None = None) -> Surface:
    """Return a surface by its name, with ``start`` or its own starting point.

    Raises:
        ValueError: the function or its gradient is not finite at the start.
    """
    surface = SURFACES[name] if start is None else replace(SURFACES[name], start=start)
    point = torch.tensor(surface.start, dtype=torch.float64)
    if not (surface(point).isfinite() and surface.gradient(point).isfinite().all()):
        raise ValueError(f"{surface.formula} or its gradient is not finite at {surface.start}; give another start")
    return surface


@dataclass(frozen=True)
class Descent:
    """An optimizer with its settings in the figure.

    Attributes:
        kind: a class of ``torch.optim``.
        window: of DCL, in steps.
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
        """Return the optimizer of a path."""
        try:
            made: torch.optim.Optimizer = getattr(torch.optim, self.kind)([weights], lr=rate, **self.settings)
        except (TypeError, ValueError) as reason:
            raise ValueError(f"torch.optim.{self.kind} cannot be made with these settings: {reason}") from None
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
    trigger: Trigger = "violated"

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
    """The path of a descent.

    Attributes:
        points: (steps + 1, 2) float64, the start first; fewer where it diverged.
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
        """The length of the path."""
        return float(torch.linalg.vector_norm(self.points.diff(dim=0), dim=1).sum())

    @property
    def distance(self) -> float:
        """The distance from the first point to the last."""
        return float(torch.linalg.vector_norm(self.points[-1] - self.points[0]))

    @property
    def detour(self) -> float:
        """Length over distance: 1 for a straight line; nan where the path ends where it began."""
        return self.length / self.distance if self.distance > 0 else math.nan


def find(name: str) -> Descent:
    """Return an optimizer of the figure by its name, or any class of ``torch.optim`` with its own defaults.

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
    """Descend; the same loop for every mode: gradient, then ``optimizer.step()``, which corrects it."""
    weights = torch.tensor(surface.start, dtype=torch.float64, requires_grad=True)
    optimizer = descent.make(weights, rate)
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


def descend_all(
    surface: Surface, descent: Descent, correction: Correction | None = None, modes: Sequence[Mode] = MODES
) -> list[Path]:
    """Return the paths of every mode at every learning rate, rates within modes."""
    return [descend(surface, descent, mode, rate, correction) for mode in modes for rate in descent.rates]


@dataclass(frozen=True, eq=False)
class Minima:
    """The minima that a set of paths leads to.

    Attributes:
        places: (2,) each, in the order in which they were found.
        of: for every path the number of its minimum; None where it leads to none.
    """

    places: list[Tensor]
    of: list[int | None]

    def letter(self, path: int) -> str:
        """Return the letter of the minimum of a path; a dash for none."""
        number = self.of[path]
        return "-" if number is None else letter(number)

    def part(self, start: int, count: int) -> Minima:
        """Return the same minima for some of the paths."""
        return Minima(self.places, self.of[start : start + count])


@dataclass(frozen=True)
class Agreement:
    """Whether the learning rates of one mode end at one minimum, and at which; None: some end at none."""

    mode: Mode
    agree: bool | None
    minima: tuple[int | None, ...]


def letter(number: int) -> str:
    """A, B, C, ... by number."""
    return chr(ord("A") + number) if number < 26 else f"#{number + 1}"


def settle(surface: Surface, paths: Sequence[Path]) -> Minima:
    """Descend from each path's last point, in small steps, to the minimum of its basin.

    A path that was stopped early counts with the minimum of the basin it is in; one that diverged, or whose basin has
    no minimum, with none.
    """
    size = max([1.0, *(float(path.points.abs().amax()) for path in paths if _ended(path))])
    places: list[Tensor] = []
    of: list[int | None] = []
    for path in paths:
        bottom = _bottom(surface, path.points[-1]) if _ended(path) else None
        if bottom is None:
            of.append(None)
            continue
        near = [i for i, place in enumerate(places) if float((place - bottom).norm()) <= _NEAR * size]
        if not near:
            places.append(bottom)
        of.append(near[0] if near else len(places) - 1)
    return Minima(places, of)


def agreements(paths: Sequence[Path], minima: Minima) -> list[Agreement]:
    """Return one verdict per mode, over its learning rates."""
    verdicts = []
    for mode, group in groupby(zip(paths, minima.of, strict=True), key=lambda pair: pair[0].mode):
        found = tuple(number for _, number in group)
        verdicts.append(Agreement(mode, None if None in found else len(set(found)) == 1, found))
    return verdicts


def _ended(path: Path) -> bool:
    return bool(path.points[-1].abs().amax() < 1e6)


def _bottom(surface: Surface, point: Tensor, most: int = 5000) -> Tensor | None:
    """Gradient descent that halves its step until the height falls enough (Armijo)."""
    step = 0.1
    for _ in range(most):
        slope = surface.gradient(point)
        steepness = float(slope.square().sum())
        if steepness <= _FLAT**2:
            return None if _falls(surface, point) else point
        height = float(surface(point))
        while step > 1e-12 and not float(surface(point - step * slope)) <= height - 0.5 * step * steepness:
            step /= 2
        if step <= 1e-12:
            return point  # no decrease in floating point
        point = point - step * slope
        step = min(2 * step, 1.0)
        if not point.isfinite().all() or float(point.abs().amax()) > 1e6:
            return None
    return None


def _falls(surface: Surface, point: Tensor) -> bool:
    """Whether a stationary point is a saddle or a maximum: the surface curves down in some direction."""
    curvature = torch.autograd.functional.hessian(surface, point)
    return bool(torch.linalg.eigvalsh(curvature).amin() < -_FLAT)
