"""Labelled images: decoded in memory (:class:`LabelledImages`) or as a list of files (:class:`Catalogue`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional

from congruency.datasets.tree import Tree

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MAX_BYTES = 16 << 30  # limit for all decoded images together
_MAX_PIXELS = 100_000_000
_MODES = {1: "L", 3: "RGB"}
_FILES = 64  # files per unit of work of a decoding thread
_SMALL = 16 << 10  # file size in bytes
_LUMA = (19595, 38470, 7471)  # ITU-R 601 in 1/65536, as Pillow converts colour to grey
_CHUNK = 4096  # images converted at a time


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images in memory, each with one class label.

    Attributes:
        images: uint8, (N, C, H, W).
        labels: int64, (N,), each in ``range(len(classes))``.
        classes: the class names, in the order of the labels.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 of shape (N, C, H, W), got {self.images.dtype} of {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be int64, one for each of the {len(self.images)} images, "
                f"got {self.labels.dtype} of {tuple(self.labels.shape)}"
            )
        wrong = ((self.labels < 0) | (self.labels >= len(self.classes))).nonzero()
        if len(wrong):
            first = int(wrong[0])
            raise ValueError(
                f"label {int(self.labels[first])} of image {first} is not one of the {len(self.classes)} classes; "
                f"labels go from 0 to {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Tensor | Sequence[int]) -> LabelledImages:
        """Return the images at these indices, in this order, or those selected by a boolean mask."""
        where = torch.as_tensor(indices, device=self.labels.device)
        where = where if where.dtype == torch.bool else where.long()
        return replace(self, images=self.images[where], labels=self.labels[where])

    def per_class(self, count: int) -> LabelledImages:
        """Return the first ``count`` images of every class, keeping their order."""
        return self.subset(first_of_each(self.labels, count))

    def divide(self, share: float, seed: int = 0) -> tuple[LabelledImages, LabelledImages]:
        """Return a stratified random split; the first part has the fraction ``share`` of every class (rounded)."""
        if not 0.0 < share < 1.0:
            raise ValueError(f"share must be between 0 and 1, got {share}")
        generator = torch.Generator().manual_seed(seed)
        labels = self.labels.cpu()
        first = torch.zeros(len(self), dtype=torch.bool)
        for label in range(len(self.classes)):
            of_class = (labels == label).nonzero().flatten()
            of_class = of_class[torch.randperm(len(of_class), generator=generator)]
            first[of_class[: round(share * len(of_class))]] = True
        return self.subset(first.to(self.labels.device)), self.subset(~first.to(self.labels.device))

    def converted(self, size: int | None, channels: int | None) -> LabelledImages:
        """Return the images with another side length or number of channels; None keeps the current one."""
        images = self.images
        if channels is not None and channels != images.shape[1]:
            images = _recoloured(images, channels)
        if size is not None and images.shape[2:] != (size, size):
            parts = [_resized(chunk, size) for chunk in images.split(_CHUNK)]
            images = torch.cat(parts) if parts else images.new_empty((0, images.shape[1], size, size))
        return self if images is self.images else replace(self, images=images)


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Image files with their class labels, not decoded: for data sets that do not fit in memory.

    Attributes:
        tree: where the files are.
        names: the N file names.
        labels: int64, (N,).
        classes: the class names, in the order of the labels.
    """

    tree: Tree
    names: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def per_class(self, count: int) -> Catalogue:
        """Return the first ``count`` files of every class."""
        return self.subset(first_of_each(self.labels, count).tolist())

    def subset(self, indices: Sequence[int]) -> Catalogue:
        """Return the files at these indices, in this order."""
        where = torch.as_tensor(indices, dtype=torch.int64)
        return replace(self, names=tuple(self.names[i] for i in where.tolist()), labels=self.labels[where])

    def decoded(self, size: int | None = None, channels: int | None = None) -> LabelledImages:
        """Decode all files into memory; ``size`` is required if they differ in shape."""
        return LabelledImages(decode_all(self.tree, self.names, size, channels), self.labels, self.classes)


