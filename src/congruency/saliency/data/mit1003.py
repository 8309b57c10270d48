"""MIT1003 (Judd et al., 2009): 1003 images of many sizes, each viewed by 15 people for three seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from congruency.saliency.data.images import image_files, image_header, read_map
from congruency.saliency.data.matlab import field, load_mat, structs
from congruency.saliency.data.viewings import DataError, SaliencyData, Viewing, viewing

_PIXELS_PER_DEGREE = 35.0
_SAMPLES_PER_SECOND = 240
_WHITE = 127  # fixation points are white pixels that JPEG has blurred


def mit1003(root: str | Path, fixations: Literal["maps", "viewers"] = "maps") -> SaliencyData:
    """Load MIT1003 from a folder with ``ALLSTIMULI/``, ``ALLFIXATIONMAPS/`` and, for viewers, ``DATA/<viewer>/*.mat``.

    Args:
        root: The folder.
        fixations: ``"maps"`` reads the official points, the white pixels of ``<image>_fixPts.jpg``: all viewers
            together, several fixations on one pixel as one. ``"viewers"`` detects fixations in each viewer's gaze
            samples (:func:`fixations_in_gaze`): needed to compare viewers, and slightly different from the official
            points. The first fixation of each viewer, on the cross before the image, is dropped.
    """
    root = Path(root)
    if fixations not in ("maps", "viewers"):
        raise ValueError(f"fixations must be 'maps' or 'viewers', got {fixations!r}")
    images = image_files(root / "ALLSTIMULI")
    if not images:
        raise DataError(f"{root / 'ALLSTIMULI'} holds no images; unpack ALLSTIMULI.zip there")
    read = _from_maps if fixations == "maps" else _from_viewers
    return SaliencyData("MIT1003", tuple(read(root, images)), pixels_per_degree=_PIXELS_PER_DEGREE)


def _from_maps(root: Path, images: list[Path]) -> list[Viewing]:
    folder = root / "ALLFIXATIONMAPS"
    viewings = []
    for image in images:
        path, (size, grey) = folder / f"{image.stem}_fixPts.jpg", image_header(image)
        if not path.is_file():
            raise DataError(f"the fixation points {path} are missing; unpack ALLFIXATIONMAPS.zip there")
        points = read_map(path)
        if tuple(points.shape) != size:
            raise DataError(f"{path} is {tuple(points.shape)} (height, width) and its image {size}; download it again")
        white = (points > _WHITE).nonzero().flip(1)
        viewings.append(viewing(image, size, [white], density=_map(folder, image), grey=grey))
    return viewings


def _from_viewers(root: Path, images: list[Path]) -> list[Viewing]:
    viewers = sorted(path for path in (root / "DATA").glob("*") if path.is_dir())
    if not viewers:
        raise DataError(f"{root / 'DATA'} holds no viewers' folders; unpack DATA.zip there")
    viewings = []
    for image in images:
        files = [path for viewer in viewers if (path := viewer / f"{image.stem}.mat").is_file()]
        fixations = [fixations_in_gaze(_gaze(path))[1:] for path in files]
        size, grey = image_header(image)
        viewings.append(viewing(image, size, fixations, density=_map(root / "ALLFIXATIONMAPS", image), grey=grey))
    return viewings


def _map(folder: Path, image: Path) -> Path | None:
    path = folder / f"{image.stem}_fixMap.jpg"
    return path if path.is_file() else None


def _gaze(path: Path) -> Tensor:
    """(samples, 2) zero-based gaze samples of a viewer's file: ``<image>.DATA(1).eyeData``."""
    variables = list(load_mat(path).values())
    if not variables:
        raise DataError(f"{path} holds no variable")
    members = structs(field(variables[0], "DATA", path))
    if not members:
        raise DataError(f"{path} has an empty DATA")
    data = members[0]
    try:
        samples = np.asarray(field(data, "eyeData", path), dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as reason:
        if isinstance(reason, DataError):
            raise
        raise DataError(f"{path} has eyeData that are not numbers ({reason})") from None
    if samples.ndim != 2 or samples.shape[1] < 2:
        raise DataError(f"{path} has eyeData of shape {samples.shape}; expected samples of x and y")
    return torch.from_numpy(samples[:, :2].copy()) - 1.0


def fixations_in_gaze(
    gaze: Tensor, *, dispersion: float = _PIXELS_PER_DEGREE, seconds: float = 0.1, rate: int = _SAMPLES_PER_SECOND
) -> Tensor:
    """Detect fixations in gaze samples by dispersion (the I-DT algorithm): (samples, 2) -> (fixations, 2).

    A fixation is a maximal interval of at least ``seconds`` whose dispersion (range of x plus range of y) is at most
    ``dispersion`` pixels; its position is the median of its samples. Samples that are nan, or left of or above the
    image (written by the tracker during blinks), end a fixation.
    """
    points = np.asarray(gaze, dtype=np.float64)
    seen = [bool(np.isfinite(point).all() and (point > -1.0).all()) for point in points]
    least = max(1, round(seconds * rate))
    found, start = [], 0
    while start + least <= len(points):
        end = start + least
        if not all(seen[start:end]) or _spread(points[start:end]) > dispersion:
            start += 1
            continue
        low, high = points[start:end].min(0), points[start:end].max(0)
        while end < len(points) and seen[end]:
            low, high = np.minimum(low, points[end]), np.maximum(high, points[end])
            if (high - low).sum() > dispersion:
                break
            end += 1
        found.append(np.median(points[start:end], axis=0))
        start = end
    return torch.from_numpy(np.array(found, dtype=np.float64).reshape(-1, 2))


def _spread(points: np.ndarray) -> float:
    return float((points.max(0) - points.min(0)).sum())
