"""Rankings of samples by how suspicious they are, and how well a ranking finds what is known to be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

__all__ = [
    "BASELINE", "CLEANLAB", "METRICS", "RANKINGS", "Ranking", "area", "most", "overlap", "precision",
    "rank_correlation", "suspicion",
]  # fmt: skip


@dataclass(frozen=True)
class Ranking:
    """One way to rank samples.

    Attributes:
        title: in a table.
        score: which score of :func:`congruency.experiments.audit.following.measure` it ranks by.
        followed: by the mean over the epochs; else by the value at the end.
        low: low scores are the suspicious ones.
        against: the ranking by the loss that it is compared with; None for that one itself.
    """

    title: str
    score: str
    followed: bool
    low: bool
    against: str | None


RANKINGS: dict[str, Ranking] = {
    "congruency": Ranking("Congruency (way come), mean over epochs", "way", True, True, "loss"),
    "congruency_last": Ranking("Congruency (way come), at the end", "way", False, True, "loss_last"),
    "class_congruency": Ranking("Congruency (class mean), mean over epochs", "class", True, True, "loss"),
    "class_congruency_last": Ranking("Congruency (class mean), at the end", "class", False, True, "loss_last"),
    "direction_congruency": Ranking("Congruency (class direction), mean over epochs", "direction", True, True, "loss"),
    "direction_congruency_last": Ranking(
        "Congruency (class direction), at the end", "direction", False, True, "loss_last"
    ),
    "loss": Ranking("Loss, mean over epochs", "loss", True, False, None),
    "loss_last": Ranking("Loss, at the end", "loss", False, False, "loss"),
    "cleanlab": Ranking("cleanlab, held-out probabilities", "cleanlab", False, True, "loss"),
}
"""By the names that ``results.json`` and ``ranking.csv`` use; the first that is there orders the page."""

BASELINE = "loss"
CLEANLAB = "cleanlab"
METRICS = {"auc": "AUC", "precision": "precision"}


def suspicion(name: str, scores: Mapping[str, Tensor]) -> Tensor:
    """The scores of a ranking, turned so that the highest is the most suspicious: (n,) -> (n,).

    A score that is not defined is of a sample without a gradient, which disagrees with nothing: it comes last.
    """
    values = -scores[name] if RANKINGS[name].low else scores[name]
    return values.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def area(suspected: Tensor, wrong: Tensor) -> float:
    """AUC: the chance that a wrong sample is more suspicious than a right one, ties counting half."""
    count = int(wrong.sum())
    rest = len(wrong) - count
    if not count or not rest:
        raise ValueError("the area under the curve needs samples that are wrong and samples that are not")
    ranks = stats.rankdata(suspected.numpy())
    return float((ranks[wrong.numpy()].sum() - count * (count + 1) / 2) / (count * rest))


def precision(suspected: Tensor, wrong: Tensor, count: int) -> float:
    """The share of wrong ones among the ``count`` most suspicious."""
    if not 0 < count <= len(wrong):
        raise ValueError(f"the most suspicious must be from 1 to the {len(wrong)} samples, got {count}")
    return float(wrong[most(suspected, count)].double().mean())


def most(suspected: Tensor, count: int) -> Tensor:
    """Where the ``count`` most suspicious stand, the most suspicious first; of equal ones, the first."""
    return suspected.argsort(descending=True, stable=True)[:count]


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's: 1 where two rankings are the same, -1 where one is the other backwards."""
    return float(stats.spearmanr(stats.rankdata(first.numpy()), stats.rankdata(second.numpy())).statistic)


def overlap(first: Tensor, second: Tensor, count: int) -> float:
    """The share of the ``count`` most suspicious of one ranking that are among those of the other."""
    return len(set(most(first, count).tolist()) & set(most(second, count).tolist())) / count
