"""Rank-based metrics: the area under the ROC curve of fixated against other pixels."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from congruency.saliency.metrics import sampled
from congruency.saliency.metrics.checks import Protocol, by_parts, check_protocol, unless_negative, working_pair
from congruency.saliency.metrics.sampled import image_keys, uniform_draws

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_NAN = float("nan")


def auc_judd(saliency: Tensor, fixations: Tensor, *, protocol: Protocol = "exact", seed: int = 0) -> Tensor:
    """AUC after Judd: fixated pixels against all pixels without a fixation.

    ``AUC = P(s_+ > s_-) + 1/2 P(s_+ = s_-)``, s_+ the saliency at a random fixation and s_- at a random pixel without
    one. Invariant under increasing functions of the saliency. It rewards the centre bias: a centred Gaussian does well.

    - ``"exact"``: the probability itself. Two fixations on one pixel count twice. Ties count half, so a constant map
      scores 1/2.
    - ``"mit"``: as the MIT benchmark's code: each fixated pixel once, ties broken by noise of 1e-7 of the map's range,
      thresholds only at the fixated values. Interpolating between them adds up to 1 / (2 N) for N fixated pixels.
    - ``"salicon"``: the SALICON toolkit has no such score; this is its procedure (see :func:`auc_borji`) with the
      negatives drawn from the pixels without a fixation.

    ``seed`` and the image's fixations determine the random draws of ``"mit"`` and ``"salicon"``. Fixations are counts:
    with a density nearly every pixel would be a positive. The result (B,) is nan for an image without fixations, with
    one on every pixel, or with a negative count.
    """
    saliency, fixations = working_pair(saliency, fixations, "fixations")
    check_protocol(protocol)
    if protocol == "exact":
        return _exact(saliency, fixations, "unfixated")
    if protocol == "mit":
        value = _judd_at_fixations(_unit_range(saliency), fixations, seed)
    else:
        value = sampled.uniform(_unit_range(saliency), fixations, fixations == 0, sampled.SALICON, seed)
    return unless_negative(value.to(saliency.dtype), fixations)


def auc_borji(saliency: Tensor, fixations: Tensor, *, protocol: Protocol = "exact", seed: int = 0) -> Tensor:
    """AUC after Borji: fixated pixels against pixels drawn uniformly from the whole image, fixated ones included.

    - ``"exact"``: the expectation over the draws, ``P(s_+ > s_u) + 1/2 P(s_+ = s_u)`` with u uniform over all pixels.
      Every fixation counts, ties count half.
    - ``"mit"``: the mean of 100 splits, each with as many random pixels as there are fixated ones, thresholds in
      steps of 0.1 of the map's range; each fixated pixel once.
    - ``"salicon"``: 100,000 random pixels, thresholds in steps of 0.01; every fixation counts. This is the "AUC" of
      the SALICON challenge, and the paper's.

    The coarse thresholds of the last two lower the value, most for maps whose values are concentrated in a small part
    of their range, so their values differ from those of ``"exact"``.

    ``seed`` is as in :func:`auc_judd`. The result (B,) is nan for an image without fixations or with a negative count,
    1/2 for a constant map.
    """
    saliency, fixations = working_pair(saliency, fixations, "fixations")
    check_protocol(protocol)
    if protocol == "exact":
        return _exact(saliency, fixations, "all")
    everywhere = torch.ones_like(fixations[..., :1]).expand(fixations.shape)
    if protocol == "mit":
        once = fixations.sign()
        value = sampled.splits(_unit_range(saliency), once, everywhere, sampled.MIT, seed, replacement=True)
    else:
        value = sampled.uniform(_unit_range(saliency), fixations, everywhere > 0, sampled.SALICON, seed)
    return unless_negative(value.to(saliency.dtype), fixations)


def auc_shuffled(
    saliency: Tensor, fixations: Tensor, negatives: Tensor, *, protocol: Protocol = "exact", seed: int = 0
) -> Tensor:
    """Shuffled AUC: fixated pixels against pixels fixated in *other* images, which cancels the centre bias.

    - ``"exact"``: ``P(s_+ > s_-) + 1/2 P(s_+ = s_-)``, s_- the saliency at a random one of the negatives; every
      fixation counts on both sides. Neither benchmark's numbers are computed like this.
    - ``"salicon"``: the shuffled AUC of the SALICON challenge's toolkit, without random draws: all negatives with their
      weights, except on pixels where the image itself has a fixation; every fixation is a positive. The map is scaled
      to [0, 1]; the rates at the thresholds 0, 0.01, 0.02, ... below the highest of these values are interpolated. The
      toolkit uses all other images of the data set, and weights a pixel by the number of *images* with a fixation on
      it: ``negatives=shuffled_negatives(fixations > 0)``. (Earlier versions of the toolkit counted each pixel once, or
      drew splits; they cancel less of the centre bias.)
    - ``"mit"``: the shuffled AUC of the MIT benchmark's code: the mean of 100 splits, each with as many negatives as
      there are fixated pixels, drawn without replacement from the *distinct* pixels of ``negatives``; each fixated
      pixel once; thresholds in steps of 0.1. Published values use the fixations of ten random other images as
      ``negatives``. Do not pass more: counts are ignored, so the fixations of hundreds of images cover the whole image
      and the negatives become uniform, which rewards the centre bias again.

    ``congruency.saliency.scorer`` selects the negatives of each protocol.

    ``negatives``, (B, H, W) or (H, W) for all images, counts the other images' fixations on each pixel
    (:func:`shuffled_negatives`), without the image's own. ``seed`` determines the draws of ``"mit"``, as in
    :func:`auc_judd`. The result (B,) is nan for an image without fixations or negatives (for ``"salicon"``: negatives
    elsewhere than its fixations), or with a negative count; 1/2 for a constant map.
    """
    given, fixations = working_pair(saliency, fixations, "fixations")
    _, other = working_pair(saliency, negatives, "negatives")
    check_protocol(protocol)
    if protocol == "exact":
        return _exact(given, fixations, other.to(given.dtype))
    if protocol == "mit":
        value = sampled.splits(_unit_range(given), fixations.sign(), other, sampled.MIT, seed, replacement=False)
    else:
        value = by_parts(_salicon_shuffled, given, fixations, other)
    return unless_negative(value.to(given.dtype), fixations, other)


def shuffled_negatives(fixations: Tensor) -> Tensor:
    """Return for each image the fixations of all others, for :func:`auc_shuffled`: (B, H, W) -> (B, H, W).

    With ``fixations > 0``: the number of other images with a fixation on each pixel. Rescale the fixations of images of
    different sizes to one size first.
    """
    counts = fixations.long() if fixations.dtype == torch.bool else fixations
    return counts.sum(0, keepdim=True) - counts


def _salicon_shuffled(saliency: Tensor, fixations: Tensor, negatives: Tensor) -> Tensor:
    elsewhere = negatives.masked_fill(fixations != 0, 0.0)
    return sampled.weighted(_unit_range(saliency), fixations, elsewhere, sampled.SALICON)


def _exact(saliency: Tensor, positive: Tensor, negative: Tensor | Literal["all", "unfixated"]) -> Tensor:
    """Return the weighted probability that a positive pixel ranks above a negative one: (..., P) -> (...).

    Ties count half. nan if a weight is negative.
    """
    if saliency.device.type == "cpu":
        return _on_cpu(saliency, positive, negative)
    if negative == "all":
        negative = saliency.new_ones(1).expand(saliency.shape)
    elif negative == "unfixated":
        negative = (positive == 0).to(positive.dtype)
    return by_parts(_area_of_pixels, saliency, positive, negative)


def _area_of_pixels(saliency: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Compute the area with one sort of all pixels on the device: (N, P) each -> (N,).

    The sum over pairs of ``w_+ w_- ([s_+ > s_-] + 1/2 [s_+ = s_-])`` is ``1/2 (sum_p w_p N(p) + W_+ W_- - sum_n w_n
    Q(n))`` with ``N(p)`` the negatives strictly below p and ``Q(n)`` the positives strictly below n: the end of a group
    of ties is not needed.
    """
    ordered, order = saliency.sort(dim=-1)
    above, below = positive.gather(-1, order).double(), negative.gather(-1, order).double()
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    won = (above * _strictly_before(below, first)).sum(-1)
    lost = (below * _strictly_before(above, first)).sum(-1)
    pairs = above.sum(-1) * below.sum(-1)
    value = (won + pairs - lost) / (2 * pairs)  # nan (0 / 0) without positives or negatives
    value = value.masked_fill(ordered[:, -1].isnan(), _NAN).to(saliency.dtype)
    return unless_negative(value, positive, negative)