def first_of_each(labels: Tensor, count: int) -> Tensor:
    """Return the indices of the first ``count`` samples of every label, ascending: (N,) -> (M,)."""
    if count < 1:
        raise ValueError(f"the number of images per class must be positive, got {count}")
    order = torch.argsort(labels, stable=True)
    ordered = labels[order]
    starts = torch.searchsorted(ordered, ordered)
    place = torch.arange(len(labels), device=labels.device) - starts
    return order[place < count].sort().values


def _recoloured(images: Tensor, channels: int) -> Tensor:
    have = images.shape[1]
    if have == 1:
        return images.expand(-1, channels, -1, -1).contiguous()
    if have == 3 and channels == 1:
        weights = torch.tensor(_LUMA, dtype=torch.int32).view(1, 3, 1, 1)
        parts = [((chunk.int() * weights).sum(1, keepdim=True) + 0x8000) >> 16 for chunk in images.split(_CHUNK)]
        return torch.cat(parts).to(torch.uint8) if parts else images[:, :1]
    raise ValueError(f"images of {have} channels cannot be converted to {channels}; choose 1 or 3")


def _resized(images: Tensor, size: int) -> Tensor:
    """Centre-crop to a square and resize, as :func:`decode` does for one image."""
    height, width = images.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[:, :, top : top + side, left : left + side]
    return functional.interpolate(square, (size, size), mode="bilinear", antialias=True, align_corners=False)


def decode_all(tree: Tree, names: Sequence[str], size: int | None = None, channels: int | None = None) -> Tensor:
    """Decode files of one tree, in the given order: (N, C, H, W).

    Without ``size`` every image must have the shape of the first; without ``channels`` they are read in colour.
    """
    if not names:
        raise ValueError(f"{tree.source} holds no images to decode")
    shape = decode(tree, names[0], size, channels).shape
    if len(names) * numpy.prod(shape) > MAX_BYTES:
        raise ValueError(
            f"the {len(names)} images of {tree.source} would take more than {MAX_BYTES} bytes; "
            "choose a smaller size or fewer images, or read them batch by batch"
        )
    images = numpy.empty((len(names), *shape), numpy.uint8)

    def fill(start: int) -> None:
        for i in range(start, min(start + _FILES, len(names))):
            image = decode(tree, names[i], size, channels)
            if image.shape != shape:
                raise ValueError(
                    f"{tree.describe(names[i])} is {image.shape[2]}x{image.shape[1]} and {tree.describe(names[0])} "
                    f"is {shape[2]}x{shape[1]}; give a size (--size) to resize all images to"
                )
            images[i] = image

    small = tree.size(names[0]) < _SMALL  # threads do not pay off for small files
    with ThreadPoolExecutor(1 if small else min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, range(0, len(names), _FILES)):
            pass
    return torch.from_numpy(images)


def decode(tree: Tree, name: str, size: int | None = None, channels: int | None = None) -> NDArray[numpy.uint8]:
    """Decode one image as (C, H, W), centre-cropped to a square and resized to ``size`` if given."""
    image = open_image(tree, name, channels)
    if size is not None and image.size != (size, size):
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image if image.width == image.height else image.crop((left, top, left + side, top + side))
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels: NDArray[numpy.uint8] = numpy.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def open_image(tree: Tree, name: str, channels: int | None = None) -> Image.Image:
    """Decode a Pillow image in grey (1 channel) or colour (3, the default)."""
    mode = _MODES.get(3 if channels is None else channels)
    if mode is None:
        raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels}")
    data = tree.read(name)
    try:
        image = Image.open(BytesIO(data))
        if image.width * image.height > _MAX_PIXELS:
            raise ValueError(f"{image.width}x{image.height} pixels are more than {_MAX_PIXELS}")
        image.load()
        return image if image.mode == mode else image.convert(mode)
    except Exception as reason:  # Pillow's decoders raise many types of errors for broken files
        cause = "unknown format" if isinstance(reason, UnidentifiedImageError) else reason
        raise ValueError(
            f"{tree.describe(name)} cannot be decoded as an image ({cause}); replace or delete it"
        ) from reason
