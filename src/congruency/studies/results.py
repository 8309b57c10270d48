"""Results of a study, one value per row, metric and seed, from the store or ``results.json``; and comparisons."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from congruency.files import finite
from congruency.studies.plan import JobT, Row, Study
from congruency.studies.statistics import Difference, holm, paired_difference
from congruency.studies.store import RunResult

Results = dict[str, dict[str, list[float]]]
"""``{row: {metric: [one value per seed]}}``; the metric ``"seed"`` lists the seeds."""

RESULTS_FILE = "results.json"


def collect(study: Study[JobT], finished: Mapping[tuple[str, int], RunResult]) -> Results:
    """Collect the finished runs by row, for the seeds at which all jobs of the row are finished."""
    results: Results = {}
    for row in study.rows:
        digests = [job.digest() for job in row.jobs]
        seeds = sorted({seed for _, seed in finished if all((each, seed) in finished for each in digests)})
        if not seeds or not digests:
            continue
        metrics: dict[str, list[float]] = {"seed": [float(seed) for seed in seeds]}
        for job, digest in zip(row.jobs, digests, strict=True):
            runs = [finished[digest, seed].figures for seed in seeds]
            for column, figure in job.columns.items():
                metrics[column] = [run[figure] for run in runs]
            for name in runs[0]:
                if name not in job.columns.values():
                    metrics[f"{job.label} {name}".strip()] = [run.get(name, math.nan) for run in runs]
        results[row.name] = metrics
    return results


def to_json(results: Results) -> str:
    """Return the results as JSON, with null for non-finite values and integer seeds."""
    plain = {
        row: metrics | ({"seed": [int(seed) for seed in metrics["seed"]]} if "seed" in metrics else {})
        for row, metrics in results.items()
    }
    return json.dumps(finite(plain), indent=1) + "\n"


def read_results(folder: Path) -> Results | None:
    """Read a folder's ``results.json``: None if missing, empty if not of a study's form (such as a single analysis).

    Raises:
        ValueError: the file is not JSON.
    """
    path = folder / RESULTS_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as reason:
        raise ValueError(f"{path} is not JSON ({reason}); make it again") from None
    if not isinstance(content, dict) or not all(_is_row(metrics) for metrics in content.values()):
        return {}
    return {
        row: {metric: [math.nan if value is None else float(value) for value in values] for metric, values in m.items()}
        for row, m in content.items()
    }


def seeds_of(metrics: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the seeds of a row; if they are not stored, the positions 0, 1, ... of the values."""
    if "seed" in metrics:
        return list(metrics["seed"])
    return [float(place) for place in range(max((len(values) for values in metrics.values()), default=0))]


def paired(
    results: Results, row: str, against: str | None, metric: str, against_metric: str | None = None
) -> tuple[list[float], list[float]] | None:
    """Return a metric of two rows at their common seeds; None if a row lacks the metric or no seed is shared."""
    sides = [(results.get(row, {}), metric), (results.get(against or "", {}), against_metric or metric)]
    if not all(name in metrics for metrics, name in sides):
        return None
    ours, theirs = (dict(zip(seeds_of(metrics), metrics[name], strict=True)) for metrics, name in sides)
    both = sorted(ours.keys() & theirs.keys())
    return ([ours[seed] for seed in both], [theirs[seed] for seed in both]) if both else None


@dataclass(frozen=True)
class Comparison:
    """The comparison of a row with its ``against`` row in one column.

    Attributes:
        difference: the row's values minus the other's, over their common seeds.
        identical: whether both rows have the same value at every seed, with at least two seeds.
        adjusted: the p-value after Holm's correction over all tests of the study.
    """

    row: str
    column: str
    difference: Difference
    identical: bool
    adjusted: float = math.nan

    @property
    def p(self) -> float:
        """The p-value of the paired t-test; 1 for identical values, nan if it is undefined."""
        return 1.0 if self.identical else self.difference.p


def comparisons(study: Study[JobT], results: Results) -> dict[tuple[str, str], Comparison]:
    """Return all comparisons of a study by row and column, with Holm's correction over all of them.

    Inactive rows, known in advance to equal the row they are compared with, are left out.
    """
    made = [
        Comparison(row.name, column.key, paired_difference(*pair), _identical(*pair))
        for row in study.rows
        if row.against is not None and not row.inactive
        for column in study.columns
        if column.compared and (pair := paired(results, row.name, row.against, column.key)) is not None
    ]
    adjusted = holm([one.p for one in made])
    return {(one.row, one.column): replace(one, adjusted=p) for one, p in zip(made, adjusted, strict=True)}


def _identical(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether two rows have equal finite values at every seed, with at least two seeds."""
    return len(ours) > 1 and all(a == b and math.isfinite(a) for a, b in zip(ours, theirs, strict=True))


def merged_rows(study: Study[JobT], results: Results) -> dict[str, list[Row[JobT]]]:
    """Merge rows with equal values at every seed into one table line; return the rows of each line by its label.

    Rows are merged if all shown values except speeds agree over at least two seeds and both have the same ``against``
    row. Rows with diverged runs are not merged.
    """
    shown = {"seed", *(column.key for column in (*study.columns, *study.extras) if not column.speed)}
    lines: dict[str, list[Row[JobT]]] = {}
    for row in study.rows:
        values = {name: list(each) for name, each in results.get(row.name, {}).items() if name in shown}
        lost = any(math.isnan(one) for column in study.columns for one in values.get(column.key, []))
        merged = row.against is not None and len(values.get("seed", [])) > 1 and not lost
        key = repr((row.against, bool(row.inactive), sorted(values.items()))) if merged else row.name
        lines.setdefault(key, []).append(row)
    return {_merged_name(*(row.name for row in rows)): rows for rows in lines.values()}


def _merged_name(first: str, *others: str) -> str:
    return f"{first} (same as: {'; '.join(others)})" if others else first


def _is_row(metrics: Any) -> bool:
    return isinstance(metrics, dict) and all(
        isinstance(values, list) and all(value is None or type(value) in (int, float) for value in values)
        for values in metrics.values()
    )
