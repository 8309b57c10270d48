"""From the lines of records to curves: means over seeds by epoch, and what happens within epochs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from congruency.report.charts import Series
from congruency.studies.analysis.runs import Group, Run, number
from congruency.studies.statistics import mean_interval

__all__ = ["by_epoch", "evaluated", "representative", "spread_by_epoch", "within_epoch"]

_POINTS = 240

Figure = Callable[[Run], list[float]]
"""One number an epoch, nan where there is none."""


def evaluated(groups: Sequence[Group]) -> list[str]:
    """The figures that evaluations have, the errors first."""
    names = dict.fromkeys(
        name
        for group in groups
        for run in group.runs
        for line in run.epochs
        for name in (line.get("evaluation") or {})
        if math.isfinite(number(line, "evaluation", name))
    )
    return sorted(names, key=lambda name: ("error" not in name, name == "loss"))


def by_epoch(groups: Sequence[Group], *names: str) -> list[Series]:
    """A figure of the epochs' lines: mean over seeds and its interval; groups that never have it stay empty."""
    return [_series(group, lambda run: [number(line, *names) for line in run.epochs]) for group in groups]


def spread_by_epoch(groups: Sequence[Group], name: str) -> list[Series]:
    """Standard deviation of a figure over the steps of each epoch; then the mean over seeds."""

    def figures(run: Run) -> list[float]:
        values: dict[int, list[float]] = {}
        for line in run.steps:
            value = number(line, name)
            if math.isfinite(value):
                values.setdefault(line["epoch"], []).append(value)
        return [_deviation(values.get(epoch, [])) for epoch in range(len(run.epochs))]

    return [_series(group, figures) for group in groups]


def within_epoch(groups: Sequence[Group], name: str, epoch: int) -> list[Series]:
    """A figure by iteration in one epoch (from 0), the mean over seeds; no band, for it would hide the lines."""
    made = []
    for group in groups:
        runs = [[line for line in run.steps if line["epoch"] == epoch] for run in group.runs]
        firsts = [min((line["step"] for line in lines), default=0) for lines in runs]
        values: dict[int, list[float]] = {}
        for lines, first in zip(runs, firsts, strict=True):
            for line in lines:
                values.setdefault(line["step"] - first + 1, []).append(number(line, name))
        places = sorted(values)
        made.append(_thinned(group.name, places, [statistics.fmean(values[place]) for place in places]))
    return made


def _thinned(name: str, x: Sequence[float], y: Sequence[float]) -> Series:
    """At most so many points as a chart can show, each the mean of its neighbours."""
    size = -(-len(x) // _POINTS) or 1
    parts = [slice(start, start + size) for start in range(0, len(x), size)]
    return Series(name, [statistics.fmean(x[part]) for part in parts], [statistics.fmean(y[part]) for part in parts])


def representative(groups: Sequence[Group], wanted: Sequence[int] = (1, 5, 10, 15)) -> list[int]:
    """Epochs, from 0, worth a chart each: the paper's four, or the last one of shorter runs."""
    longest = max((len(run.epochs) for group in groups for run in group.runs), default=0)
    chosen = [epoch for epoch in wanted if epoch <= longest]
    if len(chosen) < len(wanted) and longest and longest not in chosen:
        chosen.append(longest)
    return [epoch - 1 for epoch in chosen]


def _series(group: Group, figures: Figure) -> Series:
    """Epochs are counted from 1; where seeds have come to different epochs, those that are there count."""
    runs = [figures(run) for run in group.runs]
    means, margins = [], []
    length = max((len(values) for values in runs), default=0)
    for epoch in range(length):
        estimate = mean_interval([values[epoch] for values in runs if epoch < len(values)])
        means.append(estimate.mean)
        margins.append(estimate.margin)
    return Series(group.name, list(range(1, length + 1)), means, margins)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan
