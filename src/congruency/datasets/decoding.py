"""Decode image files into one uint8 tensor."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from congruency.datasets.tree import Tree

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MAX_BYTES = 16 << 30  # of all decoded images together
_MAX_PIXELS = 100_000_000
_MODES = {1: "L", 3: "RGB"}
_CHUNK = 64
_SMALL = 16 << 10  # bytes


def decode_all(tree: Tree, names: Sequence[str], size: int | None = None, channels: int | None = None) -> Tensor:
    """Decode files of one tree, in this order: (N, C, H, W).

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
        for i in range(start, min(start + _CHUNK, len(names))):
            image = decode(tree, names[i], size, channels)
            if image.shape != shape:
                raise ValueError(
                    f"{tree.describe(names[i])} is {image.shape[2]}x{image.shape[1]} and {tree.describe(names[0])} "
                    f"is {shape[2]}x{shape[1]}; give a size (--size) to resize all images to"
                )
            images[i] = image

    small = tree.size(names[0]) < _SMALL  # threads do not pay off for small files
    with ThreadPoolExecutor(1 if small else min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, range(0, len(names), _CHUNK)):
            pass
    return torch.from_numpy(images)


def decode(tree: Tree, name: str, size: int | None = None, channels: int | None = None) -> NDArray[numpy.uint8]:
    """One image as (C, H, W), centre-cropped to a square and resized to ``size`` if given."""
    image = open_image(tree, name, channels)
    if size is not None and image.size != (size, size):
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image if image.width == image.height else image.crop((left, top, left + side, top + side))
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels: NDArray[numpy.uint8] = numpy.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def open_image(tree: Tree, name: str, channels: int | None = None) -> Image.Image:
    """One decoded Pillow image in grey (1 channel) or colour (3, the default)."""
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
    except Exception as reason:  # Pillow's decoders raise many kinds of errors on broken files
        cause = "unknown format" if isinstance(reason, UnidentifiedImageError) else reason
        raise ValueError(
            f"{tree.describe(name)} cannot be decoded as an image ({cause}); replace or delete it"
        ) from reason
