"""Viewings of any sizes as one batch: images resized, fixations scaled, densities blurred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from congruency.saliency.data.images import read_image
from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import WIDTH_FRACTION, Viewing

__all__ = ["Batch", "collate"]


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
        sigma: Width of the blur in pixels of ``size``; 3 % of its width if not given.
        device: Where everything is put.
    """
    frames = tuple((v.height, v.width) for v in viewings)
    images = torch.stack([read_image(v.image, size) for v in viewings]).to(device)
    counts = fixation_counts([v.points for v in viewings], size, frames=frames, device=device)
    return Batch(images, counts, density(counts, WIDTH_FRACTION * size[1] if sigma is None else sigma), frames)
