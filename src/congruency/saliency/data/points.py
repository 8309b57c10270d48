"""Convert fixation points to maps: counts per pixel, blurred densities, and batches of both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from congruency.saliency.data.images import read_image
from congruency.saliency.data.preprocessing import Preprocessing
from congruency.saliency.data.viewings import Viewing

_MAX_SIGMA = 100_000


def fixation_counts(
    points: Sequence[Tensor],
    size: tuple[int, int],
    *,
    frames: Sequence[tuple[int, int]] | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Count the fixations on each pixel of a grid: (B, height, width) float32.

    Points outside the grid are not counted.

    Args:
        points: (n, 2) points ``(x, y)`` in pixels per image; the centre of the top left pixel is (0, 0).
        size: (height, width) of the grid.
        frames: (height, width) of each original image, if not ``size``; its points are rescaled.
        device: Device of the result.
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


def density(counts: Tensor, sigma: float | tuple[float, float]) -> Tensor:
    """Blur (B, H, W) counts with a Gaussian of standard deviation ``sigma`` pixels, or (vertical, horizontal).

    The separable convolution is computed as two products with banded matrices, fifteen times faster on a CPU than a
    convolution with such a wide kernel. The kernel sums to 1 and is truncated at four standard deviations. Padding is
    zero, so a fixation at the border has less weight. The map is not normalised; losses and metrics do that.
    """
    widths = sigma if isinstance(sigma, tuple) else (sigma, sigma)
    for width in widths:
        check_sigma(width)
    maps = counts if counts.dtype == torch.float64 else counts.float()
    rows, columns = (_band(length, s, maps) for length, s in zip(maps.shape[-2:], widths, strict=True))
    return rows @ maps @ columns


def check_sigma(sigma: float) -> None:
    """Raise ValueError unless the blur is positive and narrow enough for its kernel to fit in memory."""
    if not 0 < sigma <= _MAX_SIGMA:
        raise ValueError(f"sigma must be a positive number of pixels, at most {_MAX_SIGMA}, got {sigma}")


def _band(length: int, sigma: float, like: Tensor) -> Tensor:
    """Return a banded matrix (length, length) with the kernel centred at each pixel."""
    radius = max(1, math.ceil(4 * sigma))
    kernel = torch.exp(-0.5 * (torch.arange(radius + 1, device=like.device, dtype=torch.float64) / sigma) ** 2)
    kernel = kernel / (2 * kernel.sum() - 1)
    places = torch.arange(length, device=like.device)
    distance = (places[:, None] - places[None, :]).abs()
    return kernel[distance.clamp(max=radius)].masked_fill_(distance > radius, 0.0).to(like.dtype)


@dataclass(frozen=True)
class Batch:
    """Images with their fixations, resized to one size.

    Attributes:
        images: (B, 3, H, W) uint8.
        fixations: (B, H, W) counts.
        density: (B, H, W) blurred counts; all zero for an image without fixations.
        frames: (height, width) of each image before resizing.
    """

    images: Tensor
    fixations: Tensor
    density: Tensor
    frames: tuple[tuple[int, int], ...]


def collate(
    viewings: Sequence[Viewing],
    size: tuple[int, int],
    *,
    sigma: float | None = None,
    device: torch.device | str | None = None,
) -> Batch:
    """Read images of any size, resize them to one (height, width), and make their fixation maps.

    Args:
        viewings: The images of the batch.
        size: The common size. Aspect ratios are not kept; fixations are rescaled with the images.
        sigma: Standard deviation of the blur in pixels of ``size``. Default: each image's own, rescaled with it: one
            degree of visual angle if the data set states it, else 3 % of the width.
        device: Device of the result.
    """
    frames = tuple((v.height, v.width) for v in viewings)
    images = torch.stack([read_image(v.image, size) for v in viewings]).to(device)
    counts = fixation_counts([v.points for v in viewings], size, frames=frames, device=device)
    maps = blurred(counts, viewings) if sigma is None else density(counts, sigma)
    return Batch(images, counts, maps, frames)


def blurred(counts: Tensor, viewings: Sequence[Viewing], preprocessing: Preprocessing | None = None) -> Tensor:
    """Blur (B, H, W) counts by each viewing's own sigma, in pixels of its original image.

    For an image of h x w resized to H x W the blur is ``sigma H / h`` vertically and ``sigma W / w`` horizontally; with
    ``preprocessing`` H x W is the part of the map that shows the image.
    """
    preprocessing = preprocessing or Preprocessing((counts.shape[-2], counts.shape[-1]))
    boxes = [preprocessing.box((v.height, v.width)) for v in viewings]
    scaled = [(v.sigma * b[2] / v.height, v.sigma * b[3] / v.width) for v, b in zip(viewings, boxes, strict=True)]
    maps = torch.empty_like(counts)
    for one in dict.fromkeys(scaled):
        places = torch.tensor([i for i, other in enumerate(scaled) if other == one], device=counts.device)
        maps[places] = density(counts[places], one)
    return maps
