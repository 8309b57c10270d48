"""From fixation points to maps: counts on a grid, and densities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["check_sigma", "density", "fixation_counts"]

_WIDEST = 100_000


def fixation_counts(
    points: Sequence[Tensor],
    size: tuple[int, int],
    *,
    frames: Sequence[tuple[int, int]] | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """(B, height, width) float32: how many fixations fell on each pixel of a grid.

    Args:
        points: For each image (n, 2) points ``(x, y)`` in pixels, the centre of the top left one being (0, 0).
        size: (height, width) of the grid.
        frames: (height, width) of each image the points were recorded on, if not ``size``: points are scaled, so that
            images of different sizes fit one batch. Coarser grids put more fixations on one pixel.
        device: Where the counts are made.

    A point outside the grid is not counted.
    """
    height, width = size
    numbers = torch.repeat_interleave(torch.tensor([len(p) for p in points], dtype=torch.long))
    joined = torch.cat([p.to(torch.float64) for p in points]) if len(points) else torch.zeros(0, 2)
    if frames is not None:
        scale = torch.tensor([[width / w, height / h] for h, w in frames], dtype=torch.float64)[numbers]
        joined = (joined + 0.5) * scale - 0.5
    column, row = (joined + 0.5).floor().long().unbind(1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    places = (numbers * height * width + row * width + column)[inside].to(device)
    counts = torch.zeros(len(points) * height * width, device=device)
    counts.scatter_add_(0, places, torch.ones_like(places, dtype=counts.dtype))
    return counts.view(len(points), height, width)


def density(counts: Tensor, sigma: float | tuple[float, float], *, truncate: float = 4.0) -> Tensor:
    """(B, H, W) counts -> (B, H, W): each fixation spread by a Gaussian of standard deviation ``sigma`` pixels.

    A pair is (down, across): what a round blur becomes on a grid whose proportions are not the image's.

    A separable convolution, as two products with banded matrices: on a CPU fifteen times faster than sliding so wide a
    kernel, on a GPU one call each. The kernel sums to 1 and ends at ``truncate`` standard deviations. What falls
    outside the frame is lost, so a fixation at the border weighs less. The map is not normalised: losses and metrics do
    that.
    """
    widths = sigma if isinstance(sigma, tuple) else (sigma, sigma)
    for width in widths:
        check_sigma(width)
    maps = counts if counts.dtype == torch.float64 else counts.float()
    rows, columns = (_band(length, s, truncate, maps) for length, s in zip(maps.shape[-2:], widths, strict=True))
    return rows @ maps @ columns


def check_sigma(sigma: float) -> None:
    """Refuse a width of the blur that is none, or wider than any image (its kernel would fill the memory)."""
    if not 0 < sigma <= _WIDEST:
        raise ValueError(f"sigma must be a positive number of pixels, at most {_WIDEST}, got {sigma}")


def _band(length: int, sigma: float, truncate: float, like: Tensor) -> Tensor:
    """(length, length): the kernel about each pixel of a line."""
    radius = max(1, math.ceil(truncate * sigma))
    kernel = torch.exp(-0.5 * (torch.arange(radius + 1, device=like.device, dtype=torch.float64) / sigma) ** 2)
    kernel = kernel / (2 * kernel.sum() - 1)
    places = torch.arange(length, device=like.device)
    distance = (places[:, None] - places[None, :]).abs()
    return kernel[distance.clamp(max=radius)].masked_fill_(distance > radius, 0.0).to(like.dtype)