def _strictly_before(weights: Tensor, first: Tensor) -> Tensor:
    """Return at each pixel the total weight before its group of ties; ``first`` marks the start of a group."""
    running = weights.cumsum(-1) - weights
    return running.masked_fill_(~first, 0.0).cummax(-1).values


def _on_cpu(saliency: Tensor, positive: Tensor, negative: Tensor | Literal["all", "unfixated"]) -> Tensor:
    """Compute the area on the CPU with numpy, which sorts values twenty times faster than torch sorts with indices.

    The few positives are looked up among the sorted negatives, one task per image in as many threads as torch uses.
    """
    shape, pixels = saliency.shape[:-1], saliency.shape[-1]
    maps, counts = (x.detach().reshape(-1, pixels).numpy() for x in (saliency, positive))
    others = [negative] * len(maps) if isinstance(negative, str) else negative.detach().reshape(-1, pixels).numpy()
    workers = min(len(maps), torch.get_num_threads())
    if workers == 1:
        areas = [_area_of_points(*image) for image in zip(maps, counts, others, strict=True)]
    else:
        with ThreadPoolExecutor(workers) as pool:
            areas = list(pool.map(_area_of_points, maps, counts, others))
    return torch.tensor(areas, dtype=saliency.dtype).reshape(shape)


