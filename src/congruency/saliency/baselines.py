"""What a model must beat, and what it cannot: centre biases as the floor, people as the ceiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import SaliencyData
from congruency.saliency.scorer import PAPER_METRICS, mean_scores, score, score_truth, truths

__all__ = ["centre_gaussian", "floor_scores", "human_scores", "mean_map"]


def centre_gaussian(data: SaliencyData, size: tuple[int, int]) -> Tensor:
    """(height, width): the Gaussian with the mean and the covariance of all fixations, in shares of the frame."""
    shares = torch.cat(
        [(v.points + 0.5) / torch.tensor([v.width, v.height], dtype=torch.float64) for v in data.viewings]
    )
    mean, inverse = shares.mean(0), torch.linalg.inv(shares.T.cov())
    height, width = size
    rows = (torch.arange(height, dtype=torch.float64) + 0.5) / height
    columns = (torch.arange(width, dtype=torch.float64) + 0.5) / width
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1) - mean
    return torch.exp(-0.5 * torch.einsum("hwi,ij,hwj->hw", grid, inverse, grid)).float()


def mean_map(data: SaliencyData, size: tuple[int, int], *, sigma: float | None = None) -> Tensor:
    """(height, width): the mean of the images' densities, each image counted alike; ``sigma`` in pixels of ``size``."""
    total = torch.zeros(size)
    for v in data.viewings:
        if len(v.points) == 0:
            continue
        counts = fixation_counts([v.points], size, frames=[(v.height, v.width)])[0]
        total += counts / counts.sum()
    width = data.viewings[0].width
    return density(total.unsqueeze(0), data.sigma(width) * size[1] / width if sigma is None else sigma)[0]


def floor_scores(
    train: SaliencyData,
    test: SaliencyData,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    size: tuple[int, int] = (240, 320),
    device: torch.device | str | None = None,
) -> dict[str, dict[str, float]]:
    """The scores of two maps that do not look at the image, both from the training fixations."""
    maps = {"centre Gaussian": centre_gaussian(train, size), "mean training map": mean_map(train, size)}
    scores = {}
    for name, bias in maps.items():
        scores[name] = mean_scores(score(_same(bias.to(device)), test, metrics, device=device), test)
    return scores


def _same(bias: Tensor) -> Callable[[Sequence[int]], Tensor]:
    """A predictor with one map for every image."""
    return lambda indices: bias.expand(len(indices), -1, -1)


def human_scores(
    data: SaliencyData, metrics: Sequence[str] = PAPER_METRICS, *, device: torch.device | str | None = None
) -> dict[str, dict[str, float]]:
    """How well people predict people, each viewer in turn, the mean over viewers and images.

    - ``"one human"``: one viewer's fixations, blurred as the densities are, as the map; scored against all the others.
    - ``"the other humans"``: the others' density as the map; scored against the one viewer. This is the bound usually
      quoted: no model that does not know the viewer can be expected to pass it.

    Shuffled negatives are the fixations of all viewers on other images in both.
    """
    viewers = min((len(v.fixations) for v in data.viewings), default=0)
    if viewers < 2:
        raise ValueError(f"{data.name} does not tell at least two viewers of every image apart")
    totals = {way: {name: [0.0, 0] for name in metrics} for way in ("one human", "the other humans")}
    for viewer in range(viewers):
        ones = [v.fixations[viewer] for v in data.viewings]
        for whole, one in zip(truths(data, device=device), truths(data, device=device, points=ones), strict=True):
            others = (whole.density - one.density).clamp(min=0)  # rounding may leave less than 0
            rest = replace(whole, fixations=whole.fixations - one.fixations, density=others)
            alone = replace(whole, fixations=one.fixations, density=one.density)
            sides = one.fixations, rest.fixations
            _add(totals["one human"], score_truth(one.density, rest, metrics), *sides)
            _add(totals["the other humans"], score_truth(others, alone, metrics), *sides)
    return {
        way: {name: total / count if count else float("nan") for name, (total, count) in sums.items()}
        for way, sums in totals.items()
    }


def _add(sums: dict[str, list[float]], scores: dict[str, Tensor], *needed: Tensor) -> None:
    """Add the scores of images where both sides have fixations."""
    both = torch.stack([counts.flatten(1).any(1) for counts in needed]).all(0)
    for name, values in scores.items():
        sums[name][0] += float(values[both].sum())
        sums[name][1] += int(both.sum())
