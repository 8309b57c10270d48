"""SALICON (Jiang et al., 2015): COCO images with mouse-tracked attention, as JSON or as one .mat file per image."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from congruency.saliency.data.folder import pairs
from congruency.saliency.data.images import IMAGE_SUFFIXES, image_header
from congruency.saliency.data.matlab import field, load_mat, points_of, structs
from congruency.saliency.data.viewings import DataError, SaliencyData, Viewing, viewing


def salicon(root: str | Path, split: str = "train", *, version: str | None = None) -> SaliencyData:
    """Load one split of SALICON from a folder in an official layout.

    - The release of 2017: ``images/<split>/*.jpg``, ``fixations/<split>/*.mat``, ``maps/<split>/*.png``.
    - JSON, as in the first release: ``annotations/fixations_<split>*.json``, the images anywhere under ``images/``.

    The two releases annotate the same images differently: the one of 2015 contains points of the mouse trajectory, the
    one of 2017 was recorded and processed anew. Scores are not comparable between them, so the version is recorded. A
    JSON file contains its date. The .mat files of both look alike and are assumed to be of 2017 unless
    ``version="2015"``; their detected fixations are read, not the trajectories. Test images have no fixations and need
    only the folder ``images/test``.

    The visual angle is unknown (each worker had their own screen): the default blur is 3 % of the width, 19 pixels.
    """
    if version not in (None, "2015", "2017"):
        raise ValueError(f"version must be '2015' or '2017' (or None, to read it from the files), got {version!r}")
    root = Path(root)
    annotations = sorted((root / "annotations").glob(f"fixations_{split}*.json"))
    folder = root / "fixations" / split
    if folder.is_dir():
        return SaliencyData("SALICON", tuple(_from_mat(root, split, folder)), version or "2017")
    if len(annotations) > 1:
        names = ", ".join(path.name for path in annotations)
        raise DataError(f"several files match the split {split!r}: {names}; name one of them, without 'fixations_'")
    if annotations:
        return _from_json(root, annotations[0], version)
    images = sorted(_images(root, split).values())
    if split.startswith("test") and images:
        return SaliencyData("SALICON", tuple(_viewing(image, []) for image in images), version)
    raise DataError(
        f"{root} has neither {Path('fixations') / split} nor annotations/fixations_{split}*.json; "
        "unpack the official archives there, or name another split"
    )


def _images(root: Path, split: str) -> dict[str, Path]:
    """Image files by name without suffix, from ``images/<split>`` or else anywhere below ``images``."""
    for folder in (root / "images" / split, root / "images", root / split):
        if folder.is_dir():
            return {path.stem: path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES}
    raise DataError(f"{root} has no folder images/; unpack SALICON's images there")


def _from_mat(root: Path, split: str, folder: Path) -> list[Viewing]:
    images = _images(root, split)
    maps = {path.stem: path for path in (root / "maps" / split).glob("*.png")}
    files = sorted(folder.glob("*.mat"))
    if not files:
        raise DataError(f"{folder} holds no .mat files; unpack SALICON's fixations there")
    viewings = []
    for path in files:
        if path.stem not in images:
            raise DataError(f"{path} has no image {path.stem}.jpg; unpack all of the split's images")
        gaze = load_mat(path).get("gaze")
        if gaze is None:
            raise DataError(f"{path} has no variable 'gaze'; expected a file of SALICON's 2017 release")
        viewers = [_columns(field(worker, "fixations", path), path) for worker in structs(gaze)]
        viewings.append(_viewing(images[path.stem], viewers, maps.get(path.stem)))
    return viewings


def _viewing(image: Path, viewers: list[Tensor], density: Path | None = None) -> Viewing:
    size, grey = image_header(image)
    return viewing(image, size, viewers, density=density, grey=grey)


def _columns(fixations: Any, path: Path) -> Tensor:
    """(n, 2) from an n x 2 matrix of x and y; with ``squeeze_me`` one row is a vector, none an empty array."""
    table = np.asarray(fixations)
    if table.size and (table.ndim > 2 or table.shape[-1:] != (2,)):
        raise DataError(f"{path} has fixations of shape {table.shape}; expected rows of x and y")
    table = table.reshape(-1, 2)
    return points_of(table[:, 0], table[:, 1], path)


def _from_json(root: Path, path: Path, version: str | None) -> SaliencyData:
    content = _read(path)
    version = version or _version(content.get("info", {}), path)
    images = _images(root, path.stem.removeprefix("fixations_"))
    maps = {p.stem: p for p in (root / "maps").rglob("*.png")} if (root / "maps").is_dir() else {}
    try:
        workers: dict[int, list[Tensor]] = defaultdict(list)
        for annotation in content["annotations"]:
            # Each point is (row, column), one-based.
            number = annotation["image_id"]
            points = pairs(annotation["fixations"], f"{path}, image {number!r:.80}")
            workers[number].append(points.flip(1) - 1.0)
        entries = [(e["id"], Path(e["file_name"]).stem, (int(e["height"]), int(e["width"]))) for e in content["images"]]
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as reason:
        if isinstance(reason, DataError):
            raise
        raise DataError(f"{path} is not SALICON's JSON: {type(reason).__name__} {reason}") from None
    missing = [stem for _, stem, _ in entries if stem not in images]
    if missing:
        raise DataError(f"{len(missing)} images of {path} are missing, the first is {missing[0]}.jpg")
    viewings = []
    for number, stem, size in entries:
        grey = image_header(images[stem])[1]
        viewings.append(viewing(images[stem], size, workers.get(number, []), density=maps.get(stem), grey=grey))
    return SaliencyData("SALICON", tuple(viewings), version)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as reason:
        raise DataError(f"{path} is not readable JSON ({reason}); download it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not SALICON's JSON: it holds a {type(content).__name__}, not an object")
    return content


def _version(info: Any, path: Path) -> str:
    """The release by the file's date: the second one is of 2017."""
    made = str(info.get("date_created", "")) if isinstance(info, dict) else ""
    if not made[:4].isdigit():
        raise DataError(f"{path} contains no date; give version='2015' or version='2017'")
    return "2015" if int(made[:4]) < 2017 else "2017"