def _area_of_points(saliency: Array, positive: Array, negative: Array | Literal["all", "unfixated"]) -> float:
    places = np.flatnonzero(positive != 0)
    values, weights = saliency[places], positive[places].astype(np.float64)
    if np.isnan(saliency.max()) or len(places) == 0 or weights.min() < 0:
        return _NAN
    if isinstance(negative, str):
        below = _ranks(np.sort(saliency), values)
        total = float(len(saliency))
        if negative == "unfixated":
            below -= _ranks(np.sort(values), values)
            total -= len(values)
    else:
        others = np.flatnonzero(negative != 0)
        if np.all(negative[others] == 1):  # sorting values alone is several times faster
            below, total = _ranks(np.sort(saliency[others]), values), float(len(others))
        else:
            order = np.argsort(saliency[others])
            running = np.concatenate([[0.0], np.cumsum(negative[others][order], dtype=np.float64)])
            below = _ranks(saliency[others][order], values, running)
            total = float(running[-1]) if np.all(negative[others] > 0) else _NAN
    return float(below @ weights / (total * weights.sum())) if total > 0 else _NAN


def _ranks(ordered: Array, values: Array, running: Array | None = None) -> Array:
    """Return for each value the count (or weight, from the sums ``running``) of lower values, plus half of the ties."""
    lower, upper = np.searchsorted(ordered, values), np.searchsorted(ordered, values, "right")
    if running is not None:
        lower, upper = running[lower], running[upper]
    return np.asarray((lower + upper) / 2.0)


def _judd_at_fixations(saliency: Tensor, fixations: Tensor, seed: int) -> Tensor:
    """Return the trapezoidal area through the curve's points at the fixated values, as in the MIT benchmark.

    Between two neighbouring fixated values the curve is a step; the trapezoid adds half of it, in total
    ``P(s_- >= min s_+) / (2 N)``.
    """
    noise = uniform_draws(image_keys(fixations).flatten(), seed, saliency.shape[-1]).view(saliency.shape)
    jittered = saliency + noise * 1e-7
    fixated = (fixations > 0).to(saliency.dtype)
    exact = _exact(jittered, fixated, "unfixated")
    lowest = jittered.masked_fill(fixated == 0, torch.inf).amin(-1, keepdim=True)
    false = ((jittered >= lowest) & (fixated == 0)).sum(-1) / (1 - fixated).sum(-1)
    return exact + false / (2 * fixated.sum(-1))


def _unit_range(saliency: Tensor) -> Tensor:
    """Scale the maps to [0, 1] in float64; a constant map becomes 0."""
    saliency = saliency.double()
    low, high = saliency.amin(-1, keepdim=True), saliency.amax(-1, keepdim=True)
    return (saliency - low) / (high - low).masked_fill(high == low, 1.0)
