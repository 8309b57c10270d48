"""Scores of a folder of saliency maps, whichever model made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from congruency.saliency.data.folder import read_fixations
from congruency.saliency.data.images import IMAGE_SUFFIXES, map_bits, read_map
from congruency.saliency.data.official import official_density
from congruency.saliency.data.opening import open_part
from congruency.saliency.data.points import check_sigma
from congruency.saliency.data.viewings import DataError, SaliencyData, viewing
from congruency.saliency.metrics import Protocol, cc, kl, sim
from congruency.saliency.scorer import METRICS, PAPER_METRICS, mean_scores, resized, score

__all__ = ["OF_VALUES", "Density", "MapScores", "map_files", "score_maps"]

Density = Literal["fixations", "official"]
"""What CC, KL and SIM compare with: the fixations blurred here, or the maps that the set comes with."""

OF_VALUES = ("KL", "SIM", "IG")
"""The metrics that depend on where a map's zero is; a map's picture has one of its own."""

_WITH_DENSITY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"CC": cc, "KL": kl, "SIM": sim}
_OSIE = 700
_OF_ITS_TEST_PART = " (to score OSIE's 200 test images alone: --split test)"


@dataclass(frozen=True)
class MapScores:
    """What a folder of maps is worth.

    Attributes:
        means: Each metric's mean over the images with fixations.
        images: Image name -> metric -> score; nan for an image without fixations.
        scored: Images with fixations.
        bare: Images without, left out of the means.
        resized: Maps that did not have their image's size and were resized to it.
        unused: Maps without an image in the set.
        pictures: Maps that are pictures, not arrays: their least value is the file's black, not the model's zero.
        eight_bits: Those of them with no more than 256 levels.
        data: One line about the set.
    """

    means: dict[str, float]
    images: dict[str, dict[str, float]]
    scored: int
    bare: int
    resized: int
    unused: int
    pictures: int
    eight_bits: int
    data: str


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
    """Score the maps of a folder (PNG, JPEG, or .npy, one an image, by the images' names).

    Args:
        maps: The folder.
        fixations: A data set, its path (:func:`congruency.saliency.data.open_data`), or a CSV or JSON file of fixation
            points alone (:func:`congruency.saliency.data.folder` has the format); then the maps' sizes are the images'.
        metrics: Which of ``congruency.saliency.scorer.METRICS``.
        split: The part of the set at this path: SALICON's (``"val"`` if not given), or ``"train"`` or ``"test"`` of
            OSIE's fixed split (the whole if not given).
        density: What CC, KL and SIM compare with: ``"fixations"``, blurred by ``sigma``, or ``"official"``, the maps
            that SALICON and MIT1003 come with (:func:`congruency.saliency.data.official_density`).
        sigma: Width in pixels of the densities that CC, KL and SIM compare with; the set's default if not given.
        protocol: Of the AUCs: ``"exact"``, or as the ``"mit"`` or ``"salicon"`` benchmark computes them.
        seed: Of the protocol's draws.
        device: Where scoring happens.
    """
    _check(metrics, protocol, density, sigma)
    files = map_files(Path(maps))
    data = fixations if isinstance(fixations, SaliencyData) else _open(Path(fixations), files, split)
    _check_fit(Path(maps), files, data)
    changed = set()

    def load(indices: Sequence[int]) -> Tensor:
        loaded = []
        for i in indices:
            v = data[i]
            saliency = read_map(files[v.image.stem])
            if tuple(saliency.shape) != (v.height, v.width):
                changed.add(i)
            loaded.append(resized(saliency.unsqueeze(0), (v.height, v.width))[0])
        return torch.stack(loaded)

    official = [name for name in metrics if density == "official" and name in _WITH_DENSITY]
    others = [name for name in metrics if name not in official]
    found = _against_official(load, data, official, device) if official else {}
    if others:
        found |= score(load, data, others, sigma=sigma, protocol=protocol, seed=seed, device=device)
    values = {name: found[name] for name in metrics}
    bits = [map_bits(files[v.image.stem]) for v in data.viewings]
    columns = {name: scores.cpu().tolist() for name, scores in values.items()}
    bare = sum(len(v.points) == 0 for v in data.viewings)
    return MapScores(
        means=mean_scores(values, data),
        images={v.image.name: {name: columns[name][i] for name in columns} for i, v in enumerate(data.viewings)},
        scored=len(data) - bare,
        bare=bare,
        resized=len(changed),
        unused=len(files) - len({v.image.stem for v in data.viewings}),
        pictures=sum(b is not None for b in bits),
        eight_bits=bits.count(8),
        data=data.summary(),
    )


def map_files(folder: Path) -> dict[str, Path]:
    """The maps of a folder, by name without suffix."""
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


def _check(metrics: Sequence[str], protocol: str, density: str, sigma: float | None) -> None:
    """Refuse, before any file is read, what no map could be scored by."""
    choices = [("metric", name, METRICS) for name in metrics]
    choices += [("protocol", protocol, get_args(Protocol)), ("density", density, get_args(Density))]
    for what, name, known in choices:
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}; choose among {', '.join(known)}")
    if sigma is not None:
        check_sigma(sigma)


def _check_fit(maps: Path, files: dict[str, Path], data: SaliencyData) -> None:
    """Every image has a map of its own, and there is something to score."""
    missing = [v.image.name for v in data.viewings if v.image.stem not in files]
    if missing:
        whole = data.name == "OSIE" and len(data) == _OSIE
        raise DataError(
            f"{maps} has no map for {len(missing)} of {len(data)} images, the first is {missing[0]}; "
            f"a map is named like its image{_OF_ITS_TEST_PART if whole else ''}"
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
    """Each metric (N,) against the set's own densities; nan for an image without fixations, as for the others."""
    values = {name: torch.full((len(data),), torch.nan, dtype=torch.float64, device=device) for name in metrics}
    for i, v in enumerate(data.viewings):
        if len(v.points):
            saliency, truth = load([i]).to(device), official_density(v).unsqueeze(0).to(device)
            for name in metrics:
                values[name][i] = _WITH_DENSITY[name](saliency, truth)[0]
    return values


def _open(path: Path, files: dict[str, Path], split: str | None) -> SaliencyData:
    if path.suffix.lower() not in (".csv", ".json"):
        return open_part(path, split, "val")
    if split is not None:
        raise DataError(f"{path} is not divided into parts; do not name the part {split!r}")
    viewings = []
    for name, viewers in read_fixations(path).items():
        stem = Path(name).stem
        if stem not in files:
            raise DataError(f"there is no map for {name}, which {path} names; a map is named like its image")
        height, width = read_map(files[stem]).shape[-2:]
        viewings.append(viewing(Path(name), (height, width), list(viewers.values())))
    return SaliencyData(path.name, tuple(viewings))
