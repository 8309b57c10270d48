"""Every cell beside the baseline, with the number of comparisons kept in view."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from congruency.studies.classification.jobs import Table
from congruency.studies.classification.showing import Results
from congruency.studies.statistics import Difference, holm, paired_difference

__all__ = ["Comparison", "comparisons"]


@dataclass(frozen=True)
class Comparison:
    """A cell and the baseline in one column.

    Attributes:
        cell: the name of the row.
        column: what is compared.
        difference: cell minus baseline, over the seeds that both have.
        p: of the paired t-test, and 1 where no seed differs at all; nan where too few seeds can say.
        adjusted: p after Holm's correction for all comparisons that have one.
    """

    cell: str
    column: str
    difference: Difference
    p: float
    adjusted: float = math.nan


def comparisons(table: Table, results: Results, idle: Collection[str] = ()) -> list[Comparison]:
    """All of them, by cell and column, but for ``idle`` cells, whose trainings are the baseline's."""
    made = [
        Comparison(row.name, column, difference, _p(difference))
        for row in table.rows
        if row.against is not None and row.name not in idle
        for column in row.columns
        if (difference := _difference(results.get(row.name, {}), results.get(row.against, {}), column)) is not None
    ]
    return [replace(one, adjusted=p) for one, p in zip(made, holm([one.p for one in made]), strict=True)]


def _p(difference: Difference) -> float:
    """Equal errors on several seeds are a comparison that was made: it counts."""
    return 1.0 if difference.count > 1 and difference.mean == 0 and math.isnan(difference.p) else difference.p


def _difference(own: dict[str, list[float]], other: dict[str, list[float]], column: str) -> Difference | None:
    if column not in own or column not in other:
        return None
    mine, base = (dict(zip(metrics["seed"], metrics[column], strict=True)) for metrics in (own, other))
    both = sorted(mine.keys() & base.keys())
    return paired_difference([mine[seed] for seed in both], [base[seed] for seed in both]) if both else None
