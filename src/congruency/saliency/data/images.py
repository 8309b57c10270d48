"""Reading images, whatever they are, as three channels of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from congruency.saliency.data.viewings import DataError

__all__ = ["IMAGE_SUFFIXES", "image_files", "image_size", "open_rgb", "read_image", "read_map"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def image_files(folder: Path) -> list[Path]:
    """The images in a folder, by name."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; give the folder that holds the images")
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)


def image_size(path: Path) -> tuple[int, int]:
    """Height and width, from the file's header."""
    with _opened(path) as image:
        return image.height, image.width


def open_rgb(path: Path) -> Image.Image:
    """The image with three channels: grey ones repeat theirs, 16-bit ones lose their lower byte, alpha is dropped."""
    with _opened(path) as image:
        try:
            image.load()
        except OSError as reason:
            raise DataError(f"{path} cannot be decoded ({reason}); fetch it again") from None
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
        try:
            return torch.from_numpy(np.load(path).astype(np.float32))
        except (OSError, ValueError) as reason:
            raise DataError(f"{path} is not a numpy array ({reason})") from None
    with _opened(path) as image:
        grey = image if image.mode.startswith(("I", "F")) else image.convert("L")
        return torch.from_numpy(np.array(grey).astype(np.float32))


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except FileNotFoundError:
        raise DataError(f"the image {path} is missing") from None
    except (UnidentifiedImageError, OSError) as reason:
        raise DataError(f"{path} is not an image that can be read ({reason})") from None
