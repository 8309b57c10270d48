"""Reference scores: centre biases as baselines, agreement between people as the upper bound."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import SaliencyData
from congruency.saliency.scorer import PAPER_METRICS, ground_truths, mean_scores, score, score_batch


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


def human_scores(
    data: SaliencyData, metrics: Sequence[str] = PAPER_METRICS, *, device: torch.device | str | None = None
) -> dict[str, dict[str, float]]:
    """How well people predict each other: leave one viewer out, mean over viewers and images.

    - ``"one human"``: the blurred fixations of one viewer as the map, scored against all others.
    - ``"the other humans"``: the density of all others as the map, scored against the one viewer. This is the upper
      bound usually quoted for models that do not know the viewer.

    In both, the shuffled negatives are the fixations of all viewers on other images.
    """
    viewers = min((len(v.fixations) for v in data.viewings), default=0)
    if viewers < 2:
        raise ValueError(f"{data.name} does not have at least two separate viewers for every image")
    totals = {kind: {name: [0.0, 0] for name in metrics} for kind in ("one human", "the other humans")}
    for viewer in range(viewers):
        ones = [v.fixations[viewer] for v in data.viewings]
        singles = ground_truths(data, device=device, points=ones)
        for whole, one in zip(ground_truths(data, device=device), singles, strict=True):
            others = (whole.density - one.density).clamp(min=0)  # rounding may give values below 0
            rest = replace(whole, fixations=whole.fixations - one.fixations, density=others)
            alone = replace(whole, fixations=one.fixations, density=one.density)
            sides = one.fixations, rest.fixations
            _add(totals["one human"], score_batch(one.density, rest, metrics), *sides)
            _add(totals["the other humans"], score_batch(others, alone, metrics), *sides)
    return {
        kind: {name: total / count if count else float("nan") for name, (total, count) in sums.items()}
        for kind, sums in totals.items()
    }


def _add(sums: dict[str, list[float]], scores: dict[str, Tensor], *needed: Tensor) -> None:
    """Add the scores of the images where both sides have fixations."""
    both = torch.stack([counts.flatten(1).any(1) for counts in needed]).all(0)
    for name, values in scores.items():
        sums[name][0] += float(values[both].sum())
        sums[name][1] += int(both.sum())
