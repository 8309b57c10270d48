"""Load OSIE, MIT1003, CAT2000 and SALICON in their official layouts, and any folder of images with fixations."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from congruency.saliency.data.images import IMAGE_SUFFIXES, hidden, image_files, image_header, image_names, read_map
from congruency.saliency.data.matlab import field, load_mat, points_of, structs
from congruency.saliency.data.prepared import load_prepared
from congruency.saliency.data.viewings import DataError, SaliencyData, Viewing, viewing

_OSIE_PIXELS_PER_DEGREE = 24.0
_MIT1003_PIXELS_PER_DEGREE = 35.0
_OSIE_FIXATIONS = ("fixations.mat", "eye/fixations.mat")
_WHITE = 127  # threshold for MIT1003's fixation points, white pixels blurred by JPEG

_Points = dict[str, dict[str, list[tuple[float, float]]]]


def open_data(path: str | Path, split: str = "train", *, pixels_per_degree: float | None = None) -> SaliencyData:
    """Open OSIE, MIT1003, CAT2000, one ``split`` of SALICON, a prepared file, or any folder of images with fixations.

    The format is detected from the layout: ``fixations.csv`` or ``fixations.json`` beside images is a custom set,
    ``stimuli/`` with ``fixations.mat`` OSIE, ``ALLSTIMULI/`` MIT1003, ``FIXATIONLOCS/`` or ``trainSet/`` CAT2000,
    ``annotations/`` or ``fixations/`` SALICON. ``pixels_per_degree`` of visual angle replaces the set's value, which is
    the default blur.
    """
    data = _open(Path(path), split)
    return data if pixels_per_degree is None else replace(data, pixels_per_degree=pixels_per_degree)


def _open(path: Path, split: str) -> SaliencyData:
    if path.is_file() and path.suffix == ".pt":
        return load_prepared(path).data
    if not path.is_dir():
        raise DataError(f"there is no data set at {path}: give a folder, or a file of congruency saliency prepare")
    if any((path / f"fixations.{kind}").is_file() for kind in ("csv", "json")):
        return folder(path)
    if is_osie(path):
        return osie(path)
    if (path / "ALLSTIMULI").is_dir():
        return mit1003(path)
    if any((place / "FIXATIONLOCS").is_dir() for place in (path, path / "trainSet")):
        return cat2000(path)
    if is_salicon(path):
        return salicon(path, split)
    raise DataError(
        f"{path} is not a known data set: it holds neither stimuli/ with fixations.mat (OSIE), ALLSTIMULI/ (MIT1003), "
        "FIXATIONLOCS/ (CAT2000), annotations/ or fixations/ (SALICON), nor images beside a fixations.csv or "
        "fixations.json (your own)"
    )


def is_osie(path: Path) -> bool:
    """Whether a folder has OSIE's layout: the images and the viewers' fixations."""
    return (path / "stimuli").is_dir() and any((path / name).is_file() for name in _OSIE_FIXATIONS)


def is_salicon(path: Path) -> bool:
    """Whether a folder has a layout of SALICON: fixations or annotations, or a split's .mat files."""
    return any((path / name).is_dir() for name in ("annotations", "fixations")) or any(
        _salicon_mats(path, split).is_dir() for split in ("train", "val")
    )


def open_split(
    path: str | Path, split: str | None, default: str = "train", *, pixels_per_degree: float | None = None
) -> SaliencyData:
    """Open one split of a data set: SALICON's by name, ``"train"`` or ``"test"`` of OSIE's fixed split.

    Without a split, open the whole data set; for SALICON, which is stored in splits, the split ``default``.
    """
    data = open_data(path, default if split is None else split, pixels_per_degree=pixels_per_degree)
    if split is None or (data.name == "SALICON" and Path(path).is_dir()):
        return data
    if data.name == "SALICON":
        raise DataError(f"{path} is a prepared split of SALICON; do not name a split, got {split!r}")
    if data.name != "OSIE":
        raise DataError(f"{path} has no splits; do not name one, got {split!r}")
    if split not in ("train", "test"):
        raise DataError(f"OSIE has the splits train and test, got {split!r}")
    train, test = osie_split(data)
    return train if split == "train" else test


