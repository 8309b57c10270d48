"""Chart lines from results: means over the seeds with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from congruency.report.charts import Series, line_chart
from congruency.report.page import Figure
from congruency.studies.statistics import mean_interval
from congruency.training.methods import BASELINE

_LINES_PER_CHART = 5  # besides the baseline: the number of colours


def mean_series(name: str, x: Sequence[float], runs: Mapping[int, Sequence[float]]) -> Series:
    """Return the mean over the seeds at every x, with the margin of its 95 % interval.

    Args:
        runs: For every seed one value per x; a run that ended early contributes the values it has.
    """
    found = [mean_interval([values[i] for values in runs.values() if i < len(values)]) for i in range(len(x))]
    padded = {seed: [*values, *[math.nan] * (len(x) - len(values))] for seed, values in runs.items()}
    several = padded if len(padded) > 1 else {}
    return Series(name, x, [one.mean for one in found], [one.margin for one in found], runs=several)


def setting_series(name: str, values: Sequence[Sequence[float]], x: Sequence[float] | None = None) -> Series:
    """Return the means of several settings with 95 % intervals as bars; ``values[i]`` is one value per seed."""
    found = [mean_interval(each) for each in values]
    at = list(range(len(found))) if x is None else x
    return Series(name, at, [one.mean for one in found], [one.margin for one in found], bars=True)


def curve_charts(lines: Sequence[Series], **labels: Any) -> list[Figure]:
    """Return line charts with a few lines each; the baseline, if there is one, is in every chart."""
    first = [line for line in lines if line.name == BASELINE]
    others = [line for line in lines if line.name != BASELINE]
    parts = [others[i : i + _LINES_PER_CHART] for i in range(0, len(others), _LINES_PER_CHART)] or [[]]
    drawn = [part for part in ([*first, *part] for part in parts) if part]
    return [Figure(labels["title"], line_chart(part, **labels)) for part in drawn]


def learning_curves(runs: Mapping[str, Mapping[int, Mapping[str, Any]]], curve: str, heading: str) -> list[Figure]:
    """Return charts of the column ``curve`` and of the training loss by step.

    Args:
        runs: The arrays of each row's finished runs by seed; ``"steps"`` has the steps of the evaluations.
        heading: The column's heading.
    """
    made = []
    for name, what in ((curve, heading), ("train_loss", "Training loss")):
        lines = [
            mean_series(row, next(iter(by_seed.values()))["steps"], {seed: run[name] for seed, run in by_seed.items()})
            for row, by_seed in runs.items()
        ]
        title = f"{what.partition(',')[0]} by step"
        made += curve_charts(lines, title=title, x_label="step", y_label=what, group=name)
    return made
