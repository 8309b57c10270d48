"""ROC areas from sampled negatives and fixed thresholds, as the published toolkits compute them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["MIT", "SALICON", "SALICON_SHUFFLED", "Recipe", "splits", "uniform"]

_NAN = float("nan")
_CHUNK = 2**23
"""Random numbers held at a time."""


@dataclass(frozen=True)
class Recipe:
    """How a toolkit samples: how many times, how many negatives (None: as many as positives), at which thresholds."""

    repeats: int
    samples: int | None
    thresholds: tuple[float, ...]


MIT = Recipe(repeats=100, samples=None, thresholds=tuple(i / 10 for i in range(11)))
SALICON = Recipe(repeats=1, samples=100_000, thresholds=tuple(i / 100 for i in range(100)))
SALICON_SHUFFLED = Recipe(repeats=100, samples=None, thresholds=SALICON.thresholds)


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
    levels = _levels(maps, recipe)
    generator = torch.Generator(maps.device).manual_seed(seed)
    # A uniform number in [0, count) is the place of a pixel among the allowed ones, found in their running count.
    running = mask.cumsum(-1)
    draws = torch.rand(len(maps), recipe.samples, generator=generator, device=maps.device, dtype=torch.float64)
    places = (draws * running[:, -1:]).long() + 1
    chosen = torch.searchsorted(running, places).clamp_(max=pixels - 1)
    negative = _histogram(levels.gather(-1, chosen), torch.ones_like(draws), recipe)
    positive = _histogram(levels, weights.double(), recipe)
    value = _area(positive, negative).to(saliency.dtype)
    return value.masked_fill(~mask.any(-1) | maps.amax(-1).isnan(), _NAN).reshape(shape)


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
    levels, counts = _levels(maps, recipe), allowed.sign().sum(-1).long()
    wanted = weights.sum(-1).round().long()
    generator = torch.Generator(maps.device).manual_seed(seed)
    means = []
    for i in range(len(maps)):  # the number of draws is the image's own: one wait for the device an image
        available, draw = int(counts[i]), int(wanted[i])
        if not replacement:
            draw = min(draw, available)
        if draw == 0 or available == 0:
            means.append(maps.new_full((), _NAN))
            continue
        pool = levels[i, allowed[i].nonzero().squeeze(-1)]
        chosen = _draw(pool, recipe.repeats, draw, generator, replacement)
        negative = _histogram(chosen, torch.ones_like(chosen, dtype=torch.float64), recipe)
        positive = _histogram(levels[i : i + 1], weights[i : i + 1].double(), recipe)
        means.append(_area(positive, negative).mean())
    value = torch.stack(means).to(saliency.dtype)
    return value.masked_fill(maps.amax(-1).isnan(), _NAN).reshape(shape)


def _draw(pool: Tensor, repeats: int, count: int, generator: torch.Generator, replacement: bool) -> Tensor:
    """(repeats, count) members of the pool."""
    if replacement:
        return pool[torch.randint(len(pool), (repeats, count), generator=generator, device=pool.device)]
    rows = max(1, _CHUNK // len(pool))
    parts = []
    for start in range(0, repeats, rows):
        size = (min(rows, repeats - start), len(pool))
        keys = torch.rand(size, generator=generator, device=pool.device)
        parts.append(pool[keys.topk(count, dim=-1).indices])
    return torch.cat(parts)


def _levels(saliency: Tensor, recipe: Recipe) -> Tensor:
    """How many thresholds each value reaches."""
    thresholds = torch.tensor(recipe.thresholds, dtype=saliency.dtype, device=saliency.device)
    return torch.bucketize(saliency, thresholds, right=True)


def _histogram(levels: Tensor, weights: Tensor, recipe: Recipe) -> Tensor:
    """(R, K) -> (R, T): the share of weight that reaches each threshold, the highest threshold first."""
    bins = weights.new_zeros(len(levels), len(recipe.thresholds) + 1).scatter_add_(-1, levels, weights)
    reached = bins.flip(-1).cumsum(-1)[:, :-1]
    return reached / weights.sum(-1, keepdim=True)


def _area(true: Tensor, false: Tensor) -> Tensor:
    """The area under straight lines from (0, 0) through the points to (1, 1)."""
    true = true.expand(len(false), -1)
    ends = torch.zeros_like(true[:, :1])
    heights = torch.cat([ends, true, ends + 1], -1)
    return torch.trapezoid(heights, torch.cat([ends, false, ends + 1], -1), dim=-1)
