"""Scores of a folder of saliency maps, whichever model made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from congruency.saliency.data.folder import read_fixations
from congruency.saliency.data.images import IMAGE_SUFFIXES, read_map
from congruency.saliency.data.opening import open_data
from congruency.saliency.data.viewings import DataError, SaliencyData, viewing
from congruency.saliency.metrics import Protocol
from congruency.saliency.scorer import PAPER_METRICS, mean_scores, resized, score

__all__ = ["MapScores", "map_files", "score_maps"]


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
        data: One line about the set.
    """

    means: dict[str, float]
    images: dict[str, dict[str, float]]
    scored: int
    bare: int
    resized: int
    unused: int
    data: str


def score_maps(
    maps: str | Path,
    fixations: str | Path | SaliencyData,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    split: str = "val",
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
        split: Of SALICON.
        sigma: Width in pixels of the densities that CC, KL and SIM compare with; the set's default if not given.
        protocol: Of the AUCs: ``"exact"``, or as the ``"mit"`` or ``"salicon"`` benchmark computes them.
        seed: Of the protocol's draws.
        device: Where scoring happens.
    """
    files = map_files(Path(maps))
    data = fixations if isinstance(fixations, SaliencyData) else _open(Path(fixations), files, split)
    missing = [v.image.name for v in data.viewings if v.image.stem not in files]
    if missing:
        raise DataError(
            f"{maps} has no map for {len(missing)} of {len(data)} images, the first is {missing[0]}; "
            "a map is named like its image"
        )
    changed = 0

    def load(indices: Sequence[int]) -> Tensor:
        nonlocal changed
        loaded = []
        for i in indices:
            v = data[i]
            saliency = read_map(files[v.image.stem])
            if saliency.ndim != 2:
                raise DataError(f"{files[v.image.stem]} has shape {tuple(saliency.shape)}, a map has two dimensions")
            changed += tuple(saliency.shape) != (v.height, v.width)
            loaded.append(resized(saliency.unsqueeze(0), (v.height, v.width))[0])
        return torch.stack(loaded)

    values = score(load, data, metrics, sigma=sigma, protocol=protocol, seed=seed, device=device)
    columns = {name: scores.cpu().tolist() for name, scores in values.items()}
    bare = sum(len(v.points) == 0 for v in data.viewings)
    return MapScores(
        means=mean_scores(values, data),
        images={v.image.name: {name: columns[name][i] for name in columns} for i, v in enumerate(data.viewings)},
        scored=len(data) - bare,
        bare=bare,
        resized=changed,
        unused=len(files) - len({v.image.stem for v in data.viewings}),
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


def _open(path: Path, files: dict[str, Path], split: str) -> SaliencyData:
    if path.suffix.lower() not in (".csv", ".json"):
        return open_data(path, split)
    viewings = []
    for name, viewers in read_fixations(path).items():
        stem = Path(name).stem
        if stem not in files:
            raise DataError(f"there is no map for {name}, which {path} names; a map is named like its image")
        height, width = read_map(files[stem]).shape[-2:]
        viewings.append(viewing(Path(name), (height, width), list(viewers.values())))
    return SaliencyData(path.name, tuple(viewings))
