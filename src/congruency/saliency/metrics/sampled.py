"""ROC areas at fixed thresholds, as computed by the published toolkits, with reproducible random draws.

The draws depend only on a seed and the image's fixations, not on batches, ranks or devices.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from congruency.saliency.metrics.checks import by_parts

_NAN = float("nan")
_CHUNK = 2**23  # random numbers held at a time


@dataclass(frozen=True)
class Recipe:
    """The settings of a published toolkit."""

    repeats: int  # random splits to average
    samples: int | None  # negatives to draw; None: as many as there are positives
    step: float  # step between thresholds, which start at 0
    thresholds: tuple[float, ...]
    reaches_top: bool  # whether the highest value of all positives and negatives may itself be a threshold


MIT = Recipe(100, None, 0.1, tuple(i / 10 for i in range(11)), reaches_top=True)
SALICON = Recipe(1, 100_000, 0.01, tuple(i * 0.01 for i in range(100)), reaches_top=False)


def uniform(saliency: Tensor, fixations: Tensor, allowed: Tensor, recipe: Recipe, seed: int) -> Tensor:
    """AUC with negatives drawn uniformly with replacement from the allowed pixels; every fixation is a positive.

    Saliency in [0, 1], fixations and the mask of allowed pixels are (..., P); the recipe's ``samples`` must be given.
    """
    assert recipe.samples is not None
    shape, pixels = saliency.shape[:-1], saliency.shape[-1]
    maps, weights, mask = (x.reshape(-1, pixels) for x in (saliency, fixations, allowed))
    # A uniform number in [0, count) indexes the allowed pixels, which are located by their cumulative count.
    running = mask.cumsum(-1)
    draws = uniform_draws(image_keys(weights), seed, recipe.samples)
    places = (draws * running[:, -1:]).long() + 1
    chosen = maps.gather(-1, torch.searchsorted(running, places).clamp_(max=pixels - 1))
    value = _area((maps, weights), (chosen, torch.ones_like(chosen)), recipe)
    return value.masked_fill(~mask.any(-1) | maps.amax(-1).isnan(), _NAN).to(saliency.dtype).reshape(shape)


def weighted(saliency: Tensor, positive: Tensor, negative: Tensor, recipe: Recipe) -> Tensor:
    """AUC of all positives against all negatives, (N, P) weights of a saliency in [0, 1]; deterministic."""
    value = _area((saliency, positive), (saliency, negative), recipe)  # nan (0 / 0) without positives or negatives
    return value.masked_fill(saliency.amax(-1).isnan(), _NAN).to(saliency.dtype)


def splits(
    saliency: Tensor, fixations: Tensor, candidates: Tensor, recipe: Recipe, seed: int, *, replacement: bool
) -> Tensor:
    """Mean AUC over random splits, each with as many negatives as positives (or all candidates if fewer).

    All maps are (..., P). The saliency is in [0, 1], the rounded sum of the fixations' weights is the number of
    negatives per split, and candidates are positive where a negative may be drawn, twice only with ``replacement``.
    """
    shape, pixels = saliency.shape[:-1], saliency.shape[-1]
    maps, weights, allowed = (x.reshape(-1, pixels) for x in (saliency, fixations, candidates))
    counts, keys = (allowed > 0).sum(-1).tolist(), image_keys(weights)
    wanted = weights.sum(-1).round().long().tolist()
    means = []
    for i, (available, draw) in enumerate(zip(counts, wanted, strict=True)):  # the number of draws differs
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
    """Draw (repeats, count) random members of the pool."""
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
    """Return the trapezoidal area, (R,), from (0, 0) through the points at the thresholds to (1, 1).

    Negatives are values (R, K) and weights (R, K); positives too, or (1, K) for all R.
    """
    false = _rates(*negative, recipe)
    true = _rates(*positive, recipe).expand(len(false), -1)
    if not recipe.reaches_top:
        top = torch.maximum(_top(*positive), _top(*negative))
        places = torch.arange(len(recipe.thresholds) - 1, -1, -1, device=top.device)
        beyond = places >= top / recipe.step  # the thresholds of a half-open range with this step
        true, false = true.masked_fill(beyond, 0.0), false.masked_fill(beyond, 0.0)
    ends = torch.zeros_like(true[:, :1])
    return torch.trapezoid(torch.cat([ends, true, ends + 1], -1), torch.cat([ends, false, ends + 1], -1), dim=-1)


def _rates(values: Tensor, weights: Tensor, recipe: Recipe) -> Tensor:
    """Return the fraction of weight at or above each threshold, highest first: (R, K) -> (R, T)."""
    thresholds = torch.tensor(recipe.thresholds, dtype=values.dtype, device=values.device)
    reached = torch.bucketize(values, thresholds, right=True)
    weights = weights.double()
    bins = weights.new_zeros(len(values), len(thresholds) + 1).scatter_add_(-1, reached, weights)
    return bins.flip(-1).cumsum(-1)[:, :-1] / weights.sum(-1, keepdim=True)


def _top(values: Tensor, weights: Tensor) -> Tensor:
    """Return the highest value with a nonzero weight, (R, 1)."""
    return values.masked_fill(weights == 0, 0.0).amax(-1, keepdim=True)


def _signed(word: int) -> int:
    """Convert an unsigned 64-bit integer to int64."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


_STEP, _FIRST, _SECOND = (_signed(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def image_keys(fixations: Tensor) -> Tensor:
    """Hash each image's fixations, ``sum_p n_p mixed(p)`` modulo 2^64: (..., P) counts -> (...) int64."""
    words = _mixed(torch.arange(fixations.shape[-1], device=fixations.device) * _STEP)
    return by_parts(lambda counts: (counts.long() * words).sum(-1), fixations)


def uniform_draws(keys: Tensor, seed: int, count: int, start: int = 0) -> Tensor:
    """Return numbers ``start`` to ``start + count`` of each key's stream in [0, 1): (N,) keys -> (N, count) float64.

    SplitMix64 (Steele, Lea and Flood 2014) as a function of the position in the stream: integer arithmetic only, so
    that all devices give the same numbers, with random access to any part of a stream.
    """
    streams = _mixed(keys ^ _mixed(torch.full_like(keys, _signed(seed))))
    places = torch.arange(start + 1, start + count + 1, device=keys.device) * _STEP
    return _shifted(_mixed(streams.unsqueeze(-1) + places), 11).double() * 2.0**-53


def _mixed(words: Tensor) -> Tensor:
    """The finaliser of SplitMix64; int64 products wrap modulo 2^64."""
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shift right logically; torch's shift is arithmetic."""
    return torch.bitwise_and(words >> bits, 2 ** (64 - bits) - 1)