def _viewing(image: Path, viewers: list[Tensor], density: Path | None = None) -> Viewing:
    size, grey = image_header(image)
    return viewing(image, size, viewers, density=density, grey=grey)


# OSIE (Xu et al., 2014): 700 images of 800x600, each viewed by 15 people for three seconds.


def osie(root: str | Path) -> SaliencyData:
    """Load OSIE from a folder with ``stimuli/*.jpg`` and ``fixations.mat`` (or ``eye/fixations.mat``).

    The viewers' fixations are kept separate. The default blur is 24 pixels, about one degree of visual angle; report it
    with CC, which depends on it.
    """
    root = Path(root)
    path = next((root / name for name in _OSIE_FIXATIONS if (root / name).is_file()), None)
    if path is None or not (root / "stimuli").is_dir():
        raise DataError(f"{root} is not OSIE: it must hold the folder stimuli/ and the file fixations.mat")
    variables = load_mat(path)
    if "fixations" not in variables:
        raise DataError(f"{path} has no variable 'fixations' (found: {', '.join(variables) or 'none'})")
    viewings = []
    for entry in structs(variables["fixations"]):
        name = str(field(entry, "img", path))
        if not name or name in (".", "..") or Path(name).name != name or "\\" in name or "\0" in name:
            raise DataError(f"{path} names the image {name!r:.80}, which is not a file name in the folder stimuli/")
        image = root / "stimuli" / name
        subjects = structs(field(entry, "subjects", path))
        viewers = [points_of(field(s, "fix_x", path), field(s, "fix_y", path), path) for s in subjects]
        viewings.append(_viewing(image, viewers))
    most = max((len(v.fixations) for v in viewings), default=0)
    for v in viewings:
        if len(v.fixations) < most:
            raise DataError(f"{path} has {len(v.fixations)} of {most} viewers for {v.name}; download it again")
    return SaliencyData("OSIE", tuple(viewings), pixels_per_degree=_OSIE_PIXELS_PER_DEGREE)


def osie_split(data: SaliencyData, *, train: int = 500, seed: int = 0) -> tuple[SaliencyData, SaliencyData]:
    """Return a fixed split into 500 training and 200 test images, since OSIE has no official one.

    Images are sorted by the SHA-256 of ``"<seed>:<file name>"`` and the first 500 are for training: the split depends
    only on the file names. Each part keeps the order of the data set.
    """
    if not 0 < train < len(data):
        raise ValueError(f"train must leave images on both sides of {len(data)}, got {train}")

    def key(index: int) -> str:
        return hashlib.sha256(f"{seed}:{data[index].image.name}".encode()).hexdigest()

    order = sorted(range(len(data)), key=key)
    return data.subset(sorted(order[:train])), data.subset(sorted(order[train:]))


# MIT1003 (Judd et al., 2009): 1003 images of many sizes, each viewed by 15 people for three seconds.


def mit1003(root: str | Path) -> SaliencyData:
    """Load MIT1003 from a folder with ``ALLSTIMULI/`` and ``ALLFIXATIONMAPS/``.

    The official points are the white pixels of ``<image>_fixPts.jpg``: all viewers together, several fixations on one
    pixel as one.
    """
    images, folder = image_files(Path(root) / "ALLSTIMULI"), Path(root) / "ALLFIXATIONMAPS"
    if not images:
        raise DataError(f"{Path(root) / 'ALLSTIMULI'} holds no images; unpack ALLSTIMULI.zip there")
    viewings = []
    for image in images:
        path, (size, grey) = folder / f"{image.stem}_fixPts.jpg", image_header(image)
        if not path.is_file():
            raise DataError(f"the fixation points {path} are missing; unpack ALLFIXATIONMAPS.zip there")
        points = read_map(path)
        if tuple(points.shape) != size:
            raise DataError(f"{path} is {tuple(points.shape)} (height, width) and its image {size}; download it again")
        density = folder / f"{image.stem}_fixMap.jpg"
        white = (points > _WHITE).nonzero().flip(1)
        viewings.append(viewing(image, size, [white], density=density if density.is_file() else None, grey=grey))
    return SaliencyData("MIT1003", tuple(viewings), pixels_per_degree=_MIT1003_PIXELS_PER_DEGREE)


