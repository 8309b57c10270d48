"""Random crops, flips and normalisation of a whole batch at once, on its device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Crop = Literal["none", "padded", "resized"]

_TRIES = 10


@dataclass(frozen=True)
class Augmentation:
    """Random crops and flips, normalisation and resizing of training images.

    Attributes:
        mean: mean of the pixels (0..1) that is subtracted, one number per channel.
        std: standard deviation by which the pixels are divided.
        crop: ``"padded"`` takes a random crop of the original size from the zero-padded image; ``"resized"`` takes a
            crop of random area and aspect ratio and resizes it (Szegedy et al., 2015).
        padding: width of the zero padding.
        scale, ratio: ranges of the crop's area, as fractions of the image's, and of its aspect ratio, width / height.
        flip: mirror images left to right with probability 1/2.
        size: side length of the result; None keeps the image's.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: Crop = "none"
    padding: int = 4
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    size: int | None = None

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(f"mean and std need one number per channel each, got {self.mean} and {self.std}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std}")
        if self.crop not in ("none", "padded", "resized"):
            raise ValueError(f"crop must be 'none', 'padded' or 'resized', got {self.crop!r}")
        if self.size is not None and self.size < 1:
            raise ValueError(f"size must be a positive number of pixels or None, got {self.size}")

    def evaluation(self) -> Augmentation:
        """Return the same normalisation and size without random crops and flips."""
        return replace(self, crop="none", flip=False)

    def normalised_as(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Augmentation:
        """Return the same augmentation with another mean and standard deviation, such as a pretrained network's."""
        return replace(self, mean=mean, std=std)


_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

AUGMENTATIONS: dict[str, Augmentation] = {
    "digits": Augmentation((0.3050,), (0.3756,)),
    "mnist": Augmentation((0.1307,), (0.3081,)),
    "fashion_mnist": Augmentation((0.2860,), (0.3530,)),
    "cifar10": Augmentation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), crop="padded", flip=True),
    "cifar100": Augmentation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), crop="padded", flip=True),
    "tiny_imagenet": Augmentation(*_IMAGENET, crop="resized", flip=True),
    "imagenet": Augmentation(*_IMAGENET, crop="resized", flip=True, size=224),
}
"""Augmentations by data set, as in the networks' papers, since the DCL paper does not state its augmentation."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Random parameters of N images: boxes (N, 4) of top, left, height, width in the padded image, and flips (N,)."""

    boxes: Tensor
    flips: Tensor

    def __getitem__(self, rows: Tensor | slice) -> Draws:
        return Draws(self.boxes[rows], self.flips[rows])

    def to(self, device: torch.device) -> Draws:
        """Move to a device."""
        return Draws(self.boxes.to(device), self.flips.to(device))


def draw(augmentation: Augmentation, count: int, height: int, width: int, generator: torch.Generator) -> Draws:
    """Draw the parameters of ``count`` images of one shape, on the CPU, so that they do not depend on the device."""
    if augmentation.crop == "resized":
        boxes = resized_boxes(augmentation, count, height, width, generator)
    elif augmentation.crop == "padded":
        corners = torch.randint(0, 2 * augmentation.padding + 1, (count, 2), generator=generator)
        boxes = torch.cat([corners, torch.tensor([height, width]).expand(count, 2)], 1)
    else:
        boxes = torch.tensor([0, 0, height, width]).expand(count, 4)
    flips = torch.rand(count, generator=generator) < 0.5 if augmentation.flip else torch.zeros(count, dtype=torch.bool)
    return Draws(boxes, flips)


