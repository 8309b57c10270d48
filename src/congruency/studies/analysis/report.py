"""``congruency report``: one page for any set of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from congruency.report.charts import Series, line_chart
from congruency.report.numbers import NOTHING, counted, listed
from congruency.report.page import Figure, Page
from congruency.report.tables import Table
from congruency.studies.analysis.runs import Group, Loaded, RecordedRun, group, number
from congruency.studies.curves import mean_series
from congruency.studies.page import compose as compose_study
from congruency.studies.page import provenance
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import Results
from congruency.studies.saliency.recipes import PRINTED
from congruency.studies.summary import findings as study_findings
from congruency.training.record import RECORD_NAME

_AT_MOST = 6  # lines in a chart: the number of colours
_POINTS = 240
_LAST = ("loss", "error")
_MEANS = ("congruency", "congruency_previous", "corrected_congruency", "corrected_share")

_NOT_NEGATIVE = (0.0, math.inf)

_CURVES = (
    ("loss", "Training loss", "loss", "Mean over the samples of an epoch."),
    ("error", "Training error, mean of each epoch", "% wrong", "Mean over the samples of an epoch."),
    (
        "congruency", "Congruency with the accumulated gradient", "cosine",
        "Of new gradients, with the gradient accumulated since the start.",
    ),
    ("congruency_previous", "Congruency with the last step", "cosine", "The same, with the one step before."),
    ("corrected_congruency", "Congruency after correction", "cosine", "Of the gradients that the optimizer used."),
    ("magnitude", "Magnitude", "distance", "How far the weights are from where they started."),
    ("magnitude_previous", "Magnitude of the steps", "distance", "How far the weights moved in a step."),
    ("corrected_share", "Steps corrected", "share", "How often the method changed the gradient."),
)  # fmt: skip


def partner(of: Group, groups: Sequence[Group]) -> Group | None:
    """Return the baseline with the same settings, to compare a group with; None if there is none."""
    if of.kind == "baseline":
        return None
    return next((one for one in groups if one.kind == "baseline" and one.variant == of.variant), None)


def study_of(groups: Sequence[Group]) -> tuple[Study[Any], Results]:
    """Return the groups as a study, and their results; only the first metric is compared with the baseline."""
    results = results_of(groups)
    known = dict.fromkeys(name for metrics in results.values() for name in metrics)
    columns = _metrics(groups)
    columns = [replace(column, compared=place == 0) for place, column in enumerate(columns)]
    if "congruency" in known:
        columns.append(Column(key="congruency", title="Congruency", digits=3, compared=False))
    rows: list[Row[Any]] = []
    for one in groups:
        base = partner(one, groups)
        rows.append(Row(name=one.name, jobs=(), against=base.name if base else None))
    count = sum(len(one.runs) for one in groups)
    methods = listed(list(dict.fromkeys(each.method for each in groups)))
    study = Study(
        name="report",
        title=f"Report on {counted(count, 'run')}",
        lead=f"{methods[0].upper()}{methods[1:]}. Runs that differ in their seeds alone are one row.",
        rows=tuple(rows),
        columns=tuple(columns),
        caption="Figures of the last epoch; congruency and steps corrected are means over all epochs.",
        extras=(Column(key="corrected_share", title="Corrected, %", digits=0, scale=100),),
        notes=tuple(_notes(groups)),
    )
    return study, results


def _metrics(groups: Sequence[Group]) -> list[Column]:
    """Return the columns: the scores after training, else the evaluation metrics without the loss, else the loss."""
    scores = dict.fromkeys(name for one in groups for run in one.runs for name in run.scores)
    if scores:
        names = [*(name for name in PRINTED if name in scores), *(name for name in scores if name not in PRINTED)]
        return [Column(key=name, digits=4, unit="") for name in names]
    names = evaluated(groups)
    names = [name for name in names if name != "loss"] or names
    return [
        Column(key=f"test_{name}", title=f"test {name.replace('_', ' ')}", digits=2 if "error" in name else 3, unit="")
        for name in names
    ] or [Column(key="training_loss", title="training loss", digits=3, unit="")]


def findings(groups: Sequence[Group], study: Study[Any], results: Results) -> list[str]:
    """Return sentences on the comparisons, and on rows without a baseline."""
    alone = [
        f"{one.name}: no baseline of the same settings, so there is no comparison."
        for one in groups
        if one.kind != "baseline" and partner(one, groups) is None
    ]
    text = [*study_findings(study, results), *alone]
    return text or ["There is one method only, and nothing to compare it with."]


def differing(groups: Sequence[Group]) -> Table:
    """Return a table of what differs between the groups: method, settings, device and versions."""
    runs = [run for one in groups for run in one.runs]
    columns, cells = ["Row"], [[one.name] for one in groups]

    def add(name: str, value: Callable[[RecordedRun], str]) -> None:
        if len(set(map(value, runs))) > 1:
            columns.append(name.replace("_", " "))
            for row, one in zip(cells, groups, strict=True):
                row.append(", ".join(dict.fromkeys(map(value, one.runs))))

    add("method", lambda run: run.kind)
    for part in ("correction", "settings", "machine"):
        for key in dict.fromkeys(key for run in runs for key in getattr(run, part)):
            shared = part == "correction" and any(key in run.settings for run in runs)
            add(f"{key} (method)" if shared else key, partial(_recorded, part, key))
    caption = (
        "Runs of one row differ in their seeds alone, and where a cell has several values in those. What is not listed "
        f"is the same in all; {NOTHING} stands where a setting does not apply or is not recorded."
    )
    return Table(caption, columns, cells)


def _recorded(part: str, key: str, run: RecordedRun) -> str:
    value: str = getattr(run, part).get(key, NOTHING)
    return value


def left_out(groups: Sequence[Group]) -> list[str]:
    """Return a sentence per run that was left out because another has the same row and seed."""
    text = []
    for one in groups:
        shown = {run.seed: run.name for run in one.runs}
        for run in one.left_out:
            text.append(
                f"{run.name} was left out: {one.name} has seed {run.seed} already, by {shown[run.seed]}; a seed counts "
                "once."
            )
    return text


def commands(groups: Sequence[Group]) -> list[tuple[str, str | None]]:
    """Return the exact command of every run; a group's runs with the same command are listed together."""
    text: list[tuple[str, str | None]] = []
    for one in groups:
        by_command: dict[str | None, list[str]] = {}
        for run in one.runs:
            by_command.setdefault(run.command, []).append(f"{run.seed} ({run.name.removesuffix(f'/{RECORD_NAME}')})")
        for command, seeds in by_command.items():
            name = f"{one.name}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
            text.append((name, None if command is None else f"congruency {command}"))
    return text


