"""ROC areas at fixed thresholds, with negatives drawn or counted, as the published toolkits compute them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from congruency.saliency.metrics.draws import image_keys, uniform_draws

__all__ = ["MIT", "SALICON", "Recipe", "splits", "uniform", "weighted"]

_NAN = float("nan")
_CHUNK = 2**23
"""Random numbers held at a time."""


@dataclass(frozen=True)
class Recipe:
    """A toolkit's habits.

    Attributes:
        repeats: How many splits it averages.
        samples: How many negatives it draws; None: as many as there are positives.
        step: Between thresholds, which begin at 0.
        thresholds: The thresholds.
        reaches_top: Whether the highest value of all positives and negatives may itself be a threshold.
    """

    repeats: int
    samples: int | None
    step: float
    thresholds: tuple[float, ...]
    reaches_top: bool


MIT = Recipe(100, None, 0.1, tuple(i / 10 for i in range(11)), reaches_top=True)
SALICON = Recipe(1, 100_000, 0.01, tuple(i * 0.01 for i in range(100)), reaches_top=False)


def uniform(saliency: Tensor, fixations: Tensor, allowed: Tensor, recipe: Recipe, seed: int) -> Tensor:
    """Negatives drawn uniformly, with replacement, from the allowed pixels; every fixation is a positive.

    Args:
        saliency: (..., P) in [0, 1].
        fixations: (..., P) weights of the positives.
        allowed: (..., P) bool, the pixels a negative may be.
        recipe: With its number of samples.
        seed: Of the draws.
    """
    assert recipe.samples is not None
    shape, pixels = saliency.shape[:-1], saliency.shape[-1]
    maps, weights, mask = (x.reshape(-1, pixels) for x in (saliency, fixations, allowed))
    # A uniform number in [0, count) is the place of a pixel among the allowed ones, found in their running count.
    running = mask.cumsum(-1)
    draws = uniform_draws(image_keys(weights), seed, recipe.samples)
    places = (draws * running[:, -1:]).long() + 1
    chosen = maps.gather(-1, torch.searchsorted(running, places).clamp_(max=pixels - 1))
    value = _area((maps, weights), (chosen, torch.ones_like(chosen)), recipe)
    return value.masked_fill(~mask.any(-1) | maps.amax(-1).isnan(), _NAN).to(saliency.dtype).reshape(shape)


def weighted(saliency: Tensor, positive: Tensor, negative: Tensor, recipe: Recipe) -> Tensor:
    """All positives against all negatives, each with its weight: nothing is drawn.

    Args:
        saliency: (N, P) in [0, 1].
        positive: (N, P) weights.
        negative: (N, P) weights.
        recipe: With its thresholds.
    """
    value = _area((saliency, positive), (saliency, negative), recipe)  # 0 / 0 without either of them: nan
    return value.masked_fill(saliency.amax(-1).isnan(), _NAN).to(saliency.dtype)


def splits(
    saliency: Tensor, fixations: Tensor, candidates: Tensor, recipe: Recipe, seed: int, *, replacement: bool
) -> Tensor:
    """The mean over splits, each with as many negatives as positives (or all candidates, if they are fewer).

    Args:
        saliency: (..., P) in [0, 1].
        fixations: (..., P) weights of the positives; their sum, rounded, is how many negatives a split draws.
        candidates: (..., P), above 0 where a negative may be.
        recipe: With its number of repeats.
        seed: Of the draws.
        replacement: Whether a split may draw one pixel twice.
    """
    shape, pixels = saliency.shape[:-1], saliency.shape[-1]
    maps, weights, allowed = (x.reshape(-1, pixels) for x in (saliency, fixations, candidates))
    counts, keys = (allowed > 0).sum(-1).tolist(), image_keys(weights)
    wanted = weights.sum(-1).round().long().tolist()
    means = []
    for i, (available, draw) in enumerate(zip(counts, wanted, strict=True)):  # each image draws its own number
        if not replacement:
            draw = min(draw, available)
        if draw <= 0 or available == 0:
            means.append(maps.new_full((), _NAN))
            continue
        pool = maps[i, (allowed[i] > 0).nonzero().squeeze(-1)]
        chosen = _draw(pool, recipe.repeats, draw, keys[i], seed, replacement)
        positive = maps[i : i + 1], weights[i : i + 1]
        means.append(_area(positive, (chosen, torch.ones_like(chosen)), recipe).mean())
    value = torch.stack(means).to(saliency.dtype)
    return value.masked_fill(maps.amax(-1).isnan(), _NAN).reshape(shape)


def _draw(pool: Tensor, repeats: int, count: int, key: Tensor, seed: int, replacement: bool) -> Tensor:
    """(repeats, count) members of the pool."""
    if replacement:
        draws = uniform_draws(key.unsqueeze(0), seed, repeats * count)
        return pool[(draws * len(pool)).long().clamp_(max=len(pool) - 1)].view(repeats, count)
    rows = max(1, _CHUNK // len(pool))
    parts = []
    for start in range(0, repeats, rows):
        size = (min(rows, repeats - start), len(pool))
        order = uniform_draws(key.unsqueeze(0), seed, size[0] * size[1], start * len(pool)).view(size)
        parts.append(pool[order.topk(count, dim=-1).indices])
    return torch.cat(parts)


def _area(positive: tuple[Tensor, Tensor], negative: tuple[Tensor, Tensor], recipe: Recipe) -> Tensor:
    """(R,) the area under straight lines from (0, 0) through the points at the thresholds to (1, 1).

    Negatives are values (R, K) and their weights (R, K); positives too, or one row for all.
    """
    false = _rates(*negative, recipe)
    true = _rates(*positive, recipe).expand(len(false), -1)
    if not recipe.reaches_top:
        top = torch.maximum(_top(*positive), _top(*negative))
        places = torch.arange(len(recipe.thresholds) - 1, -1, -1, device=top.device)
        beyond = places >= top / recipe.step  # as many thresholds as an open range with this step has
        true, false = true.masked_fill(beyond, 0.0), false.masked_fill(beyond, 0.0)
    ends = torch.zeros_like(true[:, :1])
    return torch.trapezoid(torch.cat([ends, true, ends + 1], -1), torch.cat([ends, false, ends + 1], -1), dim=-1)


def _rates(values: Tensor, weights: Tensor, recipe: Recipe) -> Tensor:
    """(R, K) -> (R, T): the share of weight that reaches each threshold, the highest threshold first."""
    thresholds = torch.tensor(recipe.thresholds, dtype=values.dtype, device=values.device)
    reached = torch.bucketize(values, thresholds, right=True)
    weights = weights.double()
    bins = weights.new_zeros(len(values), len(thresholds) + 1).scatter_add_(-1, reached, weights)
    return bins.flip(-1).cumsum(-1)[:, :-1] / weights.sum(-1, keepdim=True)


def _top(values: Tensor, weights: Tensor) -> Tensor:
    """(R, 1) the highest value that has weight."""
    return values.masked_fill(weights == 0, 0.0).amax(-1, keepdim=True)
