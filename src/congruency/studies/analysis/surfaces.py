"""Functions of two variables to descend on, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

__all__ = ["SURFACES", "Surface", "find"]


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


def find(name: str, start: tuple[float, float] | None = None) -> Surface:
    """Return a surface by its name, to be started from ``start`` or from its own starting point.

    Raises:
        ValueError: there is none of that name, or the function or its gradient is not finite at the start.
    """
    if name not in SURFACES:
        near = difflib.get_close_matches(name, SURFACES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no function {name!r}; the functions are {', '.join(SURFACES)}{hint}")
    surface = SURFACES[name] if start is None else replace(SURFACES[name], start=start)
    point = torch.tensor(surface.start, dtype=torch.float64)
    if not (surface(point).isfinite() and surface.gradient(point).isfinite().all()):
        raise ValueError(f"{surface.formula} or its gradient is not finite at {surface.start}; give another start")
    return surface