def compose(loaded: Loaded, command: str) -> Page:
    """Return the page of the runs that were read, with a message for each of the others."""
    groups = group(loaded.runs)
    study, results = study_of(groups)
    drawn = groups[:_AT_MOST]
    left = [] if len(groups) <= _AT_MOST else [f"The charts show the first {_AT_MOST} of {len(groups)} methods."]
    page = compose_study(
        study, results, command=command, figures=_figures(drawn),
        figures_note="Lines: means over seeds. Bands: 95 % intervals, as far as values can be. Point at a chart, or "
        "tap it, for its values.",
    )  # fmt: skip
    return replace(
        page,
        findings=[*findings(groups, study, results), *left, *left_out(groups), *loaded.messages],
        tables=[("What differs", differing(groups))],
        commands=commands(groups),
        made=provenance("from run records", numbers=""),
    )


def _figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the charts for which the records have numbers."""
    made = []
    for name in evaluated(groups):
        title = f"Validation {name.replace('_', ' ')}"
        series = by_epoch(groups, "evaluation", name)
        unit = "% wrong" if "error" in name else name.replace("_", " ")
        made.append(_chart(series, title, unit, "On held-out data.", possible=_possible(name), group=_group(name)))
    for name, title, y_label, note in _CURVES:
        series, log = by_epoch(groups, name), name == "error"
        made.append(_chart(series, title, y_label, note, log=log, possible=_possible(name), group=_group(name)))
    title, note = "Training error, std within each epoch", "Over the steps of an epoch; then the mean over seeds."
    made.append(_chart(spread_by_epoch(groups, "error"), title, "% wrong", note, log=True, possible=_NOT_NEGATIVE))
    for epoch in representative(groups):
        title = f"Training error by iteration, epoch {epoch + 1}"
        series = within_epoch(groups, "error", epoch)
        made.append(_chart(series, title, "% wrong", "", "iteration", group="iterations"))
    return [figure for figure in made if figure is not None]


def _chart(
    series: Sequence[Series],
    title: str,
    y_label: str,
    note: str,
    x_label: str = "epoch",
    log: bool = False,
    possible: tuple[float, float] = (-math.inf, math.inf),
    group: str = "",
) -> Figure | None:
    """Draw a chart, on a log axis if asked for and all values are positive; None if there is nothing to draw."""
    finite = [value for one in series for value in one.y if math.isfinite(value)]
    if not finite:
        return None
    log = log and min(finite) > 0
    if not possible[0] <= min(finite) <= max(finite) <= possible[1]:
        possible = (-math.inf, math.inf)  # a custom task with other units
    chart = line_chart(series, title=title, x_label=x_label, y_label=y_label, log=log, possible=possible, group=group)
    return Figure(title, chart, note)


def _group(name: str) -> str:
    """Return the group of charts that share a y axis: losses and cosines do."""
    return "cosine" if "congruency" in name else "loss" if name == "loss" else ""


def _possible(name: str) -> tuple[float, float]:
    """Return the possible range of a figure, infinite if unknown; errors are percentages."""
    if "error" in name:
        return 0.0, 100.0
    if "congruency" in name:
        return -1.0, 1.0
    if name == "corrected_share":
        return 0.0, 1.0
    return _NOT_NEGATIVE if name == "loss" or name.startswith("magnitude") else (-math.inf, math.inf)


def _notes(groups: Sequence[Group]) -> list[tuple[str, str]]:
    settings = groups[0].runs[0].settings
    varying = {key for one in groups for key, _ in one.variant}
    shared = ", ".join(f"{key} {value}" for key, value in settings.items() if key not in varying)
    return [
        (
            "Congruency",
            "The cosine between a new gradient and the gradient accumulated since the start: 1 where they point the "
            "same way, -1 where they are opposite. Before any correction, of the parameters that the run measured.",
        ),
        ("The test", "A paired t-test for each method against the baseline at the seeds that both have."),
        ("Seeds", "; ".join(f"{one.name}: {', '.join(map(str, one.seeds))}" for one in groups) + "."),
        ("What all runs share", shared + "."),
    ]


def results_of(groups: Sequence[Group]) -> Results:
    """Return the figures of all runs by row; nan where a run lacks one."""
    found: Results = {}
    for one in groups:
        runs = [figures(run) for run in one.runs]
        names = dict.fromkeys(name for run in runs for name in run)
        values = {name: [run.get(name, math.nan) for run in runs] for name in names}
        found[one.name] = {"seed": [float(seed) for seed in one.seeds], **values}
    return found


def figures(run: RecordedRun) -> dict[str, float]:
    """Return the figures of a run, as far as its record has them.

    These are the scores after training; the last evaluation's metrics (``test_``); the last epoch's training loss and
    error (``training_``) and magnitude; and the congruencies and share of corrected steps, averaged over all epochs.
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


