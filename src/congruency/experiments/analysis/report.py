"""``congruency report``: one page for any set of runs."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

import congruency
from congruency.experiments.analysis import curves
from congruency.experiments.analysis.runs import Group, Loaded, Run, group, number
from congruency.experiments.evidence import Difference, mean_interval, paired_difference
from congruency.report.charts import Series, colour, line_chart
from congruency.report.numbers import NOTHING, fixed, p_value, with_margin
from congruency.report.page import Figure, Page
from congruency.report.tables import Table

__all__ = ["compose", "findings", "narrow", "partner", "summary"]

_AT_MOST = 6  # lines in a chart: so many colours there are

_CURVES = (
    ("loss", "Training loss", "loss", "Mean over the samples of an epoch."),
    ("error", "Training error, mean of each epoch", "% wrong", "Mean over the samples of an epoch."),
    ("congruency", "Congruency with the way come", "cosine", "Of new gradients, with the way come since the start."),
    ("congruency_previous", "Congruency with the last step", "cosine", "The same, against the one step before."),
    ("corrected_congruency", "Congruency after correction", "cosine", "Of the gradients that the optimizer used."),
    ("magnitude", "Magnitude", "distance", "How far the weights are from where they started."),
    ("magnitude_previous", "Magnitude of the steps", "distance", "How far the weights moved in a step."),
    ("corrected_share", "Steps corrected", "share", "How often the method changed the gradient."),
)


def partner(of: Group, groups: Sequence[Group]) -> Group | None:
    """The baseline with the same settings, that a group is compared with."""
    if of.method == "baseline":
        return None
    return next((one for one in groups if one.method == "baseline" and one.variant == of.variant), None)


def summary(groups: Sequence[Group]) -> Table:
    """One row a group; the first figure of the evaluations, or the loss, is compared with the baseline's."""
    names = curves.evaluated(groups)
    names = [name for name in names if name != "loss"] or names  # the charts have it
    shown: list[tuple[str, ...]] = [("evaluation", name) for name in names] or [("loss",)]
    congruent = any(math.isfinite(number(line, "congruency")) for one in groups for line in _epochs(one))
    columns = ["Method", "Seeds", *(_title(names) for names in shown)]
    columns[3:3] = ["Difference", "p"]
    columns += ["Congruency", "Corrected, %"] if congruent else ["Corrected, %"]
    rows = []
    for one in groups:
        row = [one.name, str(len(one.runs)), *(_interval(_final(one, names), _digits(names)) for names in shown)]
        difference = _difference(one, groups, shown[0])
        row[3:3] = [_told(difference, _digits(shown[0])), NOTHING if difference is None else p_value(difference.p)]
        row += [_interval([_mean(run, "congruency") for run in one.runs], 3)] if congruent else []
        rows.append([*row, fixed(100 * statistics.fmean(_mean(run, "corrected_share") for run in one.runs), 0)])
    caption = (
        "Means over the seeds, ± their 95 % intervals; figures of the last epoch, congruency and steps corrected over "
        f"all epochs. Difference: in {_title(shown[0])}, paired by seed, method less baseline, with the p of its "
        "t-test."
    )
    return Table(caption, columns, rows)


def narrow(table: Table) -> Table:
    """The comparison alone, for a terminal; the page has the other columns."""
    caption = f"{table.caption} The page has the other columns."
    return Table(caption, table.columns[:5], [row[:5] for row in table.rows])


def findings(groups: Sequence[Group]) -> list[str]:
    """What the first figure says about each method, and no more than that."""
    names = curves.evaluated(groups)
    metric = ("evaluation", names[0]) if names else ("loss",)
    told = []
    for one in groups:
        if one.method == "baseline":
            continue
        difference = _difference(one, groups, metric)
        told.append(f"{one.name}: {_finding(difference, _title(metric))}")
    return told or ["There is one method only, and nothing to compare it with."]


def _finding(difference: Difference | None, metric: str) -> str:
    if difference is None:
        return "no baseline of the same settings shares a seed with it, so there is no comparison."
    seeds = "1 seed" if difference.count == 1 else f"{difference.count} seeds"
    if not math.isfinite(difference.mean):
        return f"no comparison, for a run ended without {metric}."
    changed = f"{metric} {fixed(difference.mean, 3, sign=True)} against the baseline"
    if not math.isfinite(difference.p):
        return f"{changed} at {seeds}, without an interval or a test."
    interval = f"95 % interval {fixed(difference.low, 3, sign=True)} to {fixed(difference.high, 3, sign=True)}"
    p = p_value(difference.p)
    verdict = "no difference shown" if difference.p >= 0.05 else "higher" if difference.mean > 0 else "lower"
    return f"{changed} ({interval}, p {p if p.startswith('<') else f'= {p}'}): {verdict} at {seeds}."


