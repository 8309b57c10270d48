"""The human ceiling: the score that no prediction can exceed on average, estimated from the viewers themselves."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import SaliencyData
from congruency.saliency.scorer import PAPER_METRICS, GroundTruth, ground_truths, score_batch, with_uniform

MIN_VIEWERS = 4
"""Separate viewers per image that the extrapolation needs."""

_PERFECT = {"CC": 1.0, "KL": 0.0, "SIM": 1.0}
"""The metrics of two densities, and their values for equal ones."""


def human_ceiling(
    data: SaliencyData,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    splits: int = 5,
    seed: int = 0,
    device: torch.device | str | None = None,
    baseline: Tensor | None = None,
) -> dict[str, float]:
    """The mean scores of the density of infinitely many viewers, against the truth that models are scored against.

    That truth is all V viewers of an image. A density of k viewers is a worse prediction than one of infinitely many,
    and a noisier truth the fewer there are, so both are extrapolated in the number of viewers:

    - NSS, the AUCs, IG: the fixations of every viewer are predicted by k others, all V - 1 or a random half of them.
      The score is a mean over fixations, so these pooled are scored against all viewers. ``S(k) = S + a / k`` for both
      k gives S: the leave-one-out score, corrected to first order for the finite number of viewers.
    - CC, KL, SIM: k viewers against k others. Two densities of infinitely many viewers are equal and score perfectly;
      what is missing is ``D(x) = c x^p`` with ``x = 1/k + 1/k``. Split halves and split quarters give c and p, and the
      ceiling has ``x = 1/V``: infinitely many against V. With p = 1 this is, to first order, the correction of
      split-half correlations for attenuation by Spearman and Brown.

    All densities have the blur of the truth; as predictions they get a uniform floor with the weight of one viewer.

    Args:
        data: At least four separate viewers for every image.
        splits: Random halves per image, each used in both directions.
        seed: Of the random choices, which depend on it and on the image's number alone.
        baseline: Of the information gain, as in :func:`congruency.saliency.scorer.score`.
    """
    fewest = min((len(v.fixations) for v in data.viewings), default=0)
    if fewest < MIN_VIEWERS:
        raise ValueError(f"{data.name} does not have {MIN_VIEWERS} separate viewers for every image, but {fewest}")
    half = fewest // 2
    pooled = [name for name in metrics if name not in _PERFECT]
    halved = [name for name in metrics if name in _PERFECT]
    found: dict[str, list[Tensor]] = {name: [] for name in metrics}
    for whole in ground_truths(data, device=device, batch=1, baseline=baseline):
        index = whole.indices[0]
        v, generator = data[index], torch.Generator().manual_seed(1_000_003 * seed + index)
        viewers = _Viewers(whole, fixation_counts(v.fixations, (v.height, v.width), device=device))
        for name, limit in _by_others(viewers, pooled, generator).items():
            found[name].append(limit)
        orders = torch.stack([torch.randperm(len(v.fixations), generator=generator) for _ in range(splits)])
        both = torch.cat([orders, orders.flip(1)])
        parts = [viewers.scores(both[:, :k], both[:, -k:], halved) for k in (half, half // 2)]
        for name in halved:
            found[name].append(torch.stack([part[name].double().nanmean() for part in parts]).cpu())
    target = sum(1 / len(v.fixations) for v in data.viewings) / len(data)
    ceiling = {}
    for name, values in found.items():
        mean = torch.stack(values).nanmean(0)
        ceiling[name] = _power_law(mean.tolist(), half, target, _PERFECT[name]) if name in halved else float(mean)
    return ceiling


class _Viewers:
    """The viewers of one image: any of them as a prediction of any others."""

    def __init__(self, whole: GroundTruth, counts: Tensor) -> None:
        self.whole = replace(whole, others=whole.others[0], negatives=whole.negatives[0])
        self.counts, self.densities = counts, density(counts, whole.sigma)  # (V, H, W); both add up

    def scores(self, predicting: Tensor, held: Tensor, metrics: Sequence[str]) -> dict[str, Tensor]:
        """Each metric (S,): the viewers ``predicting`` (S, k) as the map against the viewers ``held`` (S, n)."""
        maps = with_uniform(_added(self.densities, predicting), predicting.shape[1])
        truth = replace(self.whole, fixations=_added(self.counts, held), density=_added(self.densities, held))
        found = score_batch(maps, truth, [name for name in metrics if name != "AUC-Judd"])
        if "AUC-Judd" in metrics:  # as of models, against the pixels that none of all viewers looked at
            unseen = replace(truth, negatives=(self.whole.fixations[0] == 0).to(maps.dtype))
            found["AUC-Judd"] = score_batch(maps, unseen, ["sAUC"])["sAUC"]
        return found


def _added(maps: Tensor, chosen: Tensor) -> Tensor:
    """(V, H, W) and (S, k) viewers -> (S, H, W): the sums over the chosen viewers."""
    return torch.stack([maps[some].sum(0) for some in chosen.to(maps.device)])


def _by_others(viewers: _Viewers, metrics: Sequence[str], generator: torch.Generator) -> dict[str, Tensor]:
    """Each metric (): every viewer's fixations predicted by the others, extrapolated to infinitely many others."""
    everyone = torch.arange(len(viewers.counts))
    most, fewer = len(everyone) - 1, (len(everyone) - 1) // 2
    others = torch.stack([everyone[everyone != one][torch.randperm(most, generator=generator)] for one in everyone])
    weights, limits = viewers.counts.flatten(1).sum(1).double(), {}
    first, second = (viewers.scores(others[:, :k], everyone[:, None], metrics) for k in (most, fewer))
    for name in metrics:
        all_others, some = (_weighted_mean(s[name].double(), weights) for s in (first, second))
        limits[name] = (all_others + (all_others - some) * fewer / (most - fewer)).cpu()
    return limits


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """(V,) each -> (): the mean over the values that are not nan; nan where none is."""
    weights = weights.masked_fill(values.isnan(), 0.0)
    return (values.nan_to_num() * weights).sum() / weights.sum()


def _power_law(means: Sequence[float], half: int, target: float, perfect: float) -> float:
    """The score at ``x = target``, by what split halves (x = 2 / half) and split quarters lack."""
    near, far = (abs(perfect - mean) for mean in means)
    if near == 0:  # all viewers look at the same places
        return perfect
    power = 0.0 if far <= near else math.log(far / near) / math.log(half / (half // 2))  # few images: by chance
    missing: float = near * (target * half / 2) ** power
    return perfect - missing if perfect else missing
