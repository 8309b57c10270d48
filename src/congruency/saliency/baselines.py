"""Reference scores: centre biases as baselines (the upper bound is :mod:`congruency.saliency.ceiling`)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import SaliencyData
from congruency.saliency.scorer import PAPER_METRICS, mean_scores, score


def centre_gaussian(data: SaliencyData, size: tuple[int, int]) -> Tensor:
    """(height, width): a Gaussian with the mean and covariance of all fixations, relative to the image size."""
    relative = torch.cat(
        [(v.points + 0.5) / torch.tensor([v.width, v.height], dtype=torch.float64) for v in data.viewings]
    )
    mean, inverse = relative.mean(0), torch.linalg.inv(relative.T.cov())
    height, width = size
    rows = (torch.arange(height, dtype=torch.float64) + 0.5) / height
    columns = (torch.arange(width, dtype=torch.float64) + 0.5) / width
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1) - mean
    return torch.exp(-0.5 * torch.einsum("hwi,ij,hwj->hw", grid, inverse, grid)).float()


def mean_map(data: SaliencyData, size: tuple[int, int], *, sigma: float | None = None) -> Tensor:
    """(height, width): the mean of the images' densities, equally weighted; ``sigma`` in pixels of ``size``."""
    total = torch.zeros(size)
    for v in data.viewings:
        if len(v.points) == 0:
            continue
        counts = fixation_counts([v.points], size, frames=[(v.height, v.width)])[0]
        total += counts / counts.sum()
    width = data.viewings[0].width
    return density(total.unsqueeze(0), data.sigma(width) * size[1] / width if sigma is None else sigma)[0]


def baseline_scores(
    train: SaliencyData,
    test: SaliencyData,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    size: tuple[int, int] = (240, 320),
    device: torch.device | str | None = None,
) -> dict[str, dict[str, float]]:
    """The scores of two image-independent maps: a centre Gaussian and the mean map of the training fixations."""
    maps = {"centre Gaussian": centre_gaussian(train, size), "mean training map": mean_map(train, size)}
    scores = {}
    for name, bias in maps.items():
        scores[name] = mean_scores(score(_constant(bias.to(device)), test, metrics, device=device), test)
    return scores


def _constant(bias: Tensor) -> Callable[[Sequence[int]], Tensor]:
    """A predictor that returns the same map for every image."""
    return lambda indices: bias.expand(len(indices), -1, -1)