def compose(loaded: Loaded, command: str) -> Page:
    """The page of the runs that were read, with a word on those that were not."""
    groups = group(loaded.runs)
    drawn = groups[:_AT_MOST]
    left = [] if len(groups) <= _AT_MOST else [f"The charts show the first {_AT_MOST} of {len(groups)} methods."]
    count = len(loaded.runs)
    return Page(
        title=f"Report on {count} run{'' if count == 1 else 's'}",
        lead=f"{_listed([each.method for each in groups])}. Runs that differ in their seeds alone are put together.",
        command=command,
        table=summary(groups),
        findings=[*findings(groups), *left, *loaded.messages],
        headline=_switches(drawn) if len(drawn) > 1 else None,
        figures=_figures(drawn),
        figures_note="Lines: means over seeds. Bands: 95 % intervals. Point at a chart for its values.",
        notes=_notes(groups),
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d} with Python "
            f"{platform.python_version()}, from run records."
        ),
    )


def _figures(groups: Sequence[Group]) -> list[Figure]:
    """Those that the records have numbers for."""
    made = [_chart(curves.by_epoch(groups, name), *words) for name, *words in _CURVES]
    for name in curves.evaluated(groups):
        title = f"Evaluation: {name.replace('_', ' ')}"
        series = curves.by_epoch(groups, "evaluation", name)
        made.append(_chart(series, title, name.replace("_", " "), "On held-out data."))
    title, note = "Training error, std within each epoch", "Over the steps of an epoch; then the mean over seeds."
    made.insert(2, _chart(curves.spread_by_epoch(groups, "error"), title, "% wrong", note))
    for epoch in curves.representative(groups):
        title = f"Training error by iteration, epoch {epoch + 1}"
        made.append(_chart(curves.within_epoch(groups, "error", epoch), title, "% wrong", "", "iteration"))
    return [figure for figure in made if figure is not None]


def _chart(series: Sequence[Series], title: str, y_label: str, note: str, x_label: str = "epoch") -> Figure | None:
    if not any(math.isfinite(value) for one in series for value in one.y):
        return None
    return Figure(title, line_chart(series, title=title, x_label=x_label, y_label=y_label), note)


def _switches(groups: Sequence[Group]) -> Figure:
    """A box for every method that takes its line out of all charts: by its colour, without a script."""
    rules, boxes = [], []
    for place, one in enumerate(groups):
        rules.append(f"main:has(#shown-{place}:not(:checked)) .figures {{ --series-{place + 1}: transparent; }}")
        boxes.append(
            f'<label style="display: block; padding: 0.15rem 0;"><input type="checkbox" id="shown-{place}" checked> '
            f'<span style="color: {colour(place)};">&#9632;</span> {escape(one.name)}</label>'
        )
    rules.append(".card tbody th { white-space: normal; min-width: 8rem; }")  # long names of methods
    markup = f"<style>{' '.join(rules)}</style>\n<div>{''.join(boxes)}</div>"
    return Figure("Shown in the charts", markup, "Take a method out of all charts, or put it back.")


def _notes(groups: Sequence[Group]) -> list[tuple[str, str]]:
    common = [
        (
            "Congruency",
            "The cosine between a new gradient and the way training has come: 1 where the gradient leads straight on, "
            "-1 where it leads straight back. Before any correction, of the parameters that the run measured.",
        ),
        (
            "The test",
            "A paired t-test for each method against the baseline at the seeds that both have; not corrected for there "
            "being several.",
        ),
    ]
    seeds = [("Seeds", "; ".join(f"{one.name}: {', '.join(map(str, one.seeds))}" for one in groups) + ".")]
    settings = groups[0].runs[0].settings
    varying = {key for one in groups for key, _ in one.variant}
    shared = ", ".join(f"{key} {value}" for key, value in settings.items() if key not in varying)
    return [*common, *seeds, ("What all runs share", shared + ".")]


def _difference(one: Group, groups: Sequence[Group], metric: Sequence[str]) -> Difference | None:
    base = partner(one, groups)
    if base is None:
        return None
    ours, theirs = ({run.seed: number(run.epochs[-1], *metric) for run in each.runs} for each in (one, base))
    both = [seed for seed in ours if seed in theirs]
    return paired_difference([ours[seed] for seed in both], [theirs[seed] for seed in both]) if both else None


def _told(difference: Difference | None, digits: int) -> str:
    return NOTHING if difference is None else with_margin(difference.mean, difference.margin, digits, sign=True)


def _digits(names: Sequence[str]) -> int:
    """Errors are percentages."""
    return 2 if "error" in names[-1] else 3


def _final(one: Group, names: Sequence[str]) -> list[float]:
    return [number(run.epochs[-1], *names) for run in one.runs]


def _mean(run: Run, name: str) -> float:
    values = [value for line in run.epochs if math.isfinite(value := number(line, name))]
    return statistics.fmean(values) if values else math.nan


def _interval(values: Sequence[float], digits: int) -> str:
    estimate = mean_interval(values)
    return with_margin(estimate.mean, estimate.margin, digits)


def _title(names: Sequence[str]) -> str:
    if names[0] != "evaluation":
        return f"training {names[-1]}"
    return f"test {names[-1].replace('_', ' ')}"


def _epochs(one: Group) -> list[Mapping[str, Any]]:
    return [line for run in one.runs for line in run.epochs]


def _listed(methods: Sequence[str]) -> str:
    names = list(dict.fromkeys(methods))
    text = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return text[0].upper() + text[1:]