def _mean_over_epochs(run: RecordedRun, name: str) -> float:
    """The mean over the epochs that have the figure; nan if none has it."""
    values = [value for line in run.epochs if math.isfinite(value := number(line, name))]
    return statistics.fmean(values) if values else math.nan


def evaluated(groups: Sequence[Group]) -> list[str]:
    """Return the names of the evaluation metrics: errors first, the loss last."""
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
    """Return a figure by epoch for each group: its mean over seeds with its interval, nan where missing."""
    return [_series(group, lambda run: [number(line, *names) for line in run.epochs]) for group in groups]


def spread_by_epoch(groups: Sequence[Group], name: str) -> list[Series]:
    """Return the standard deviation of a figure over the steps of each epoch, averaged over seeds."""

    def spread(run: RecordedRun) -> list[float]:
        values: dict[int, list[float]] = {}
        for line in run.steps:
            value = number(line, name)
            if math.isfinite(value):
                values.setdefault(line["epoch"], []).append(value)
        steps = [values.get(epoch, []) for epoch in range(len(run.epochs))]
        return [statistics.stdev(each) if len(each) > 1 else math.nan for each in steps]

    return [_series(group, spread) for group in groups]


def within_epoch(groups: Sequence[Group], name: str, epoch: int) -> list[Series]:
    """Return a figure by iteration in one epoch (from 0), averaged over seeds; a band would hide the lines."""
    made = []
    for one in groups:
        runs: dict[int, dict[int, float]] = {}
        for run in one.runs:
            lines = [line for line in run.steps if line["epoch"] == epoch]
            first = min((line["step"] for line in lines), default=0)
            runs[run.seed] = {line["step"] - first + 1: number(line, name) for line in lines}
        places = sorted({place for run in runs.values() for place in run})
        means = [statistics.fmean(run[place] for run in runs.values() if place in run) for place in places]
        values = {seed: _thinned([run.get(place, math.nan) for place in places]) for seed, run in runs.items()}
        several = values if len(values) > 1 else {}
        made.append(Series(one.name, _thinned(places), _thinned(means), runs=several))
    return made


def _thinned(values: Sequence[float]) -> list[float]:
    """Average consecutive values so that at most as many points remain as a chart can show."""
    size = -(-len(values) // _POINTS) or 1
    return [statistics.fmean(values[start : start + size]) for start in range(0, len(values), size)]


def representative(groups: Sequence[Group]) -> list[int]:
    """Return the epochs, from 0, that get a chart: the paper's four, in shorter runs those reached and the last."""
    wanted = (1, 5, 10, 15)
    longest = max((len(run.epochs) for group in groups for run in group.runs), default=0)
    chosen = [epoch for epoch in wanted if epoch <= longest]
    if len(chosen) < len(wanted) and longest and longest not in chosen:
        chosen.append(longest)
    return [epoch - 1 for epoch in chosen]


def _series(group: Group, curve: Callable[[RecordedRun], list[float]]) -> Series:
    """Average ``curve``, one number per epoch, over the group's runs; shorter runs contribute the epochs they have."""
    runs = {run.seed: curve(run) for run in group.runs}
    return mean_series(group.name, range(1, max(map(len, runs.values()), default=0) + 1), runs)
