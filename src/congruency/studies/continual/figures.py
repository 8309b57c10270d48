"""The charts of a continual-learning study: curves by task, and the accuracy matrix of every row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from congruency.continual import Outcome
from congruency.report import charts
from congruency.report.page import Figure
from congruency.studies.continual.runner import outcome_of
from congruency.studies.continual.tables import ContinualJob
from congruency.studies.curves import mean_series
from congruency.studies.plan import Row, Study
from congruency.studies.results import Results
from congruency.studies.store import RunResult

_LINES_PER_CHART = 6
_WIDE = 10
_NOTE = "Means over the seeds. Bands: 95 % intervals. Point at a chart for its values."
_SO_FAR = "After each task: the mean over all tasks seen by then."
_OF_TASKS = "Accuracy on a task after it was learned and after each later one; of many tasks, some."
_COSINE = "Mean cosine between the update and the gradients of the memory while learning each task."

Named = list[tuple[str, Outcome]]
Seeds = Mapping[str, Sequence[int]]
_POSSIBLE = {"accuracy, %": (0.0, 100.0), "validation loss": (0.0, math.inf), "mean cosine": (-1.0, 1.0)}


def continual_figures(
    study: Study[ContinualJob], results: Results, finished: Mapping[tuple[str, int], RunResult]
) -> tuple[list[Figure], str]:
    """Return the charts of the rows that have finished runs, and how to read them."""
    outcomes = {
        row.name: outcome_of([finished[row.jobs[0].digest(), int(seed)] for seed in results[row.name]["seed"]])
        for row in study.rows
        if row.name in results
    }
    seeds = {name: [int(seed) for seed in results[name]["seed"]] for name in outcomes}
    parts = _parts([row for row in study.rows if row.name in outcomes], outcomes)
    figures = []
    for label, part in parts:
        curve = _curve(part, seeds, lambda outcome: 100 * _so_far(outcome.matrix[:, 0]), "accuracy, %")
        figures.append(Figure(f"Accuracy on the tasks learned so far{label}", curve, _SO_FAR))
    log = _is_wide([_so_far(outcome.losses[:, 0]) for outcome in outcomes.values()])
    for label, part in parts:
        known = [
            (name, outcome) for name, outcome in part if torch.isfinite(_so_far(outcome.losses[:, 0]).sum(0)).any()
        ]
        if known:
            curve = _curve(known, seeds, lambda outcome: _so_far(outcome.losses[:, 0]), "validation loss", log=log)
            note = f"Mean cross entropy of the test images, in nats. {_SO_FAR}"
            figures.append(Figure(f"Validation loss by task{label}", curve, note))
    for label, part in parts:
        with_memory = [(name, outcome) for name, outcome in part if not torch.isnan(outcome.agreement).all()]
        if with_memory:
            curve = _curve(with_memory, seeds, lambda outcome: outcome.agreement[:, 0, 1:], "mean cosine", first=2)
            figures.append(Figure(f"Agreement of updates with the memory{label}", curve, _COSINE))
    for name, outcome in outcomes.items():
        matrix = (100 * outcome.matrix[:, 0].mean(0)).tolist()
        heat_map = charts.heat_map(matrix, title=name, x_label="accuracy on task", y_label="after task")
        figures.append(Figure(f"{name}: accuracy matrix", heat_map, "Mean accuracy on every task after each."))
        figures.append(Figure(f"{name}: learning curves", _by_task(outcome, seeds[name]), _OF_TASKS))
    return figures, _NOTE


def _parts(rows: Sequence[Row[ContinualJob]], outcomes: Mapping[str, Outcome]) -> list[tuple[str, Named]]:
    """Rows that share a chart: those without references, then each mode and margin with the row it is compared with."""
    groups: dict[tuple[str, str | None], list[str]] = {}
    first: list[str]
    for row in rows:
        method = row.jobs[0].method
        if method.kind == "dcl_memory":
            key = (f": {method.mode}, margin {method.memory_margin:g}", row.against)
            first = [row.against] if row.against is not None and row.against in outcomes else []
        else:
            key, first = ("", None), []
        groups.setdefault(key, first).append(row.name)
    return [
        (label, [(name, outcomes[name]) for name in names[i : i + _LINES_PER_CHART]])
        for (label, _), names in groups.items()
        for i in range(0, len(names), _LINES_PER_CHART)
    ]


def _so_far(matrix: torch.Tensor) -> torch.Tensor:
    """(S, T, T) -> (S, T): after each task the mean over the tasks learned by then, ``1/i sum_(t <= i) m_it``."""
    return torch.stack([matrix[:, i, : i + 1].mean(-1) for i in range(matrix.shape[-1])], -1)


def _by_task(outcome: Outcome, seeds: Sequence[int]) -> str:
    """A chart of one row: a line for each of a few evenly spaced tasks, from the task itself to the last."""
    matrix, last = 100 * outcome.matrix[:, 0], outcome.matrix.shape[-1] - 1
    series = []
    for task in sorted({round(i * last / (_LINES_PER_CHART - 1)) for i in range(_LINES_PER_CHART)}):
        runs = dict(zip(seeds, matrix[:, task:, task].tolist(), strict=True))
        series.append(mean_series(f"task {task + 1}", list(range(task + 1, last + 2)), runs))
    label = "accuracy, %"
    return charts.line_chart(
        series, title=label, x_label="after task", y_label=label, possible=_POSSIBLE[label], group=label
    )


def _is_wide(curves: Sequence[torch.Tensor]) -> bool:
    """Whether the means over the seeds differ so much that a linear axis would hide most of them."""
    means = torch.cat([curve.nanmean(0) for curve in curves])
    means = means[torch.isfinite(means) & (means > 0)]
    return len(means) > 0 and bool(means.max() > _WIDE * means.median())


def _curve(
    part: Named, seeds: Seeds, values: Callable[[Outcome], torch.Tensor], label: str, first: int = 1, log: bool = False
) -> str:
    """A chart by task; all charts with the same label share their y axis."""
    series = []
    for name, outcome in part:
        runs = dict(zip(seeds[name], values(outcome).tolist(), strict=True))
        tasks = range(first, first + values(outcome).shape[-1])
        series.append(mean_series(name, list(tasks), runs))
    return charts.line_chart(
        series, title=label, x_label="task", y_label=label, log=log, possible=_POSSIBLE[label], group=label
    )
