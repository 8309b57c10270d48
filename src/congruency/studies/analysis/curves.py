"""From the lines of records to numbers: the figures of every run, means over seeds by epoch, and within epochs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from congruency.report.charts import Series
from congruency.studies.analysis.runs import Group, Run, number
from congruency.studies.results import Results
from congruency.studies.statistics import mean_interval

__all__ = ["by_epoch", "evaluated", "figures", "representative", "results", "spread_by_epoch", "within_epoch"]

_POINTS = 240
_LAST = ("loss", "error")
_MEANS = ("congruency", "congruency_previous", "corrected_congruency", "corrected_share")

Curve = Callable[[Run], list[float]]
"""One number per epoch, nan where there is none."""


def results(groups: Sequence[Group]) -> Results:
    """Return the figures of all runs, row by row; nan where a seed does not have one."""
    found: Results = {}
    for group in groups:
        runs = [figures(run) for run in group.runs]
        names = dict.fromkeys(name for run in runs for name in run)
        values = {name: [run.get(name, math.nan) for run in runs] for name in names}
        found[group.name] = {"seed": [float(seed) for seed in group.seeds], **values}
    return found


def figures(run: Run) -> dict[str, float]:
    """Return the figures of a run, as far as its record has them.

    The scores after training; the last evaluation's figures (``test_``); the last epoch's training loss and error
    (``training_``) and magnitude; means over all epochs of the congruencies and of the share of steps corrected.
    """
    last = run.epochs[-1]
    evaluation: Mapping[str, Any] = next(
        (line["evaluation"] for line in reversed(run.epochs) if line.get("evaluation")), {}
    )
    found = dict(run.scores)
    found |= {f"test_{name}": number(evaluation, name) for name in evaluation}
    found |= {f"training_{name}": number(last, name) for name in _LAST}
    found |= {name: _mean_over_epochs(run, name) for name in _MEANS}
    found["magnitude"] = number(last, "magnitude")
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _mean_over_epochs(run: Run, name: str) -> float:
    """The mean over the epochs that have the figure; nan where none has."""
    values = [value for line in run.epochs if math.isfinite(value := number(line, name))]
    return statistics.fmean(values) if values else math.nan


def evaluated(groups: Sequence[Group]) -> list[str]:
    """Return the figures that evaluations have, the errors first."""
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
    """Return a figure of the epochs' lines: mean over seeds and its interval; empty for groups that never have it."""
    return [_series(group, lambda run: [number(line, *names) for line in run.epochs]) for group in groups]


def spread_by_epoch(groups: Sequence[Group], name: str) -> list[Series]:
    """Return the standard deviation of a figure over the steps of each epoch, mean over seeds."""

    def spread(run: Run) -> list[float]:
        values: dict[int, list[float]] = {}
        for line in run.steps:
            value = number(line, name)
            if math.isfinite(value):
                values.setdefault(line["epoch"], []).append(value)
        steps = [values.get(epoch, []) for epoch in range(len(run.epochs))]
        return [statistics.stdev(each) if len(each) > 1 else math.nan for each in steps]

    return [_series(group, spread) for group in groups]


def within_epoch(groups: Sequence[Group], name: str, epoch: int) -> list[Series]:
    """Return a figure by iteration in one epoch (from 0), mean over seeds; no band, for it would hide the lines."""
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
    """At most as many points as a chart can show, each the mean of its neighbours."""
    size = -(-len(x) // _POINTS) or 1
    parts = [slice(start, start + size) for start in range(0, len(x), size)]
    return Series(name, [statistics.fmean(x[part]) for part in parts], [statistics.fmean(y[part]) for part in parts])


def representative(groups: Sequence[Group], wanted: Sequence[int] = (1, 5, 10, 15)) -> list[int]:
    """Return the epochs, from 0, that have a chart each: the paper's four, or the last one of shorter runs."""
    longest = max((len(run.epochs) for group in groups for run in group.runs), default=0)
    chosen = [epoch for epoch in wanted if epoch <= longest]
    if len(chosen) < len(wanted) and longest and longest not in chosen:
        chosen.append(longest)
    return [epoch - 1 for epoch in chosen]


def _series(group: Group, curve: Curve) -> Series:
    """Epochs are counted from 1; where runs have different numbers of epochs, those that are there count."""
    runs = [curve(run) for run in group.runs]
    means, margins = [], []
    length = max((len(values) for values in runs), default=0)
    for epoch in range(length):
        estimate = mean_interval([values[epoch] for values in runs if epoch < len(values)])
        means.append(estimate.mean)
        margins.append(estimate.margin)
    return Series(group.name, list(range(1, length + 1)), means, margins)
