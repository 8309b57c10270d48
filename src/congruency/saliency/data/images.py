"""Reading images, whatever they are, as three channels of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from congruency.saliency.data.viewings import DataError

__all__ = ["IMAGE_SUFFIXES", "image_files", "image_header", "map_bits", "open_rgb", "read_image", "read_map"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_MOST_PIXELS = 100_000_000


def image_files(folder: Path) -> list[Path]:
    """The images in a folder, by name."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; give the folder that holds the images")
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)


def image_header(path: Path) -> tuple[tuple[int, int], bool]:
    """((height, width), whether it is stored without colour), from the file's header."""
    with _opened(path) as image:
        return (image.height, image.width), image.mode.startswith(("1", "L", "I", "F"))


def open_rgb(path: Path) -> Image.Image:
    """The image with three channels: grey ones repeat theirs, 16-bit ones lose their lower byte, alpha is dropped."""
    with _opened(path) as image, _decoding(path):
        image.load()
        if image.mode.startswith("I"):
            return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)).convert("RGB")
        return image.convert("RGB")


def read_image(path: Path, size: tuple[int, int] | None = None) -> Tensor:
    """(3, height, width) uint8, resized to ``size`` = (height, width) if given (antialiased)."""
    image = open_rgb(path)
    if size is not None and (image.height, image.width) != tuple(size):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def read_map(path: Path) -> Tensor:
    """(height, width) of a grey map in a file: float32, 0 to 255, or 0 to 65535 for 16 bits."""
    if path.suffix.lower() == ".npy":
        return _array(path)
    with _opened(path, "map") as image, _decoding(path):
        grey = image if image.mode.startswith(("I", "F")) else image.convert("L")
        return torch.from_numpy(np.array(grey).astype(np.float32))


def map_bits(path: Path) -> int | None:
    """How many bits a pixel of a map's picture has, 8 or 16 (and more); None for an array of numbers."""
    if path.suffix.lower() == ".npy":
        return None
    with _opened(path, "map") as image:
        return 16 if image.mode.startswith(("I", "F")) else 8


def _array(path: Path) -> Tensor:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a header may promise what is not there
        if not isinstance(values, np.ndarray) or values.ndim != 2 or values.size > _MOST_PIXELS:
            raise ValueError("a map has two dimensions, and not more than 100 million numbers")
        return torch.from_numpy(np.array(values, dtype=np.float32))
    except Exception as reason:  # numpy raises of every kind for a broken header
        raise DataError(f"{path} is not a numpy array of a map ({reason})") from None


def _opened(path: Path, what: str = "image") -> Image.Image:
    try:
        image = Image.open(path)
    except FileNotFoundError:
        raise DataError(f"the {what} {path} is missing") from None
    except Exception as reason:  # Pillow's readers raise of every kind for a broken header, and for too many pixels
        raise DataError(f"{path} is not an image that can be read ({reason})") from None
    if image.width * image.height > _MOST_PIXELS:
        image.close()
        raise DataError(f"{path} has {image.width}x{image.height} pixels, more than {_MOST_PIXELS}; make it smaller")
    return image


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as reason:  # Pillow's decoders raise of every kind for a broken file
        raise DataError(f"{path} cannot be decoded ({reason}); fetch it again") from None