# CAT2000 (Borji and Itti, 2015): 20 categories of 100 images of 1920x1080, each viewed by 18 people for five seconds.


def cat2000(root: str | Path) -> SaliencyData:
    """Load CAT2000's training set: ``Stimuli/<category>/*.jpg`` and ``FIXATIONLOCS/<category>/*.mat``.

    That is ``trainSet/`` of the official archive, given itself or by its parent folder. The points are the nonzero
    pixels of ``fixLocs``: all viewers together, several fixations on one pixel as one. Images of different categories
    have the same names, so an image is named ``Action/001.jpg``. The files do not contain the visual angle: the default
    blur is 3 % of the width, 58 pixels.
    """
    root = Path(root) / "trainSet" if (Path(root) / "trainSet").is_dir() else Path(root)
    images = list(image_names(root / "Stimuli").values()) if (root / "Stimuli").is_dir() else []
    if not images or images[0].parent == root / "Stimuli":
        raise DataError(f"{root} is not CAT2000: it holds no Stimuli/<category>/*.jpg; unpack trainSet.zip there")
    viewings = []
    for image in images:
        category, (size, grey) = image.parent.name, image_header(image)
        path = root / "FIXATIONLOCS" / category / f"{image.stem}.mat"
        seen = load_mat(path).get("fixLocs")
        if not isinstance(seen, np.ndarray) or seen.shape != size or not np.issubdtype(seen.dtype, np.number):
            found = getattr(seen, "shape", "none")
            raise DataError(f"{path} must have a variable 'fixLocs' of the image's size {size}, found {found}")
        points = torch.from_numpy(np.argwhere(seen != 0)[:, ::-1].copy())
        density = root / "FIXATIONMAPS" / category / image.name
        kept = density if density.is_file() else None
        viewings.append(viewing(image, size, [points], density=kept, grey=grey, folder=category))
    return SaliencyData("CAT2000", tuple(viewings))


# SALICON (Jiang et al., 2015): COCO images with mouse-tracked attention, as JSON or as one .mat file per image.


def salicon(root: str | Path, split: str = "train", *, version: str | None = None) -> SaliencyData:
    """Load one split of SALICON from a folder in an official layout.

    - The release of 2017: ``images/<split>/*.jpg``, ``fixations/<split>/*.mat``, ``maps/<split>/*.png``; or, as its
      archives unpack into one folder, the .mat and .png files in ``<split>/``. Every image needs its .mat file.
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
    fixations = _salicon_mats(root, split)
    if fixations.is_dir():
        return SaliencyData("SALICON", tuple(_salicon_from_mat(root, split, fixations)), version or "2017")
    if len(annotations) > 1:
        names = ", ".join(path.name for path in annotations)
        raise DataError(f"several files match the split {split!r}: {names}; name one of them, without 'fixations_'")
    if annotations:
        return _salicon_from_json(root, annotations[0], version)
    images = sorted(_salicon_images(root, split).values())
    if split.startswith("test") and images:
        return SaliencyData("SALICON", tuple(_viewing(image, []) for image in images), version)
    raise DataError(
        f"{root} has neither {Path('fixations') / split} nor annotations/fixations_{split}*.json; "
        "unpack the official archives there, or name another split"
    )


def _salicon_images(root: Path, split: str) -> dict[str, Path]:
    """Return image files by name without suffix, from ``images/<split>``, else ``images``, else ``<split>``."""
    for folder in (root / "images" / split, root / "images", root / split):
        if folder.is_dir():
            suffixes = IMAGE_SUFFIXES if folder != root / split else (".jpg", ".jpeg")  # beside the maps, .png
            files = (path for path in folder.rglob("*") if not hidden(path))
            return {path.stem: path for path in files if path.suffix.lower() in suffixes}
    raise DataError(f"{root} has no folder images/; unpack SALICON's images there")


def _salicon_mats(root: Path, split: str) -> Path:
    """Return the folder of the split's .mat files: fixations/<split>, or else <split> if it has some."""
    flat = root / split
    unpacked = flat.is_dir() and any(not hidden(path) for path in flat.glob("*.mat"))
    return flat if unpacked and not (root / "fixations" / split).is_dir() else root / "fixations" / split


