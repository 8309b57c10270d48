"""Viewings of any sizes as one batch: images resized, fixations scaled, densities blurred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from congruency.saliency.data.images import read_image
from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import Viewing

__all__ = ["Batch", "blurred", "collate"]


@dataclass(frozen=True)
class Batch:
    """What a model is trained and scored on.

    Attributes:
        images: (B, 3, H, W) uint8.
        fixations: (B, H, W) counts.
        density: (B, H, W), blurred counts; all zero for an image without fixations.
        frames: (height, width) of each image before it was resized.
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
    """Read and resize viewings to one size (height, width), whatever their own sizes and proportions.

    Args:
        viewings: The images of the batch.
        size: The size to give them all. Proportions are not kept; fixations move with the pixels.
        sigma: Width of the blur in pixels of ``size``. If not given it is each image's own, scaled as the image is:
            one degree of visual angle where the set knows it, else 3 % of the width.
        device: Where everything is put.
    """
    frames = tuple((v.height, v.width) for v in viewings)
    images = torch.stack([read_image(v.image, size) for v in viewings]).to(device)
    counts = fixation_counts([v.points for v in viewings], size, frames=frames, device=device)
    maps = blurred(counts, viewings) if sigma is None else density(counts, sigma)
    return Batch(images, counts, maps, frames)


def blurred(counts: Tensor, viewings: Sequence[Viewing], sigma: float | None = None) -> Tensor:
    """(B, H, W) counts -> densities, the blur ``sigma`` (or the viewing's own) pixels wide in each original image.

    An image of h x w resized to H x W has its blur resized too: ``sigma H / h`` down, ``sigma W / w`` across.
    """
    height, width = counts.shape[-2:]
    widths = [v.sigma if sigma is None else sigma for v in viewings]
    scaled = [(s * height / v.height, s * width / v.width) for s, v in zip(widths, viewings, strict=True)]
    maps = torch.empty_like(counts)
    for one in dict.fromkeys(scaled):
        places = torch.tensor([i for i, other in enumerate(scaled) if other == one], device=counts.device)
        maps[places] = density(counts[places], one)
    return maps
