"""What the numbers of an audit say, in sentences made from the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from congruency.experiments.audit.ranking import BASELINE, CLEANLAB, METRICS, RANKINGS
from congruency.experiments.evidence import mean_interval, paired_difference
from congruency.report.numbers import fixed, p_value, with_margin

__all__ = ["Scored", "findings", "verdict"]

Scored = Mapping[str, Mapping[str, Sequence[float]]]
"""``{ranking: {metric: [one value a seed]}}``"""

_LEVEL = 0.05


def findings(scores: Scored) -> list[str]:
    """First whether any congruency is better than the loss; then a verdict on each ranking, like against like."""
    told, winners = [], []
    for name, values in scores.items():
        ranking = RANKINGS[name]
        if ranking.score == "loss" or ranking.against is None or ranking.against not in scores:
            continue
        losses = scores[ranking.against]
        loss = "the loss's mean over epochs" if ranking.against == BASELINE else "the loss at the end"
        told.append(verdict(ranking.title, values, losses, loss))
        if ranking.score != CLEANLAB and any(_better(values[metric], losses[metric]) > 0 for metric in METRICS):
            winners.append(ranking.title)
    return [_overall(winners, len(next(iter(scores.values()))["auc"])), *told]


def _overall(winners: Sequence[str], seeds: int) -> str:
    if seeds < 2:
        return "One seed cannot say which ranking is better: give --seeds 5 or more."
    if not winners:
        return "No ranking by congruency finds the flipped labels better than the loss does."
    return f"Better than the loss, by AUC or precision: {'; '.join(winners)}."


def verdict(
    name: str,
    values: Mapping[str, Sequence[float]],
    losses: Mapping[str, Sequence[float]],
    loss: str = "the loss",
) -> str:
    """Whether a ranking finds the flipped labels better than the loss: metric by metric, paired by seed."""
    better, told = [], []
    for metric, title in METRICS.items():
        difference = paired_difference(values[metric], losses[metric])
        own, other = (mean_interval(found[metric]).mean for found in (values, losses))
        figures = f"{title} {fixed(own, 4)} against {fixed(other, 4)}"
        if difference.count < 2:
            told.append(figures)
            continue
        better.append(_better(values[metric], losses[metric]))
        gained = with_margin(difference.mean, difference.margin, 4, sign=True)
        told.append(f"{figures} ({gained}, p {p_value(difference.p)})")
    return f"{name}: {_judged(better, loss)}: {'; '.join(told)}."


def _better(values: Sequence[float], losses: Sequence[float]) -> int:
    """1 where values are clearly above the losses', -1 where clearly below, 0 where nothing is clear."""
    difference = paired_difference(values, losses)
    if not math.isfinite(difference.p) or difference.p >= _LEVEL:
        return 0
    return 1 if difference.mean > 0 else -1


def _judged(better: Sequence[int], loss: str) -> str:
    """In words, from 1 (clearly better), 0 (no clear difference) and -1 (clearly worse) for each metric."""
    if not better:
        return f"one seed cannot tell it from {loss}"
    if all(each > 0 for each in better):
        return f"better than {loss}"
    if any(each > 0 for each in better):
        return f"better than {loss} by {_where(better, 1)} alone"
    if any(each < 0 for each in better):
        return f"no better than {loss}, and worse by {_where(better, -1)}"
    return f"no better than {loss}"


def _where(better: Sequence[int], sign: int) -> str:
    return " and ".join(title for title, each in zip(METRICS.values(), better, strict=True) if each == sign)
