"""Any folder of images with fixation points in a CSV or JSON file."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from congruency.saliency.data.images import image_files, image_header
from congruency.saliency.data.viewings import DataError, SaliencyData, viewing

_Points = dict[str, dict[str, list[tuple[float, float]]]]


def folder(
    images: str | Path, fixations: str | Path | None = None, *, pixels_per_degree: float | None = None
) -> SaliencyData:
    """Load your own images and fixations.

    Points are in pixels; the centre of the top left pixel is (0, 0). Two formats are read:

    - CSV with a header ``image,x,y`` and optionally ``viewer``; one fixation per line.
    - JSON: ``{"a.jpg": [[x, y], ...]}``, or ``{"a.jpg": {"viewer": [[x, y], ...]}}``.

    Images are named with or without their suffix. An image that the file does not name has no fixations; a name that
    fits no image or two images is an error.

    Args:
        images: The folder of images, without subfolders.
        fixations: The file; default: ``fixations.csv`` or ``fixations.json`` in the folder of images.
        pixels_per_degree: Pixels per degree of visual angle, if known.
    """
    images = Path(images)
    path = _fixation_file(images) if fixations is None else Path(fixations)
    named, files, viewings = read_fixations(path), image_files(images), []
    _check_names(named, files, path)
    for image in files:
        viewers = named.pop(image.name, None) or named.pop(image.stem, {})
        size, grey = image_header(image)
        viewings.append(viewing(image, size, list(viewers.values()), grey=grey))
    if not viewings:
        raise DataError(f"{images} holds no images")
    if named:
        raise DataError(f"{path} names {len(named)} images that are not in {images}, the first is {next(iter(named))}")
    return SaliencyData(images.name, tuple(viewings), pixels_per_degree=pixels_per_degree)


def read_fixations(path: Path) -> dict[str, dict[str, Tensor]]:
    """Image name -> viewer -> (n, 2) points, from a CSV or JSON file."""
    if not path.is_file():
        raise DataError(f"the fixations file {path} is missing")
    try:
        named = _from_json(path) if path.suffix.lower() == ".json" else _from_csv(path)
        return {
            image: {viewer: pairs(points, f"{path}, image {image!r:.80}") for viewer, points in viewers.items()}
            for image, viewers in named.items()
        }
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError, csv.Error) as reason:
        if isinstance(reason, DataError):
            raise
        raise DataError(f"{path} does not hold fixation points: {type(reason).__name__} {reason}") from None


def pairs(points: Any, place: str) -> Tensor:
    """(n, 2) float64 from a list of pairs; anything else is an error, since its numbers could be paired wrongly."""
    if not isinstance(points, list) or not all(
        isinstance(point, (list, tuple)) and len(point) == 2 for point in points
    ):
        raise DataError(f"{place}: fixations must be pairs of two numbers, [[x, y], ...], got {points!r:.80}")
    try:
        return torch.tensor(points, dtype=torch.float64).reshape(len(points), 2)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise DataError(f"{place}: fixations must be pairs of two numbers, got {points!r:.80}") from None


def _check_names(named: Iterable[str], files: Sequence[Path], path: Path) -> None:
    """Raise DataError for a name that fits two images, and for an image named in two ways."""
    names, stems = set(named), Counter(image.stem for image in files)
    for image in files:
        if image.stem not in names or image.stem == image.name:
            continue
        if stems[image.stem] > 1:
            both = " and ".join(other.name for other in files if other.stem == image.stem)
            raise DataError(f"{path} names {image.stem}, which could be {both}; name it with its suffix")
        if image.name in names:
            raise DataError(f"{path} names one image in two ways, {image.stem} and {image.name}; name it in one")


def _fixation_file(images: Path) -> Path:
    for name in ("fixations.csv", "fixations.json"):
        if (images / name).is_file():
            return images / name
    raise DataError(f"{images} has no fixations.csv and no fixations.json; give the fixations file")


def _from_csv(path: Path) -> _Points:
    named: _Points = defaultdict(lambda: defaultdict(list))
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        columns = rows.fieldnames or []
        if not {"image", "x", "y"} <= set(columns):
            raise DataError(f"{path} must begin with a line image,x,y[,viewer], got {','.join(columns)}")
        for row in rows:
            if None in row:  # where DictReader puts values beyond the header
                raise DataError(f"{path}, line {rows.line_num}: more values than columns ({','.join(columns)})")
            try:
                point = (float(row["x"]), float(row["y"]))
            except (TypeError, ValueError):
                raise DataError(f"{path}, line {rows.line_num}: x and y must be numbers, got {row}") from None
            named[row["image"]][row.get("viewer") or ""].append(point)
    return named


def _from_json(path: Path) -> _Points:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {image: value if isinstance(value, dict) else {"": value} for image, value in content.items()}
