"""Score a folder of saliency maps from any model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from congruency._validate import check_choice
from congruency.saliency.data.images import IMAGE_SUFFIXES, hidden, map_bits, read_map
from congruency.saliency.data.loaders import open_split, read_fixations
from congruency.saliency.data.points import check_sigma
from congruency.saliency.data.viewings import DataError, SaliencyData, viewing
from congruency.saliency.metrics import Protocol
from congruency.saliency.scorer import PAPER_METRICS, resized, score

Density = Literal["fixations", "official"]
"""Ground truth of CC, KL and SIM: the blurred fixations, or the density maps published with the data set."""

SCALE_DEPENDENT_METRICS = ("KL", "SIM", "IG")
"""The metrics that depend on a map's zero, which a grey image does not preserve."""

RANK_METRICS = ("sAUC", "AUC", "AUC-Judd")
"""The metrics that depend on the ranks of a map's values, which 8 bits reduce to 256 groups of ties."""

_OSIE = 700  # number of images
_OSIE_HINT = " (to score only OSIE's 200 test images: --split test)"


@dataclass(frozen=True)
class InvalidMap:
    """A map for which some metrics are undefined."""

    file: str
    reason: str
    metrics: tuple[str, ...]  # metrics that leave it out


@dataclass(frozen=True)
class MapScores:
    """The scores of a folder of maps, and counts of its images and maps."""

    means: dict[str, float]  # mean over the images with a score; metrics without any score are left out
    images: dict[str, dict[str, float]]  # image name -> metric -> score; nan if undefined
    scored: int  # images with fixations and a map that is valid for some metric
    invalid: tuple[InvalidMap, ...]  # maps left out of some or all metrics
    without_fixations: int  # images without fixations, excluded from the means
    resized: int  # maps that were resized to their image's size
    unused: int  # maps without an image in the data set
    pictures: int  # maps stored as images, whose black is the map's minimum, not its zero
    eight_bits: int  # maps with only 256 levels
    data: str  # one line about the data set


def score_maps(
    maps: str | Path,
    fixations: str | Path | SaliencyData,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    split: str | None = None,
    density: Density = "fixations",
    sigma: float | None = None,
    protocol: Protocol = "exact",
    seed: int = 0,
    device: torch.device | str = "cpu",
    pixels_per_degree: float | None = None,
    baseline: str | Path | None = None,
    strict: bool = False,
) -> MapScores:
    """Score the maps of a folder: PNG, JPEG or .npy, one per image, named like the image.

    ``fixations`` is a data set, its path (:func:`congruency.saliency.data.open_data`), or a CSV or JSON file of points
    (format: :func:`congruency.saliency.data.folder`), in which case each map must have the size of its image. ``split``
    is a split of SALICON (default ``"val"``), or ``"train"`` or ``"test"`` of OSIE's fixed split (default: all images).
    ``baseline`` is the file of a baseline map for the information gain; ``pixels_per_degree`` sets the default blur.
    The other arguments are those of :func:`congruency.saliency.scorer.score`.

    A map with non-finite values is left out of all metrics, one with negative values out of KL, SIM and IG; with
    ``strict`` both raise DataError.

    Raises:
        DataError: Maps and images do not match, a metric has no valid map, or a map is invalid with ``strict``.
    """
    check_choice("density", density, get_args(Density))
    if sigma is not None:
        check_sigma(sigma)
    files = map_files(Path(maps))
    if isinstance(fixations, SaliencyData):
        data = fixations if pixels_per_degree is None else replace(fixations, pixels_per_degree=pixels_per_degree)
    else:
        data = open_scored(maps, fixations, split, pixels_per_degree=pixels_per_degree)
    _check_fit(Path(maps), files, data)
    resized_maps, invalid = set(), {}

    def load(indices: Sequence[int]) -> Tensor:
        loaded = []
        for i in indices:
            v = data[i]
            saliency = read_map(files[v.key])
            problem = _problem(saliency, files[v.key], metrics, protocol)
            if problem is not None:
                invalid[i] = problem
            if tuple(saliency.shape) != (v.height, v.width):
                resized_maps.add(i)
            loaded.append(resized(saliency.unsqueeze(0), (v.height, v.width))[0])
        return torch.stack(loaded)

    prior = None if baseline is None or "IG" not in metrics else read_map(Path(baseline))
    found = score(
        load, data, metrics, sigma=sigma, protocol=protocol, seed=seed, device=device, baseline=prior,
        official=density == "official",
    )  # fmt: skip
    if strict and invalid:
        first = invalid[min(invalid)]
        raise DataError(f"{len(invalid)} maps are not valid, the first is {first.file}: {first.reason}")
    values = {name: scores.cpu() for name, scores in found.items()}
    for i, problem in invalid.items():
        for name in problem.metrics:
            values[name][i] = torch.nan
    bits = [map_bits(files[v.key]) for v in data.viewings]
    columns = {name: scores.tolist() for name, scores in values.items()}
    unlabelled = sum(len(v.points) == 0 for v in data.viewings)
    unusable = [i for i, problem in invalid.items() if set(problem.metrics) == set(metrics)]
    return MapScores(
        means=_means(values, tuple(invalid[i] for i in sorted(invalid))),
        images={v.name: {name: columns[name][i] for name in columns} for i, v in enumerate(data.viewings)},
        scored=len(data) - unlabelled - sum(len(data[i].points) > 0 for i in unusable),
        invalid=tuple(invalid[i] for i in sorted(invalid)),
        without_fixations=unlabelled,
        resized=len(resized_maps),
        unused=len(files) - len({v.key for v in data.viewings}),
        pictures=sum(b is not None for b in bits),
        eight_bits=bits.count(8),
        data=data.summary(),
    )


