"""Scores of a whole data set: any predictor's maps against all viewers, at the size they saw the images in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import SaliencyData
from congruency.saliency.metrics import Protocol, auc_borji, auc_judd, auc_shuffled, cc, information_gain, kl, nss, sim

__all__ = ["METRICS", "PAPER_METRICS", "Truth", "mean_scores", "resized", "score", "score_truth", "truths"]

PAPER_METRICS = ("NSS", "sAUC", "AUC", "CC")
"""The four columns of the paper's saliency tables; its AUC has uniform negatives, so ours is Borji's."""

METRICS = (*PAPER_METRICS, "AUC-Judd", "KL", "SIM", "IG")
"""All of them; IG is the information gain over where people look in the other images, in bits a fixation."""

MIT_IMAGES = 10
"""How many other images the MIT benchmark's shuffled AUC takes its negatives from."""


@dataclass(frozen=True)
class Truth:
    """What some images of one size are scored against.

    Attributes:
        indices: Which images of the set.
        fixations: (B, H, W) counts.
        density: (B, H, W) blurred counts.
        others: (B, H, W) counts of all other images' fixations, scaled to this size.
        negatives: (B, H, W) what the shuffled AUC compares with, as the protocol has it (:func:`truths`).
        sigma: Width of the blur.
        protocol: Of the AUCs.
        seed: Of the protocol's draws.
    """

    indices: tuple[int, ...]
    fixations: Tensor
    density: Tensor
    others: Tensor
    negatives: Tensor
    sigma: float
    protocol: Protocol = "exact"
    seed: int = 0

    @property
    def baseline(self) -> Tensor:
        """(B, H, W) the others blurred alike: what is known without looking at the image. Made when asked for."""
        return density(self.others, self.sigma)


def truths(
    data: SaliencyData,
    *,
    sigma: float | None = None,
    device: torch.device | str | None = None,
    batch: int = 25,
    points: Sequence[Tensor] | None = None,
    protocol: Protocol = "exact",
    seed: int = 0,
) -> Iterator[Truth]:
    """The truth of a set, some images of one size at a time: nothing large is kept.

    The negatives of the shuffled AUC are the fixations of all other images. For ``"salicon"`` they are how many other
    images have a fixation on each pixel; for ``"mit"`` the fixations of ten other images (all, if they are fewer) among
    those that have any, drawn for each image by the seed and its place in the set.

    Args:
        data: The set.
        sigma: Width of the blur in the images' pixels; the set's default if not given.
        device: Where the maps are made.
        batch: Images at a time.
        points: The fixations to take, instead of all viewers' (one viewer's, say), in the set's order.
        protocol: Of the AUCs.
        seed: Of the protocol's draws.
    """
    points = [v.points for v in data.viewings] if points is None else points
    frames = [(v.height, v.width) for v in data.viewings]
    seen = [i for i, some in enumerate(points) if len(some) > 0]
    for frame in dict.fromkeys(frames):
        members = [i for i, other in enumerate(frames) if other == frame]
        scaled = _scaled(points, frames, frame)
        everyone = fixation_counts([_joined(scaled, seen)], frame, device=device)[0]
        marked = _images_on_pixels(scaled, frame, device, batch) if protocol == "salicon" else None
        width = data.sigma(frame[1]) if sigma is None else sigma
        for start in range(0, len(members), batch):
            indices = members[start : start + batch]
            counts = fixation_counts([points[i] for i in indices], frame, device=device)
            others = negatives = everyone - counts
            if marked is not None:
                negatives = marked - counts.sign()
            elif protocol == "mit":
                chosen = [_joined(scaled, _some_others(i, seen, seed)) for i in indices]
                negatives = fixation_counts(chosen, frame, device=device)
            yield Truth(tuple(indices), counts, density(counts, width), others, negatives, width, protocol, seed)


def _scaled(points: Sequence[Tensor], frames: Sequence[tuple[int, int]], frame: tuple[int, int]) -> list[Tensor]:
    """The fixations of all images, each image's moved to where they would be in one of another size."""
    height, width = frame
    scaled = []
    for some, (h, w) in zip(points, frames, strict=True):
        scale = torch.tensor([width / w, height / h], dtype=torch.float64)
        scaled.append((some.to(torch.float64) + 0.5) * scale - 0.5 if (h, w) != frame else some.to(torch.float64))
    return scaled


