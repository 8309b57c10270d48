"""The human ceiling: an estimate, from the viewers, of the score that no prediction can exceed on average."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import SaliencyData
from congruency.saliency.scorer import PAPER_METRICS, GroundTruth, ground_truths, score_batch, with_uniform

MIN_VIEWERS = 4
"""Minimum number of separate viewers per image for the extrapolation."""

_PERFECT = {"CC": 1.0, "KL": 0.0, "SIM": 1.0}
"""The metrics of two densities, with their values for equal densities."""


def human_ceiling(
    data: SaliencyData,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    splits: int = 5,
    seed: int = 0,
    device: torch.device | str | None = None,
    baseline: Tensor | None = None,
) -> dict[str, float]:
    """Estimate the mean scores of the density of infinitely many viewers, against the ground truth used for models.

    The ground truth is all V viewers of an image. With fewer viewers k a density is a worse prediction, and a noisier
    ground truth, so scores are extrapolated in the number of viewers:

    - NSS, the AUCs, IG: the fixations of every viewer are predicted by k others, all V - 1 or a random half of them,
      and the scores are averaged over all fixations. Fitting ``S(k) = S + a / k`` to both k gives S: the leave-one-out
      score, corrected to first order for the finite number of viewers.
    - CC, KL, SIM: k viewers are compared with k others. Two densities of infinitely many viewers are equal and score
      perfectly; the difference to that is ``D(x) = c x^p`` with ``x = 1/k + 1/k``. Split halves and quarters give c and
      p, and the ceiling has ``x = 1/V``: infinitely many viewers against V. With p = 1 this is, to first order, the
      Spearman-Brown correction of split-half correlations for attenuation.

    All densities have the ground truth's blur; as predictions they get a uniform floor with the weight of one viewer.

    Args:
        data: At least four separate viewers for every image.
        splits: Number of random halves per image, each used in both directions.
        seed: Seed of the random choices, which depend only on it and on the image's index.
        baseline: Baseline of the information gain, as in :func:`congruency.saliency.scorer.score`.
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
    """The viewers of one image, to score some of them as a prediction of others."""

    def __init__(self, whole: GroundTruth, counts: Tensor) -> None:
        self.whole = replace(whole, others=whole.others[0], negatives=whole.negatives[0])
        self.counts, self.densities = counts, density(counts, whole.sigma)  # (V, H, W); both are additive

    def scores(self, predicting: Tensor, held: Tensor, metrics: Sequence[str]) -> dict[str, Tensor]:
        """Score the viewers ``predicting`` (S, k) as maps against the viewers ``held`` (S, n); each metric is (S,)."""
        maps = with_uniform(_added(self.densities, predicting), predicting.shape[1])
        truth = replace(self.whole, fixations=_added(self.counts, held), density=_added(self.densities, held))
        found = score_batch(maps, truth, [name for name in metrics if name != "AUC-Judd"])
        if "AUC-Judd" in metrics:  # as for models, against the pixels without any viewer's fixation
            unseen = replace(truth, negatives=(self.whole.fixations[0] == 0).to(maps.dtype))
            found["AUC-Judd"] = score_batch(maps, unseen, ["sAUC"])["sAUC"]
        return found


def _added(maps: Tensor, chosen: Tensor) -> Tensor:
    """Sum maps (V, H, W) over the chosen viewers (S, k): (S, H, W)."""
    return torch.stack([maps[some].sum(0) for some in chosen.to(maps.device)])


def _by_others(viewers: _Viewers, metrics: Sequence[str], generator: torch.Generator) -> dict[str, Tensor]:
    """Score every viewer's fixations predicted by the others, extrapolated to infinitely many others; () per metric."""
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
    """Return the weighted mean over the values that are not nan; nan if all are."""
    weights = weights.masked_fill(values.isnan(), 0.0)
    return (values.nan_to_num() * weights).sum() / weights.sum()


def _power_law(means: Sequence[float], half: int, target: float, perfect: float) -> float:
    """Extrapolate the difference to a perfect score from split halves (x = 2 / half) and quarters to ``x = target``."""
    near, far = (abs(perfect - mean) for mean in means)
    if near == 0:  # all viewers look at the same places
        return perfect
    power = 0.0 if far <= near else math.log(far / near) / math.log(half / (half // 2))  # far <= near: by chance
    missing: float = near * (target * half / 2) ** power
    return perfect - missing if perfect else missing