def _salicon_from_mat(root: Path, split: str, folder: Path) -> list[Viewing]:
    images = _salicon_images(root, split)
    places = (root / "maps" / split, root / split)
    maps = {path.stem: path for place in places for path in place.glob("*.png") if not hidden(path)}
    files = sorted(path for path in folder.glob("*.mat") if not hidden(path))
    if not files:
        raise DataError(f"{folder} holds no .mat files; unpack SALICON's fixations there")
    # if not divided, the images of all splits are in one folder
    divided = (root / "images" / split).is_dir() or not (root / "images").is_dir()
    expected = maps.keys() | (images.keys() if divided else set())
    unseen = sorted(expected - {path.stem for path in files})
    if unseen:
        raise DataError(
            f"{len(unseen)} images of the split have no viewers' file in {folder}, the first is {unseen[0]}.mat; "
            "unpack all of the split's fixations"
        )
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


def _columns(fixations: Any, path: Path) -> Tensor:
    """Return (n, 2) points from an n x 2 matrix; with ``squeeze_me`` one row is a vector, no row an empty array."""
    table = np.asarray(fixations)
    if table.size and (table.ndim > 2 or table.shape[-1:] != (2,)):
        raise DataError(f"{path} has fixations of shape {table.shape}; expected rows of x and y")
    table = table.reshape(-1, 2)
    return points_of(table[:, 0], table[:, 1], path)


def _salicon_from_json(root: Path, path: Path, version: str | None) -> SaliencyData:
    content = _read_json(path)
    version = version or _salicon_version(content.get("info", {}), path)
    images = _salicon_images(root, path.stem.removeprefix("fixations_"))
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as reason:
        raise DataError(f"{path} is not readable JSON ({reason}); download it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not SALICON's JSON: it holds a {type(content).__name__}, not an object")
    return content


def _salicon_version(info: Any, path: Path) -> str:
    """Return the release by the file's date; the second one is from 2017."""
    made = str(info.get("date_created", "")) if isinstance(info, dict) else ""
    if not made[:4].isdigit():
        raise DataError(f"{path} contains no date; give version='2015' or version='2017'")
    return "2015" if int(made[:4]) < 2017 else "2017"


# Any folder of images with fixation points in a CSV or JSON file.


