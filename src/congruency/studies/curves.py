"""A line of a chart from the runs of a row: the mean over its seeds, the interval, and every seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from congruency.report.charts import Series
from congruency.studies.statistics import mean_interval


def mean_series(name: str, x: Sequence[float], runs: Mapping[int, Sequence[float]]) -> Series:
    """Return the mean over the seeds at every x, with the margin of its 95 % interval.

    Args:
        runs: One value per x of every seed; a run that ended early counts as far as it came.
    """
    found = [mean_interval([values[i] for values in runs.values() if i < len(values)]) for i in range(len(x))]
    padded = {seed: [*values, *[math.nan] * (len(x) - len(values))] for seed, values in runs.items()}
    several = padded if len(padded) > 1 else {}
    return Series(name, x, [one.mean for one in found], [one.margin for one in found], runs=several)