def _problem(saliency: Tensor, path: Path, metrics: Sequence[str], protocol: str) -> InvalidMap | None:
    """Return what is wrong with a map; None if it is valid."""
    unknown = int((~torch.isfinite(saliency)).sum())
    if unknown:
        return InvalidMap(path.name, f"{unknown} of its values are nan or infinite", tuple(metrics))
    shifted = ("SIM", "IG") if protocol == "mit" else ()  # these subtract the minimum
    affected = tuple(name for name in metrics if name in SCALE_DEPENDENT_METRICS and name not in shifted)
    if affected and saliency.amin() < 0:
        return InvalidMap(path.name, f"its least value is {saliency.amin():.4g}, below 0", affected)
    return None


def _means(values: dict[str, Tensor], invalid: Sequence[InvalidMap]) -> dict[str, float]:
    """Return the mean of each metric over the images with a score, without metrics that no image has."""
    means = {name: float(scores.nanmean()) for name, scores in values.items()}
    for name in [name for name, mean in means.items() if math.isnan(mean)]:
        bad = [problem for problem in invalid if name in problem.metrics]
        if bad:
            hint = "; take the exponential of log densities" if name in SCALE_DEPENDENT_METRICS else ""
            raise DataError(f"no map has a valid {name}: of {bad[0].file} {bad[0].reason}{hint}")
        del means[name]
    return means


def map_files(folder: Path) -> dict[str, Path]:
    """Return the map files of a folder and its subfolders, by relative path without suffix."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; give the folder that holds the maps")
    suffixes = (*IMAGE_SUFFIXES, ".npy")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes and not hidden(path))
    if not files:
        raise DataError(f"{folder} holds no maps (PNG, JPEG or .npy)")
    found: dict[str, Path] = {}
    for path in files:
        key = path.relative_to(folder).with_suffix("").as_posix()
        if key in found:
            raise DataError(f"{folder} holds two maps for one image: {found[key].name} and {path.name}")
        found[key] = path
    return found


def _check_fit(maps: Path, files: dict[str, Path], data: SaliencyData) -> None:
    """Check that every image has its own map, and that there are fixations."""
    missing = [v.name for v in data.viewings if v.key not in files]
    if missing:
        hint = _OSIE_HINT if data.name == "OSIE" and len(data) == _OSIE else ""
        for folder in ("values", "maps"):  # folders that saliency predict writes
            if len(missing) == len(data) and any(key.startswith(f"{folder}/") for key in files):
                hint = f"; {maps / folder} has some"
                break
        raise DataError(
            f"{maps} has no map for {len(missing)} of {len(data)} images, the first is {missing[0]}; "
            f"a map is named like its image{hint}"
        )
    first: dict[str, str] = {}
    for v in data.viewings:
        if v.key in first:
            both = f"{first[v.key]} and {v.name}"
            shared = files[v.key].name
            raise DataError(f"the images {both} would share the map {shared}; name an image in one way only")
        first[v.key] = v.name
    if all(len(v.points) == 0 for v in data.viewings):
        raise DataError(f"no image of {data.name} has fixations: there is nothing to score against")


def open_scored(
    maps: str | Path, fixations: str | Path, split: str | None = None, *, pixels_per_degree: float | None = None
) -> SaliencyData:
    """Open the data set on which :func:`score_maps` scores a folder of maps."""
    path, files = Path(fixations), map_files(Path(maps))
    if path.suffix.lower() not in (".csv", ".json"):
        return open_split(path, split, "val", pixels_per_degree=pixels_per_degree)
    if split is not None:
        raise DataError(f"{path} has no splits; do not name one, got {split!r}")
    viewings = []
    for name, viewers in read_fixations(path).items():
        image = Path(name)
        key, folder = image.with_suffix("").as_posix(), "" if image.parent == Path() else image.parent.as_posix()
        if key not in files:
            raise DataError(f"there is no map for {name}, which {path} names; a map is named like its image")
        height, width = read_map(files[key]).shape[-2:]
        viewings.append(viewing(image, (height, width), list(viewers.values()), folder=folder))
    return SaliencyData(path.name, tuple(viewings), pixels_per_degree=pixels_per_degree)
