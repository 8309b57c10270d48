"""Read images of any format as three uint8 channels, and grey maps as floats."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from congruency.saliency.data.viewings import DataError, Viewing

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
IMAGE_FOLDERS = ("stimuli", "Stimuli", "ALLSTIMULI", "images")  # image folders of the official layouts
_MAX_PIXELS = 100_000_000
_LARGE = 1e15


def image_files(folder: Path) -> list[Path]:
    """Return the image files in a folder, sorted by name."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; give the folder that holds the images")
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and not hidden(path))


def image_names(folder: Path) -> dict[str, Path]:
    """Return the images of a folder by name; if it has none itself, those of its subfolders, as ``Action/001.jpg``.

    In a data set's folder, the images are those in the official image folder. Subfolders are the layout of CAT2000,
    whose folders ``Output`` are skipped.
    """
    own = image_files(folder)
    if own:
        return {path.name: path for path in own}
    for place in (folder / name for name in IMAGE_FOLDERS):
        if place.is_dir():
            return image_names(place)
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not hidden(path) and path.name != "Output")
    return {f"{place.name}/{path.name}": path for place in inside for path in image_files(place)}


def hidden(path: Path) -> bool:
    """Whether a file is hidden, such as the ``._*`` files that macOS adds to archives and other disks."""
    return path.name.startswith(".")


def image_header(path: Path) -> tuple[tuple[int, int], bool]:
    """Return ((height, width), whether the image is grey) from the file's header."""
    with _opened(path) as image:
        return (image.height, image.width), image.mode.startswith(("1", "L", "I", "F"))


def open_rgb(path: Path) -> Image.Image:
    """Read an image with three channels: grey is repeated, 16 bits are reduced to 8, alpha is dropped."""
    with _opened(path) as image, _decoding(path):
        image.load()
        if image.mode.startswith("I"):
            return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)).convert("RGB")
        return image.convert("RGB")


def read_image(path: Path, size: tuple[int, int] | None = None) -> Tensor:
    """Read an image as (3, height, width) uint8, resized with antialiasing to ``size`` = (height, width) if given."""
    image = open_rgb(path)
    if size is not None and (image.height, image.width) != tuple(size):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def read_map(path: Path) -> Tensor:
    """Read a grey map, (height, width) float32: 0 to 255, or 0 to 65535 for 16 bits; an array is read as it is.

    An array whose values are too large or too small for sums of squares in float32, such as exponentials of logits, is
    divided by its largest absolute value, which changes no metric.
    """
    if path.suffix.lower() == ".npy":
        return _array(path)
    with _opened(path, "map") as image, _decoding(path):
        grey = image if image.mode.startswith(("I", "F")) else image.convert("L")
        return torch.from_numpy(np.array(grey).astype(np.float32))


def map_bits(path: Path) -> int | None:
    """Return the bits per pixel of a map in an image file: 8, or 16 for 16 and more; None for an array (.npy)."""
    if path.suffix.lower() == ".npy":
        return None
    with _opened(path, "map") as image:
        return 16 if image.mode.startswith(("I", "F")) else 8


def official_density(viewing: Viewing) -> Tensor:
    """Read the density map published with a data set, float32, 0 to 255.

    These are SALICON's ``maps/``, MIT1003's ``fixMap`` and CAT2000's ``FIXATIONMAPS/``.
    Published values of CC, KL and SIM refer to these maps, whose authors chose the blur and stored 256 levels.
    """
    if viewing.density is None:
        raise DataError(
            f"there is no official density map for {viewing.name}; "
            "SALICON (2017) has them in maps/, MIT1003 in ALLFIXATIONMAPS/, CAT2000 in FIXATIONMAPS/, prepared files "
            "and points alone have none"
        )
    read = read_map(viewing.density)
    if tuple(read.shape) != (viewing.height, viewing.width):
        found, expected = tuple(read.shape), (viewing.height, viewing.width)
        raise DataError(f"{viewing.density} is {found} (height, width) and its image {expected}; download it again")
    return read


def _array(path: Path) -> Tensor:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: the header may declare a huge array
        if not isinstance(values, np.ndarray) or values.ndim != 2 or values.size > _MAX_PIXELS:
            raise ValueError("a map has two dimensions and at most 100 million values")
        peak = np.abs(values).max(initial=0)
        if 0 < peak < 1 / _LARGE or _LARGE < peak < np.inf:
            values = values / peak
        return torch.from_numpy(np.array(values, dtype=np.float32))
    except Exception as reason:  # numpy raises many types of errors for broken headers
        raise DataError(f"{path} is not a map stored as a numpy array ({reason})") from None


def _opened(path: Path, what: str = "image") -> Image.Image:
    try:
        image = Image.open(path)
    except FileNotFoundError:
        raise DataError(f"the {what} {path} is missing") from None
    except Exception as reason:  # Pillow raises many types of errors for broken headers and too many pixels
        raise DataError(f"{path} is not an image that can be read ({reason})") from None
    if image.width * image.height > _MAX_PIXELS:
        image.close()
        raise DataError(f"{path} has {image.width}x{image.height} pixels, more than {_MAX_PIXELS}; resize it")
    return image


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as reason:  # Pillow raises many types of errors for broken files
        raise DataError(f"{path} cannot be decoded ({reason}); download it again") from None
