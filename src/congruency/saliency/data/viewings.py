"""The common type of all loaders: images with the fixation points of their viewers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

WIDTH_FRACTION = 0.03
"""Default standard deviation of the blur, as a fraction of the image width, if the visual angle is unknown."""


class DataError(ValueError):
    """Raised if a data set cannot be read; the message names the file and what to do."""


@dataclass(frozen=True)
class Viewing:
    """One image and its viewers' fixations.

    Attributes:
        image: The image file.
        height, width: Size of the image in pixels.
        fixations: (n, 2) points ``(x, y)`` in pixels per viewer, float64, all within the image. The centre of the top
            left pixel is (0, 0): MATLAB's (1, 1).
        outside: Number of fixations dropped because they lie outside the image.
        missing: Number of fixations dropped because a coordinate is nan (blinks, lost tracking).
        density: The file of the official density map, if there is one (``official_density`` reads it).
        pixels_per_degree: Pixels per degree of visual angle, None if unknown; set by :class:`SaliencyData`.
        grey: Whether the image file is grey.
        folder: Where the image is within its set (CAT2000's category), if names alone are not unique.
    """

    image: Path
    height: int
    width: int
    fixations: tuple[Tensor, ...]
    outside: int = 0
    density: Path | None = None
    pixels_per_degree: float | None = None
    grey: bool = False
    missing: int = 0
    folder: str = ""

    @property
    def name(self) -> str:
        """The image's name, unique in its set: ``"1001.jpg"``, or ``"Action/001.jpg"`` with a folder."""
        return f"{self.folder}/{self.image.name}" if self.folder else self.image.name

    @property
    def key(self) -> str:
        """The name without suffix, used to find its map."""
        return self.name.removesuffix(self.image.suffix)

    @property
    def sigma(self) -> float:
        """Default blur in pixels: one degree of visual angle if known, else a fraction of the width."""
        return WIDTH_FRACTION * self.width if self.pixels_per_degree is None else self.pixels_per_degree

    @property
    def points(self) -> Tensor:
        """The fixations of all viewers, (n, 2)."""
        return torch.cat(self.fixations) if self.fixations else torch.zeros(0, 2, dtype=torch.float64)


@dataclass(frozen=True)
class SaliencyData:
    """A saliency data set.

    Attributes:
        name: Name of the data set.
        viewings: One per image, sorted by file name unless the data set has its own order.
        version: Version of the annotations, if there are several (SALICON's of 2015 and 2017 differ widely).
        pixels_per_degree: Pixels per degree of visual angle at the viewers' distance, None if unknown.
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

    def subset(self, indices: Iterable[int]) -> SaliencyData:
        """Return the data set with only these images."""
        return replace(self, viewings=tuple(self.viewings[i] for i in indices))

    def summary(self) -> str:
        """Return one line with the numbers of images, fixations and dropped fixations."""
        fixations = sum(len(v.points) for v in self.viewings)
        outside, missing = sum(v.outside for v in self.viewings), sum(v.missing for v in self.viewings)
        unlabelled = sum(len(v.points) == 0 for v in self.viewings)
        version = f" {self.version}" if self.version else ""
        sizes, grey = len({(v.height, v.width) for v in self.viewings}), sum(v.grey for v in self.viewings)
        parts = [f"of {sizes} sizes"] * (sizes > 1) + [f"{grey} grey"] * (grey > 0)
        kinds = f" ({', '.join(parts)})" if parts else ""
        line = f"{self.name}{version}: {len(self)} images{kinds}, {fixations} fixations"
        without = f" and {missing} without coordinates" if missing else ""
        left_out = f"{outside} fixations outside the frame{without} left out"
        return f"{line}; {left_out}, {unlabelled} images without fixations"


def viewing(
    image: Path,
    size: tuple[int, int],
    viewers: Sequence[Tensor],
    *,
    density: Path | None = None,
    grey: bool = False,
    folder: str = "",
) -> Viewing:
    """Create a viewing from (n, 2) points per viewer; points outside the image or with nan are dropped and counted."""
    height, width = size
    limit = torch.tensor([width, height], dtype=torch.float64)
    kept, outside, missing = [], 0, 0
    for points in viewers:
        points = points.to(torch.float64).reshape(-1, 2)
        nearest = (points + 0.5).floor()
        inside = ((nearest >= 0) & (nearest < limit)).all(1)  # false for nan
        known = ~points.isnan().any(1)
        kept.append(points[inside])
        outside += int((known & ~inside).sum())
        missing += int((~known).sum())
    return Viewing(image, height, width, tuple(kept), outside, density, grey=grey, missing=missing, folder=folder)
