"""What every loader gives: images with the points that viewers fixated, and what was left out on the way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["WIDTH_FRACTION", "DataError", "SaliencyData", "Viewing", "viewing"]

WIDTH_FRACTION = 0.03
"""The width of the blur where one degree of visual angle is not known, as a share of the image's width."""


class DataError(ValueError):
    """A data set that cannot be read as it lies there; the message names the file and what to do."""


@dataclass(frozen=True)
class Viewing:
    """One image and its viewers' fixations.

    Attributes:
        image: The image's file.
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        fixations: For each viewer (n, 2) points ``(x, y)`` in pixels, float64, all within the frame. The centre of the
            top left pixel is (0, 0): MATLAB's (1, 1).
        outside: How many fixations were left out because they lie outside the frame.
        density: The file of the set's own density map, if it has one (``official_density`` reads it).
        pixels_per_degree: Pixels for one degree of visual angle, None where it is not known; a set gives its own to
            all its viewings.
        grey: Whether the image's file says that it has no colour.
    """

    image: Path
    height: int
    width: int
    fixations: tuple[Tensor, ...]
    outside: int = 0
    density: Path | None = None
    pixels_per_degree: float | None = None
    grey: bool = False

    @property
    def sigma(self) -> float:
        """The default blur in the image's pixels: one degree where it is known, else a share of the width."""
        return WIDTH_FRACTION * self.width if self.pixels_per_degree is None else self.pixels_per_degree

    @property
    def points(self) -> Tensor:
        """(n, 2) the fixations of all viewers."""
        return torch.cat(self.fixations) if self.fixations else torch.zeros(0, 2, dtype=torch.float64)


@dataclass(frozen=True)
class SaliencyData:
    """A data set: its viewings, and what is known about them.

    Attributes:
        name: Of the set.
        viewings: One for each image, in the order of the files' names unless the set has its own.
        version: Of the labels, where the set has several (SALICON's of 2015 and 2017 differ widely).
        pixels_per_degree: Pixels for one degree of visual angle at the viewers' distance, None where it is not known.
    """

    name: str
    viewings: tuple[Viewing, ...]
    version: str | None = None
    pixels_per_degree: float | None = None

    def __post_init__(self) -> None:
        degree = self.pixels_per_degree
        if degree is not None and not (math.isfinite(degree) and degree > 0):
            raise ValueError(f"pixels_per_degree must be a positive number or None, got {degree}")
        known = (v if v.pixels_per_degree == degree else replace(v, pixels_per_degree=degree) for v in self.viewings)
        object.__setattr__(self, "viewings", tuple(known))

    def __len__(self) -> int:
        return len(self.viewings)

    def __getitem__(self, index: int) -> Viewing:
        return self.viewings[index]

    def take(self, indices: Iterable[int]) -> SaliencyData:
        """The same set with only these images."""
        return replace(self, viewings=tuple(self.viewings[i] for i in indices))

    def sigma(self, width: int) -> float:
        """The default blur for an image of this width: one degree where it is known, else a share of the width."""
        return WIDTH_FRACTION * width if self.pixels_per_degree is None else self.pixels_per_degree

    def summary(self) -> str:
        """One line on what is there and what was left out."""
        fixations = sum(len(v.points) for v in self.viewings)
        outside = sum(v.outside for v in self.viewings)
        bare = sum(len(v.points) == 0 for v in self.viewings)
        version = f" {self.version}" if self.version else ""
        line = f"{self.name}{version}: {len(self)} images{self._kinds()}, {fixations} fixations"
        return line + f"; {outside} fixations outside the frame left out, {bare} images without fixations"

    def _kinds(self) -> str:
        """What is uneven about the images, in brackets: more than one size, some without colour."""
        sizes = len({(v.height, v.width) for v in self.viewings})
        grey = sum(v.grey for v in self.viewings)
        said = [f"of {sizes} sizes"] * (sizes > 1) + [f"{grey} grey"] * (grey > 0)
        return f" ({', '.join(said)})" if said else ""


def viewing(
    image: Path, size: tuple[int, int], viewers: Sequence[Tensor], *, density: Path | None = None, grey: bool = False
) -> Viewing:
    """A viewing from (n, 2) points of each viewer, those outside the (height, width) frame left out and counted."""
    height, width = size
    limit = torch.tensor([width, height], dtype=torch.float64)
    kept, outside = [], 0
    for points in viewers:
        points = points.to(torch.float64).reshape(-1, 2)
        nearest = (points + 0.5).floor()
        inside = ((nearest >= 0) & (nearest < limit)).all(1)  # false for nan
        kept.append(points[inside])
        outside += int((~inside).sum())
    return Viewing(image, height, width, tuple(kept), outside, density, grey=grey)
