"""Optimizer paths on a surface, without and with DCL (the paper's Figure 5), and the minima they reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from congruency.dcl import DCL
from congruency.training.correction import paper_form

Mode = Literal["baseline", "concentrate", "anchor"]
MODES: tuple[Mode, ...] = get_args(Mode)
_NEAR = 1e-2  # relative to the size of the picture: closer minima count as one
_FLAT = 1e-5
_FAR = 1e6  # a path that gets this far has diverged


@dataclass(frozen=True)
class Surface:
    """A function z = f(x, y) with a starting point."""

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
"""Surfaces by name; ``paper`` is the function of the paper's Figure 5."""


@dataclass(frozen=True)
class Descent:
    """A ``torch.optim`` class (``kind``) with its settings in the figure; ``window`` is DCL's window in steps."""

    name: str
    kind: str
    rates: tuple[float, ...]
    window: int
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)


OPTIMIZERS: dict[str, Descent] = {
    "gd": Descent("GD", "SGD", (0.1, 0.2), 2, 50),
    "rmsprop": Descent("RMSprop", "RMSprop", (0.02, 0.04), 2, 150, {"eps": 0.1}),
    "adam": Descent("Adam", "Adam", (0.05, 0.1), 6, 200, {"betas": (0.8, 0.999), "eps": 0.1}),
}
"""The optimizers of the paper's figure, with its learning rates, windows and iterations."""


@dataclass(frozen=True, eq=False)
class Path:
    """The path of an optimizer.

    Attributes:
        points: (steps + 1, 2) float64, starting point first; fewer if it diverged.
        heights: (steps + 1,), the function values.
        corrected: number of steps that DCL changed.
        minimum: index of the minimum that the path leads to; None if it leads to none.
    """

    mode: Mode
    rate: float
    points: Tensor
    heights: Tensor
    corrected: int
    minimum: int | None = None

    @property
    def length(self) -> float:
        return float(torch.linalg.vector_norm(self.points.diff(dim=0), dim=1).sum())

    @property
    def distance(self) -> float:
        """The distance from the first point to the last."""
        return float(torch.linalg.vector_norm(self.points[-1] - self.points[0]))

    @property
    def detour(self) -> float:
        """Length over distance: 1 for a straight line; nan if the path ends at its start."""
        return self.length / self.distance if self.distance > 0 else math.nan


@dataclass(frozen=True, eq=False)
class Illustration:
    """The paths of one optimizer in every mode at every learning rate; ``minima`` are (2,) each."""

    surface: Surface
    descent: Descent
    paths: Sequence[Path]
    minima: Sequence[Tensor]

    def agree(self, mode: Mode) -> bool | None:
        """Whether all learning rates of a mode end at the same minimum; None if some end at none."""
        found = {path.minimum for path in self.paths if path.mode == mode}
        return None if None in found else len(found) == 1


def letter(number: int | None) -> str:
    """Return the letter of a minimum, A, B, C, ...; a dash for none."""
    return "-" if number is None else chr(ord("A") + number)


def find(name: str) -> Descent:
    """Return an optimizer of the figure by name, or any class of ``torch.optim`` with its defaults.

    Raises:
        ValueError: the name is unknown or not supported (LBFGS, SparseAdam, Muon).
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


def descend(surface: Surface, descent: Descent, mode: Mode, rate: float) -> Path:
    """Run an optimizer from the surface's start; in every mode ``optimizer.step()`` applies the correction."""
    weights = torch.tensor(surface.start, dtype=torch.float64, requires_grad=True)
    optimizer = getattr(torch.optim, descent.kind)([weights], lr=rate, **descent.settings)
    dcl = None
    if mode == "concentrate":  # the paper's equations
        with paper_form():
            dcl = DCL(optimizer, window=descent.window, floor=None)
    elif mode == "anchor":  # the paper's published code
        dcl = DCL(optimizer, window=descent.window, mode="anchor", margin=0.5, trigger="violated")
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
    return Path(mode, rate, trace, surface(trace), 0 if dcl is None else int(dcl.stats.corrected_steps))


def illustrate(surface: Surface, descents: Sequence[Descent]) -> list[Illustration]:
    """Return all paths by optimizer; the minima are numbered jointly.

    From each path's last point, gradient descent continues to the minimum of its basin. A path that diverged, or whose
    basin has no minimum, has none.
    """
    every = [
        [descend(surface, descent, mode, rate) for mode in MODES for rate in descent.rates] for descent in descents
    ]
    reached = [float(path.points.abs().amax()) for paths in every for path in paths]
    near = _NEAR * max([1.0, *(size for size in reached if size < _FAR)])
    minima: list[Tensor] = []
    made = []
    for descent, paths in zip(descents, every, strict=True):
        ended = [replace(path, minimum=_number(_bottom(surface, path.points[-1]), minima, near)) for path in paths]
        made.append(Illustration(surface, descent, ended, minima))
    return made


def _number(bottom: Tensor | None, minima: list[Tensor], near: float) -> int | None:
    """Return the index of a minimum, appending it to ``minima`` if it is new."""
    if bottom is None:
        return None
    for number, place in enumerate(minima):
        if float((place - bottom).norm()) <= near:
            return number
    minima.append(bottom)
    return len(minima) - 1


def _bottom(surface: Surface, point: Tensor, most: int = 5000) -> Tensor | None:
    """Return the minimum reached by gradient descent with Armijo backtracking; None for saddles or divergence."""
    step = 0.1
    for _ in range(most):
        if not point.abs().amax() < _FAR:
            return None
        slope = surface.gradient(point)
        steepness = float(slope.square().sum())
        if steepness <= _FLAT**2:
            curvature = torch.autograd.functional.hessian(surface, point)
            saddle = torch.linalg.eigvalsh(curvature).amin() < -_FLAT  # or a maximum
            return None if saddle else point
        height = float(surface(point))
        while step > 1e-12 and not float(surface(point - step * slope)) <= height - 0.5 * step * steepness:
            step /= 2
        if step <= 1e-12:
            return point  # no decrease in floating point
        point = point - step * slope
        step = min(2 * step, 1.0)
    return None
