"""Score a folder of saliency maps of any model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from congruency._validate import check_choice
from congruency.saliency.data.images import IMAGE_SUFFIXES, map_bits, official_density, read_map
from congruency.saliency.data.loaders import open_split, read_fixations
from congruency.saliency.data.points import check_sigma
from congruency.saliency.data.viewings import DataError, SaliencyData, viewing
from congruency.saliency.metrics import Protocol, cc, kl, sim
from congruency.saliency.scorer import PAPER_METRICS, mean_scores, resized, score

Density = Literal["fixations", "official"]
"""What CC, KL and SIM compare with: the blurred fixations, or the published maps of the data set."""

SCALE_DEPENDENT_METRICS = ("KL", "SIM", "IG")
"""The metrics that depend on a map's zero, which a grey image does not keep."""

_DENSITY_METRICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"CC": cc, "KL": kl, "SIM": sim}
_OSIE = 700  # images
_OSIE_HINT = " (to score only OSIE's 200 test images: --split test)"


@dataclass(frozen=True)
class MapScores:
    """The scores of a folder of maps, and counts of its images and maps."""

    means: dict[str, float]  # of each metric over the images with fixations
    images: dict[str, dict[str, float]]  # image name -> metric -> score; nan for an image without fixations
    scored: int  # images with fixations
    without_fixations: int  # the others, excluded from the means
    resized: int  # maps that were resized to their image's size
    unused: int  # maps without an image in the data set
    pictures: int  # maps stored as images, whose black is the map's minimum, not its zero
    eight_bits: int  # those with only 256 levels
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
) -> MapScores:
    """Score the maps of a folder: PNG, JPEG or .npy, one per image, named like the image.

    ``fixations`` is a data set, its path (:func:`congruency.saliency.data.open_data`), or a CSV or JSON file of points
    (format: :func:`congruency.saliency.data.folder`); then each map has the size of its image. ``split`` is SALICON's
    (default ``"val"``), or ``"train"`` or ``"test"`` of OSIE's fixed split (default: all images). The rest is as in
    :func:`congruency.saliency.scorer.score`.
    """
    check_choice("density", density, get_args(Density))
    if sigma is not None:
        check_sigma(sigma)
    files = map_files(Path(maps))
    data = fixations if isinstance(fixations, SaliencyData) else open_scored(maps, fixations, split)
    _check_fit(Path(maps), files, data)
    resized_maps = set()

    def load(indices: Sequence[int]) -> Tensor:
        loaded = []
        for i in indices:
            v = data[i]
            saliency = read_map(files[v.image.stem])
            if tuple(saliency.shape) != (v.height, v.width):
                resized_maps.add(i)
            loaded.append(resized(saliency.unsqueeze(0), (v.height, v.width))[0])
        return torch.stack(loaded)

    official = [name for name in metrics if density == "official" and name in _DENSITY_METRICS]
    others = [name for name in metrics if name not in official]
    found = _against_official(load, data, official, device) if official else {}
    if others:
        found |= score(load, data, others, sigma=sigma, protocol=protocol, seed=seed, device=device)
    values = {name: found[name] for name in metrics}
    bits = [map_bits(files[v.image.stem]) for v in data.viewings]
    columns = {name: scores.cpu().tolist() for name, scores in values.items()}
    unlabelled = sum(len(v.points) == 0 for v in data.viewings)
    return MapScores(
        means=mean_scores(values, data),
        images={v.image.name: {name: columns[name][i] for name in columns} for i, v in enumerate(data.viewings)},
        scored=len(data) - unlabelled,
        without_fixations=unlabelled,
        resized=len(resized_maps),
        unused=len(files) - len({v.image.stem for v in data.viewings}),
        pictures=sum(b is not None for b in bits),
        eight_bits=bits.count(8),
        data=data.summary(),
    )


def map_files(folder: Path) -> dict[str, Path]:
    """The map files of a folder, by name without suffix."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; give the folder that holds the maps")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (*IMAGE_SUFFIXES, ".npy"))
    if not files:
        raise DataError(f"{folder} holds no maps (PNG, JPEG or .npy)")
    found: dict[str, Path] = {}
    for path in files:
        if path.stem in found:
            raise DataError(f"{folder} holds two maps for one image: {found[path.stem].name} and {path.name}")
        found[path.stem] = path
    return found


def _check_fit(maps: Path, files: dict[str, Path], data: SaliencyData) -> None:
    """Check that every image has its own map, and that there are fixations."""
    missing = [v.image.name for v in data.viewings if v.image.stem not in files]
    if missing:
        whole = data.name == "OSIE" and len(data) == _OSIE
        raise DataError(
            f"{maps} has no map for {len(missing)} of {len(data)} images, the first is {missing[0]}; "
            f"a map is named like its image{_OSIE_HINT if whole else ''}"
        )
    first: dict[str, str] = {}
    for v in data.viewings:
        if v.image.stem in first:
            both = f"{first[v.image.stem]} and {v.image.name}"
            shared = files[v.image.stem].name
            raise DataError(f"the images {both} would share the map {shared}; name an image in one way only")
        first[v.image.stem] = v.image.name
    if all(len(v.points) == 0 for v in data.viewings):
        raise DataError(f"no image of {data.name} has fixations: there is nothing to score against")


def _against_official(
    load: Callable[[Sequence[int]], Tensor], data: SaliencyData, metrics: Sequence[str], device: torch.device | str
) -> dict[str, Tensor]:
    """Each metric (N,) against the official densities; nan for an image without fixations."""
    values = {name: torch.full((len(data),), torch.nan, dtype=torch.float64, device=device) for name in metrics}
    for i, v in enumerate(data.viewings):
        if len(v.points):
            saliency, truth = load([i]).to(device), official_density(v).unsqueeze(0).to(device)
            for name in metrics:
                values[name][i] = _DENSITY_METRICS[name](saliency, truth)[0]
    return values


def open_scored(maps: str | Path, fixations: str | Path, split: str | None = None) -> SaliencyData:
    """The data set that :func:`score_maps` scores a folder of maps on."""
    path, files = Path(fixations), map_files(Path(maps))
    if path.suffix.lower() not in (".csv", ".json"):
        return open_split(path, split, "val")
    if split is not None:
        raise DataError(f"{path} has no splits; do not name one, got {split!r}")
    viewings = []
    for name, viewers in read_fixations(path).items():
        stem = Path(name).stem
        if stem not in files:
            raise DataError(f"there is no map for {name}, which {path} names; a map is named like its image")
        height, width = read_map(files[stem]).shape[-2:]
        viewings.append(viewing(Path(name), (height, width), list(viewers.values())))
    return SaliencyData(path.name, tuple(viewings))
