"""Export a folder of maps to other formats: pysaliency's HDF5 models, archives for the MIT benchmark."""

import io
import math
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from congruency.saliency.data.images import image_header, image_names, read_map
from congruency.saliency.data.viewings import DataError
from congruency.saliency.predict import grey
from congruency.saliency.score_maps import map_files
from congruency.saliency.scorer import resized

SUFFIXES = (".hdf5", ".h5", ".zip")
_FLOOR = 1e-3  # weight of the uniform density that is mixed into maps with zeros, since their logarithm is infinite


@dataclass(frozen=True)
class Exported:
    """Counts of exported maps."""

    maps: int
    resized: int  # maps resized to their image's size
    floored: int  # maps with zeros, to which a uniform floor was added


def export_maps(maps: str | Path, images: str | Path, out: str | Path) -> Exported:
    """Write one file with the map of every image in a folder, or in its subfolders if it has no images itself.

    Each map is resized to the size of its image.

    - ``.hdf5``: the natural logarithm of the map divided by its sum, float32, under the image's name with suffix and
      subfolder. ``pysaliency.HDF5Model`` reads it, and the MIT/Tuebingen benchmark accepts it as a probabilistic model.
      0.1 % of a uniform density is mixed into maps with zeros.
    - ``.zip``: 16-bit grey PNG, named like the images, the other format that the benchmark accepts.

    Maps are matched to images by name without suffix; maps without an image are left out.
    """
    path = Path(out)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"the file must end in {', '.join(SUFFIXES)}, which decides the format, got {path.name}")
    write = _write_zip if path.suffix.lower() == ".zip" else _write_hdf5
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    counts = {"resized": 0, "floored": 0}
    try:
        written = write(aside, _matched(Path(maps), Path(images), counts), counts)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return Exported(written, **counts)


def _matched(maps: Path, images: Path, counts: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Yield each image's name and its map, resized to the image; raise DataError if a map is missing or invalid."""
    found, files = image_names(images), map_files(maps)
    if not found:
        raise DataError(f"{images} holds no images")
    for name, image in found.items():
        key = name.removesuffix(image.suffix)
        if key not in files:
            raise DataError(f"{maps} has no map for {name}; a map is named like its image")
        (height, width), _ = image_header(image)
        saliency = read_map(files[key])
        if not torch.isfinite(saliency).all() or saliency.amin() < 0:
            raise DataError(f"{files[key]} has nan, infinite or negative values; a density cannot be made of it")
        if tuple(saliency.shape) != (height, width):
            counts["resized"] += 1
            saliency = resized(saliency.unsqueeze(0), (height, width))[0].clamp(min=0)
        yield name, saliency


def log_density(saliency: Tensor) -> tuple[Tensor, bool]:
    """Return the logarithm of a map divided by its sum, (H, W) float64, and whether a uniform floor was added."""
    values, uniform = saliency.double(), -math.log(saliency.numel())
    total, low = values.sum(), values.amin()
    if total == 0:
        return torch.full_like(values, uniform), True
    shares = values / total
    if low > 0:
        return shares.log(), False
    return ((1 - _FLOOR) * shares + _FLOOR / saliency.numel()).log(), True


def _write_hdf5(path: Path, maps: Iterator[tuple[str, Tensor]], counts: dict[str, int]) -> int:
    try:
        import h5py
    except ImportError:
        raise ValueError("HDF5 files need the package h5py: pip install h5py (a .zip needs nothing)") from None
    written = 0
    with h5py.File(path, "w") as file:
        for name, saliency in maps:
            values, floored = log_density(saliency)
            file.create_dataset(name, data=values.float().numpy(), compression=4)
            counts["floored"] += floored
            written += 1
    return written


def _write_zip(path: Path, maps: Iterator[tuple[str, Tensor]], counts: dict[str, int]) -> int:
    written = 0
    with zipfile.ZipFile(path, "w") as archive:  # PNG is compressed already
        for name, saliency in maps:
            image = io.BytesIO()
            grey(saliency, 16).save(image, "PNG")
            archive.writestr(Path(name).with_suffix(".png").as_posix(), image.getvalue())
            written += 1
    return written
