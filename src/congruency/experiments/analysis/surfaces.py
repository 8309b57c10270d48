"""Functions of two variables to descend on, by name or by formula."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from congruency.experiments.analysis.expressions import Function, parse

__all__ = ["SURFACES", "Surface", "find"]


@dataclass(frozen=True)
class Surface:
    """z = f(x, y), and where a descent on it starts."""

    name: str
    formula: str
    start: tuple[float, float]
    function: Function = field(repr=False, compare=False)

    def __call__(self, point: Tensor) -> Tensor:
        """Points (..., 2) -> their heights (...)."""
        return self.function(point[..., 0], point[..., 1])

    def gradient(self, point: Tensor) -> Tensor:
        """The slope at points (..., 2), of their shape."""
        place = point.detach().clone().requires_grad_()
        with torch.enable_grad():
            height = self(place).sum()
            slope = torch.autograd.grad(height, place)[0] if height.requires_grad else torch.zeros_like(place)
        return slope


def _surface(name: str, formula: str, start: tuple[float, float]) -> Surface:
    return Surface(name, formula, start, parse(formula))


SURFACES: dict[str, Surface] = {
    surface.name: surface
    for surface in (
        _surface("paper", "-sin(x**2)*cos(3*y**2)*exp(-(x*y)**2) - exp(-(x+y)**2)", (0.75, 1.0)),
        _surface("rosenbrock", "(1 - x)**2 + 10*(y - x**2)**2", (-1.0, 0.5)),
        _surface("himmelblau", "((x**2 + y - 11)**2 + (x + y**2 - 7)**2)/100", (0.0, 0.0)),
        _surface("ravine", "x**2/20 + y**2", (-2.0, 1.0)),
        _surface("waves", "(x**2 + y**2)/10 - cos(2*x)*cos(2*y)", (1.9, 1.2)),
    )
}
"""By name; ``paper`` is that of the paper's Figure 5."""


def find(text: str, start: tuple[float, float] | None = None) -> Surface:
    """A surface by its name or its formula, to be started from ``start`` or from its own place.

    Raises:
        ValueError: there is none of that name, and it is no formula; or the start has no height.
    """
    surface = SURFACES[text] if text in SURFACES else _formula(text, start)
    surface = surface if start is None else replace(surface, start=start)
    place = torch.tensor(surface.start, dtype=torch.float64)
    if not (surface(place).isfinite() and surface.gradient(place).isfinite().all()):
        raise ValueError(f"{surface.formula} has no height or no slope at {surface.start}; give another start")
    return surface


def _formula(text: str, start: tuple[float, float] | None) -> Surface:
    if text.isidentifier() and text not in ("x", "y", "e", "pi"):
        near = difflib.get_close_matches(text, SURFACES, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no function is called {text!r} ({', '.join(SURFACES)}), and it is no formula{meant}")
    function = parse(text)
    if start is None:
        raise ValueError("a formula needs a place to start from: give --start X Y")
    return Surface("formula", text, start, function)