def folder(
    images: str | Path, fixations: str | Path | None = None, *, pixels_per_degree: float | None = None
) -> SaliencyData:
    """Load custom images and fixations.

    Points are in pixels; the centre of the top left pixel is (0, 0). Two formats are read:

    - CSV with a header ``image,x,y`` and optionally ``viewer``; one fixation per line.
    - JSON: ``{"a.jpg": [[x, y], ...]}``, or ``{"a.jpg": {"viewer": [[x, y], ...]}}``.

    Images are named with or without their suffix. An image that the file does not name has no fixations; a name that
    matches no image or two images is an error.

    By default the file is ``fixations.csv`` or ``fixations.json`` in the folder; the images are then beside it, or in
    its subfolder ``stimuli/`` or ``images/``. Give the pixels per degree of visual angle if they are known.
    """
    images = Path(images)
    name = images.name
    found = [images / name for name in ("fixations.csv", "fixations.json") if (images / name).is_file()]
    if fixations is None and not found:
        raise DataError(f"{images} has no fixations.csv and no fixations.json; give the fixations file")
    path = found[0] if fixations is None else Path(fixations)
    if fixations is None and not image_files(images):
        inside = (images / name for name in ("stimuli", "images"))
        images = next((place for place in inside if place.is_dir()), images)
    named, files, viewings = read_fixations(path), image_files(images), []
    _check_names(named, files, path)
    for image in files:
        viewers = named.pop(image.name, None) or named.pop(image.stem, {})
        viewings.append(_viewing(image, list(viewers.values())))
    if not viewings:
        raise DataError(f"{images} holds no images")
    if named:
        raise DataError(f"{path} names {len(named)} images that are not in {images}, the first is {next(iter(named))}")
    return SaliencyData(name, tuple(viewings), pixels_per_degree=pixels_per_degree)


def read_fixations(path: Path) -> dict[str, dict[str, Tensor]]:
    """Read fixations from a CSV or JSON file: image name -> viewer -> (n, 2) points."""
    if not path.is_file():
        raise DataError(f"the fixations file {path} is missing")
    try:
        if path.suffix.lower() == ".json":
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            named: _Points = {image: v if isinstance(v, dict) else {"": v} for image, v in content.items()}
        else:
            named = _from_csv(path)
        return {
            image: {viewer: pairs(points, f"{path}, image {image!r:.80}") for viewer, points in viewers.items()}
            for image, viewers in named.items()
        }
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError, csv.Error) as reason:
        if isinstance(reason, DataError):
            raise
        raise DataError(f"{path} does not hold fixation points: {type(reason).__name__} {reason}") from None


def pairs(points: Any, place: str) -> Tensor:
    """Return a list of pairs as (n, 2) float64; raise DataError for other forms, which could be paired wrongly."""
    try:
        if isinstance(points, list) and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in points):
            return torch.tensor(points, dtype=torch.float64).reshape(len(points), 2)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise DataError(f"{place}: fixations must be pairs of two numbers, [[x, y], ...], got {points!r:.80}")


def _check_names(named: Iterable[str], files: Sequence[Path], path: Path) -> None:
    """Raise DataError for a name that matches two images, and for an image named in two ways."""
    names, stems = set(named), Counter(image.stem for image in files)
    for image in files:
        if image.stem not in names or image.stem == image.name:
            continue
        if stems[image.stem] > 1:
            both = " and ".join(other.name for other in files if other.stem == image.stem)
            raise DataError(f"{path} names {image.stem}, which could be {both}; name it with its suffix")
        if image.name in names:
            raise DataError(f"{path} names one image in two ways, {image.stem} and {image.name}; name it in one")


def _from_csv(path: Path) -> _Points:
    named: _Points = defaultdict(lambda: defaultdict(list))
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        columns = rows.fieldnames or []
        if not {"image", "x", "y"} <= set(columns):
            raise DataError(f"{path} must begin with a line image,x,y[,viewer], got {','.join(columns)}")
        for row in rows:
            if None in row:  # DictReader's key for values beyond the header
                raise DataError(f"{path}, line {rows.line_num}: more values than columns ({','.join(columns)})")
            try:
                x, y = (float("nan" if row[axis] == "" else row[axis]) for axis in "xy")  # pandas writes nan as ""
            except (TypeError, ValueError):
                raise DataError(f"{path}, line {rows.line_num}: x and y must be numbers, got {row}") from None
            named[row["image"]][row.get("viewer") or ""].append((x, y))
    return named
