"""Scores of a whole data set: any predictor's maps against all viewers, at the size they saw the images in."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Truth:
    """What some images of one size are scored against.

    Attributes:
        indices: Which images of the set.
        fixations: (B, H, W) counts.
        density: (B, H, W) blurred counts.
        negatives: (B, H, W) counts of all other images' fixations, scaled to this size.
        sigma: Width of the blur.
    """

    indices: tuple[int, ...]
    fixations: Tensor
    density: Tensor
    negatives: Tensor
    sigma: float

    @property
    def baseline(self) -> Tensor:
        """(B, H, W) the negatives blurred alike: what is known without looking at the image. Made when asked for."""
        return density(self.negatives, self.sigma)


def truths(
    data: SaliencyData,
    *,
    sigma: float | None = None,
    device: torch.device | str | None = None,
    batch: int = 25,
    points: Sequence[Tensor] | None = None,
) -> Iterator[Truth]:
    """The truth of a set, some images of one size at a time: nothing large is kept.

    Args:
        data: The set.
        sigma: Width of the blur in the images' pixels; the set's default if not given.
        device: Where the maps are made.
        batch: Images at a time.
        points: The fixations to take, instead of all viewers' (one viewer's, say), in the set's order.
    """
    points = [v.points for v in data.viewings] if points is None else points
    frames = [(v.height, v.width) for v in data.viewings]
    for frame in dict.fromkeys(frames):
        members = [i for i, other in enumerate(frames) if other == frame]
        everyone = _sum_of_counts(points, frames, frame, device)
        width = data.sigma(frame[1]) if sigma is None else sigma
        for start in range(0, len(members), batch):
            indices = members[start : start + batch]
            counts = fixation_counts([points[i] for i in indices], frame, device=device)
            yield Truth(tuple(indices), counts, density(counts, width), everyone - counts, width)


def _sum_of_counts(
    points: Sequence[Tensor],
    frames: Sequence[tuple[int, int]],
    frame: tuple[int, int],
    device: torch.device | str | None,
) -> Tensor:
    """(H, W) the fixations of all images, scaled to one size."""
    height, width = frame
    scaled = []
    for some, (h, w) in zip(points, frames, strict=True):
        scale = torch.tensor([width / w, height / h], dtype=torch.float64)
        scaled.append((some.to(torch.float64) + 0.5) * scale - 0.5 if (h, w) != frame else some.to(torch.float64))
    return fixation_counts([torch.cat(scaled)], frame, device=device)[0]


def score_truth(
    saliency: Tensor, truth: Truth, metrics: Sequence[str] = METRICS, *, protocol: Protocol = "exact", seed: int = 0
) -> dict[str, Tensor]:
    """(B,) of each metric for (B, H, W) maps of the truth's size."""
    draws = {"protocol": protocol, "seed": seed}
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
        protocol: Of the AUCs.
        seed: Of the protocol's draws.
    """
    values = {name: torch.full((len(data),), torch.nan, dtype=torch.float64, device=device) for name in metrics}
    for truth in truths(data, sigma=sigma, device=device, batch=batch):
        height, width = truth.fixations.shape[-2:]
        maps = resized(predict(truth.indices).to(truth.fixations.device), (height, width))
        places = torch.tensor(truth.indices, device=maps.device)
        for name, scores in score_truth(maps, truth, metrics, protocol=protocol, seed=seed).items():
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