def resized_boxes(
    augmentation: Augmentation, count: int, height: int, width: int, generator: torch.Generator
) -> Tensor:
    """Draw boxes of random area and aspect ratio, (N, 4): the first of ten tries that fits, else the centre box."""
    uniform = torch.rand(count, _TRIES, 2, generator=generator, dtype=torch.float64)
    least, most = augmentation.scale
    area = height * width * (least + (most - least) * uniform[..., 0])
    low, high = (math.log(bound) for bound in augmentation.ratio)
    ratio = torch.exp(low + (high - low) * uniform[..., 1])
    heights = torch.round(torch.sqrt(area / ratio)).long()
    widths = torch.round(torch.sqrt(area * ratio)).long()
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    sizes = torch.cat([heights.gather(1, first), widths.gather(1, first)], 1)
    corner = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    room = torch.tensor([height, width]) - sizes
    boxes = torch.cat([torch.floor(corner * (room + 1)).long(), sizes], 1)
    return torch.where(fits.any(1, keepdim=True), boxes, _centre_box(augmentation, height, width))


def augment(images: Tensor, augmentation: Augmentation, draws: Draws) -> Tensor:
    """Crop, flip, resize (bilinear) and normalise: uint8 (B, C, H, W) -> float32 (B, C, S, S)."""
    if images.shape[1] != len(augmentation.mean):
        raise ValueError(
            f"images of {images.shape[1]} channels cannot be normalised by {len(augmentation.mean)} means; "
            "load them with another number of channels or give other means"
        )
    if augmentation.crop == "resized":
        side = augmentation.size or images.shape[2]
        cropped = _resized_crops(images, draws, side)
    else:
        cropped = _crops(images, draws, augmentation.padding if augmentation.crop == "padded" else 0)
        cropped = _resized(cropped, augmentation.size)
    mean, std = (_channels(values, images.device) for values in (augmentation.mean, augmentation.std))
    return cropped.to(torch.float32, memory_format=torch.contiguous_format).sub(mean).div_(std)


def _crops(images: Tensor, draws: Draws, padding: int) -> Tensor:
    """Crop and flip at the images' own size with one gather."""
    height, width = images.shape[2:]
    if not padding:
        return torch.where(draws.flips.view(-1, 1, 1, 1), images.flip(3), images)
    padded = functional.pad(images, (padding,) * 4)
    rows = draws.boxes[:, 0, None] + torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device)
    columns = draws.boxes[:, 1, None] + torch.where(draws.flips[:, None], width - 1 - across, across)
    each = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    gathered = padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]
    return gathered.permute(0, 3, 1, 2)


def _resized_crops(images: Tensor, draws: Draws, side: int) -> Tensor:
    height, width = images.shape[2:]
    top, left, tall, wide = draws.boxes.to(torch.float32).unbind(1)
    down = _sources(top, tall, side)
    right = _sources(left, wide, side)
    right = torch.where(draws.flips[:, None], right.flip(1), right)
    vertical = (2 * down + 1) / height - 1
    horizontal = (2 * right + 1) / width - 1
    grid = torch.stack([horizontal[:, None, :].expand(-1, side, -1), vertical[:, :, None].expand(-1, -1, side)], dim=-1)
    return functional.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


def _sources(start: Tensor, length: Tensor, side: int) -> Tensor:
    """Return the source coordinates of ``side`` pixels in each box, (B, side), clamped to its outermost pixels."""
    middle = torch.arange(side, device=start.device, dtype=torch.float32) + 0.5
    inside = middle[None] * (length / side)[:, None] - 0.5
    return torch.minimum(inside.clamp(min=0), length[:, None] - 1) + start[:, None]


def _resized(images: Tensor, size: int | None) -> Tensor:
    if size is None or images.shape[2:] == (size, size):
        return images
    smaller = size < min(images.shape[2:])
    return functional.interpolate(images.float(), (size, size), mode="bilinear", antialias=smaller, align_corners=False)


@functools.cache  # copied to the device once: a copy per batch would synchronise
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    return (torch.tensor(values, device=device) * 255).view(1, -1, 1, 1)


def _centre_box(augmentation: Augmentation, height: int, width: int) -> Tensor:
    """Return the largest centred box with an allowed aspect ratio."""
    low, high = augmentation.ratio
    tall = min(height, round(width / low))
    wide = min(width, round(height * high))
    return torch.tensor([(height - tall) // 2, (width - wide) // 2, tall, wide])
