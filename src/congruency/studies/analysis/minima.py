"""Which minimum a path has come to, and whether different learning rates came to the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from congruency.studies.analysis.descent import Mode, Path
from congruency.studies.analysis.surfaces import Surface

__all__ = ["Agreement", "Minima", "agreements", "letter", "settle"]

_NEAR = 1e-2  # of the size of the picture: minima closer than this are one
_FLAT = 1e-5


@dataclass(frozen=True, eq=False)
class Minima:
    """The minima that a set of paths leads to.

    Attributes:
        places: (2,) each, in the order of their finding.
        of: for every path the number of its minimum; None where it leads to none.
    """

    places: list[Tensor]
    of: list[int | None]

    def letter(self, path: int) -> str:
        """A name for the minimum of a path; a dash for none."""
        number = self.of[path]
        return "-" if number is None else letter(number)

    def part(self, start: int, count: int) -> Minima:
        """The same minima for some of the paths."""
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
    """From each path's last point straight down, in small steps, to the minimum of the valley it is in.

    A path that was stopped on its way is so counted with the minimum it was going to; one that ran away, or whose
    valley has no bottom, with none.
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
    """One verdict a mode, over its learning rates."""
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
            return point  # no way down that floats can tell
        point = point - step * slope
        step = min(2 * step, 1.0)
        if not point.isfinite().all() or float(point.abs().amax()) > 1e6:
            return None
    return None


def _falls(surface: Surface, point: Tensor) -> bool:
    """Whether a flat place is a saddle or a top: the surface bends down in some direction."""
    bends = torch.autograd.functional.hessian(surface, point)
    return bool(torch.linalg.eigvalsh(bends).amin() < -_FLAT)