def _joined(points: Sequence[Tensor], indices: Sequence[int]) -> Tensor:
    """(n, 2) the points of these images, which may be none."""
    return torch.cat([torch.zeros(0, 2, dtype=torch.float64), *(points[i] for i in indices)])


def _images_on_pixels(
    points: Sequence[Tensor], frame: tuple[int, int], device: torch.device | str | None, batch: int
) -> Tensor:
    """(H, W) how many images have a fixation on each pixel."""
    total = torch.zeros(frame, device=device)
    for start in range(0, len(points), batch):
        total += fixation_counts(points[start : start + batch], frame, device=device).sign().sum(0)
    return total


def _some_others(index: int, seen: Sequence[int], seed: int) -> list[int]:
    """Ten of the images seen, without the image itself; all, if they are fewer."""
    drawn = random.Random(f"{seed} {index}").sample(seen, min(MIT_IMAGES + 1, len(seen)))
    return [i for i in drawn if i != index][:MIT_IMAGES]


def score_truth(saliency: Tensor, truth: Truth, metrics: Sequence[str] = METRICS) -> dict[str, Tensor]:
    """(B,) of each metric for (B, H, W) maps of the truth's size; the AUCs by the truth's protocol."""
    draws = {"protocol": truth.protocol, "seed": truth.seed}
    makers: dict[str, Callable[[], Tensor]] = {
        "NSS": lambda: nss(saliency, truth.fixations),
        "sAUC": lambda: auc_shuffled(saliency, truth.fixations, truth.negatives, **draws),  # type: ignore[arg-type]
        "AUC": lambda: auc_borji(saliency, truth.fixations, **draws),  # type: ignore[arg-type]
        "CC": lambda: cc(saliency, truth.density),
        "AUC-Judd": lambda: auc_judd(saliency, truth.fixations, **draws),  # type: ignore[arg-type]
        "KL": lambda: kl(saliency, truth.density),
        "SIM": lambda: sim(saliency, truth.density),
        "IG": lambda: information_gain(saliency, truth.fixations, truth.baseline),
    }
    unknown = [name for name in metrics if name not in makers]
    if unknown:
        raise ValueError(f"there is no metric {unknown[0]!r}; choose among {', '.join(makers)}")
    return {name: makers[name]() for name in metrics}


def score(
    predict: Callable[[Sequence[int]], Tensor],
    data: SaliencyData,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    sigma: float | None = None,
    device: torch.device | str | None = None,
    batch: int = 25,
    protocol: Protocol = "exact",
    seed: int = 0,
) -> dict[str, Tensor]:
    """Every image's scores, in the set's order: metric -> (N,), nan where an image has no fixations.

    Args:
        predict: Gives (B, h, w) maps for the images of these numbers; they are resized to the images' own size.
        data: The set.
        metrics: Which of ``METRICS``.
        sigma: Width of the density's blur in the images' pixels; the set's default if not given.
        device: Where scoring happens.
        batch: Images at a time.
        protocol: Of the AUCs; the shuffled one's negatives are chosen as it asks (:func:`truths`).
        seed: Of the protocol's draws.
    """
    values = {name: torch.full((len(data),), torch.nan, dtype=torch.float64, device=device) for name in metrics}
    for truth in truths(data, sigma=sigma, device=device, batch=batch, protocol=protocol, seed=seed):
        height, width = truth.fixations.shape[-2:]
        maps = resized(predict(truth.indices).to(truth.fixations.device), (height, width))
        places = torch.tensor(truth.indices, device=maps.device)
        for name, scores in score_truth(maps, truth, metrics).items():
            values[name].index_copy_(0, places, scores.double())
    return values


def mean_scores(values: dict[str, Tensor], data: SaliencyData) -> dict[str, float]:
    """The mean of each metric over the images that have fixations; a nan of the prediction's stays visible."""
    seen = torch.tensor([len(v.points) > 0 for v in data.viewings])
    return {name: float(scores.cpu()[seen].mean()) for name, scores in values.items()}


def resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, h, w) -> (B, height, width), bilinear, antialiased where it shrinks."""
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    return functional.interpolate(
        maps.float().unsqueeze(1), size=size, mode="bilinear", align_corners=False, antialias=True
    ).squeeze(1)
