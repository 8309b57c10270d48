"""``congruency report``: one page for any set of runs."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from html import escape
from typing import Any

import congruency
from congruency.report.charts import Series, colour, line_chart
from congruency.report.numbers import NOTHING, fixed, p_value, with_margin
from congruency.report.page import Figure, Page
from congruency.report.tables import Table
from congruency.studies.analysis import curves
from congruency.studies.analysis.figures import mean_over_epochs
from congruency.studies.analysis.runs import Group, Loaded, Run, group, number
from congruency.studies.paper import Printed, printed
from congruency.studies.saliency.recipes import PRINTED
from congruency.studies.statistics import Difference, mean_interval, paired_difference
from congruency.training.record import RECORD_NAME

__all__ = ["commands", "compose", "differing", "findings", "left_out", "narrow", "partner", "summary"]

_AT_MOST = 6  # lines in a chart: so many colours there are

_NOT_NEGATIVE = (0.0, math.inf)

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
    """One row a group; the first metric is compared with the baseline's, the paper's numbers stand beside ours."""
    shown = _metrics(groups)
    papers = [_paper(one) for one in groups]
    congruent = any(math.isfinite(number(line, "congruency")) for one in groups for line in _epochs(one))
    columns = ["Method", "Seeds"]
    for place, metric in enumerate(shown):
        columns += [_title(metric), *(["Difference", "p"] if place == 0 else [])]
        columns += ["paper"] if any(metric[-1] in paper for paper in papers) else []
    columns += ["Congruency", "Corrected, %"] if congruent else ["Corrected, %"]
    rows = []
    for one, paper in zip(groups, papers, strict=True):
        row = [one.name, str(len(one.runs))]
        for place, metric in enumerate(shown):
            row.append(_interval(_final(one, metric), _digits(metric)))
            if place == 0:
                difference = _difference(one, groups, metric)
                row += [_told(difference, _digits(metric)), NOTHING if difference is None else p_value(difference.p)]
            if any(metric[-1] in other for other in papers):
                row.append(_printed(paper.get(metric[-1]), _digits(metric)))
        row += [_interval([mean_over_epochs(run, "congruency") for run in one.runs], 3)] if congruent else []
        rows.append(
            [*row, fixed(100 * statistics.fmean(mean_over_epochs(run, "corrected_share") for run in one.runs), 0)]
        )
    caption = (
        "Means over the seeds, ± their 95 % intervals; figures of the last epoch, congruency and steps corrected over "
        f"all epochs. Difference: in {_title(shown[0])}, paired by seed, method less baseline, with the p of its "
        "t-test."
    )
    if any(papers):
        caption += (
            " Paper: what it prints for the row that the runs repeat (sd: over its runs), beside both modes of DCL, "
            "whatever images and budget the runs have."
        )
    return Table(caption, columns, rows)


def _metrics(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """Scores after training; or the figures of the evaluations, without the loss, which the charts have."""
    scores = dict.fromkeys(name for one in groups for run in one.runs for name in run.scores)
    if scores:
        return [
            ("score", name) for name in [*(n for n in PRINTED if n in scores), *(n for n in scores if n not in PRINTED)]
        ]
    names = curves.evaluated(groups)
    names = [name for name in names if name != "loss"] or names
    return [("evaluation", name) for name in names] or [("loss",)]


def _paper(one: Group) -> Mapping[str, Printed]:
    """The paper's numbers for a group, where all its runs belong to one row."""
    rows = {(run.origin.table, run.origin.row, run.origin.data) for run in one.runs}
    if len(rows) != 1:
        return {}
    tuned = one.runs[0].settings.get("pretrained", "None") not in ("None", "False")
    return printed(*rows.pop(), fine_tuned=tuned)


def _printed(figure: Printed | None, digits: int) -> str:
    if figure is None:
        return NOTHING
    if isinstance(figure, tuple):
        return f"{fixed(figure[0], digits)} (sd {fixed(figure[1], digits)})"
    return fixed(figure, digits)


def narrow(table: Table) -> Table:
    """The comparison alone, for a terminal; the page has the other columns."""
    caption = f"{table.caption} The page has the other columns."
    count = 6 if table.columns[5:6] == ["paper"] else 5
    return Table(caption, table.columns[:count], [row[:count] for row in table.rows])


def findings(groups: Sequence[Group]) -> list[str]:
    """What the first metric says about each method, and no more than that."""
    metric = _metrics(groups)[0]
    told = []
    for one in groups:
        if one.method == "baseline":
            continue
        difference = _difference(one, groups, metric)
        told.append(f"{one.name}: {_finding(difference, _title(metric))}")
    return told or ["There is one method only, and nothing to compare it with."]


def differing(groups: Sequence[Group]) -> Table:
    """What differs between the groups: the method, its own settings, the others, and what they were computed with."""
    runs = [run for one in groups for run in one.runs]
    columns, cells = ["Row"], [[one.name] for one in groups]

    def add(name: str, value: Callable[[Run], str]) -> None:
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


def _recorded(part: str, key: str, run: Run) -> str:
    value: str = getattr(run, part).get(key, NOTHING)
    return value


def left_out(groups: Sequence[Group]) -> list[str]:
    """A sentence for every run that shares its row and its seed with another."""
    told = []
    for one in groups:
        shown = {run.seed: run.name for run in one.runs}
        for run in one.left_out:
            told.append(
                f"{run.name} was left out: {one.name} has seed {run.seed} already, by {shown[run.seed]}; a seed counts "
                "once."
            )
    return told


def commands(groups: Sequence[Group]) -> list[tuple[str, str | None]]:
    """The exact command of every run; runs of a group that one command made are named together."""
    told: list[tuple[str, str | None]] = []
    for one in groups:
        by_command: dict[str | None, list[str]] = {}
        for run in one.runs:
            by_command.setdefault(run.origin.command, []).append(
                f"{run.seed} ({run.name.removesuffix(f'/{RECORD_NAME}')})"
            )
        for command, seeds in by_command.items():
            name = f"{one.name}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
            told.append((name, None if command is None else f"congruency {command}"))
    return told


def _finding(difference: Difference | None, metric: str) -> str:
    if difference is None:
        return "no baseline of the same settings shares a seed with it, so there is no comparison."
    seeds = "1 seed" if difference.count == 1 else f"{difference.count} seeds"
    if not math.isfinite(difference.mean):
        return f"no comparison, for a run ended without {metric}."
    changed = f"{metric} {fixed(difference.mean, 3, sign=True)} against the baseline"
    if difference.mean == 0 and not math.isfinite(difference.p) and difference.count > 1:
        return f"{metric} identical to the baseline's in every one of {seeds}."
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
    count = sum(len(one.runs) for one in groups)
    return Page(
        title=f"Report on {count} run{'' if count == 1 else 's'}",
        lead=f"{_listed([each.method for each in groups])}. Runs that differ in their seeds alone are put together.",
        command=command,
        table=summary(groups),
        findings=[*findings(groups), *left, *left_out(groups), *loaded.messages],
        headline=_switches(drawn) if len(drawn) > 1 else None,
        figures=_figures(drawn),
        figures_note=(
            "Lines: means over seeds. Bands: 95 % intervals, as far as values can be. Point at a chart, or tap it, for "
            "its values."
        ),
        tables=[("What differs", differing(groups))],
        commands=commands(groups),
        notes=_notes(groups),
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d} with Python "
            f"{platform.python_version()}, from run records."
        ),
    )


def _figures(groups: Sequence[Group]) -> list[Figure]:
    """Those that the records have numbers for."""
    made = [
        _chart(curves.by_epoch(groups, name), title, y_label, note, log=name == "error", possible=_possible(name))
        for name, title, y_label, note in _CURVES
    ]
    for name in curves.evaluated(groups):
        title = f"Validation {name.replace('_', ' ')}"
        series = curves.by_epoch(groups, "evaluation", name)
        unit = "% wrong" if "error" in name else name.replace("_", " ")
        made.append(_chart(series, title, unit, "On held-out data.", possible=_possible(name)))
    title, note = "Training error, std within each epoch", "Over the steps of an epoch; then the mean over seeds."
    spread = curves.spread_by_epoch(groups, "error")
    made.insert(2, _chart(spread, title, "% wrong", note, log=True, possible=_NOT_NEGATIVE))
    for epoch in curves.representative(groups):
        title = f"Training error by iteration, epoch {epoch + 1}"
        made.append(_chart(curves.within_epoch(groups, "error", epoch), title, "% wrong", "", "iteration"))
    return [figure for figure in made if figure is not None]


def _chart(
    series: Sequence[Series],
    title: str,
    y_label: str,
    note: str,
    x_label: str = "epoch",
    log: bool = False,
    possible: tuple[float, float] = (-math.inf, math.inf),
) -> Figure | None:
    """None where there is nothing to draw; `log` where all values allow it, as the paper draws training errors."""
    finite = [value for one in series for value in one.y if math.isfinite(value)]
    if not finite:
        return None
    log = log and min(finite) > 0
    if not possible[0] <= min(finite) <= max(finite) <= possible[1]:
        possible = (-math.inf, math.inf)  # a task of its own, that counts otherwise
    chart = line_chart(series, title=title, x_label=x_label, y_label=y_label, log=log, possible=possible)
    return Figure(title, chart, note)


def _possible(name: str) -> tuple[float, float]:
    """The values that a figure can have at all, where that is known; errors are percentages."""
    if "error" in name:
        return 0.0, 100.0
    if "congruency" in name:
        return -1.0, 1.0
    if name == "corrected_share":
        return 0.0, 1.0
    return _NOT_NEGATIVE if name == "loss" or name.startswith("magnitude") else (-math.inf, math.inf)


def _switches(groups: Sequence[Group]) -> Figure:
    """A box for every method that takes its line out of all charts: by its colour, without a script."""
    rules, boxes = [], []
    for place, one in enumerate(groups):
        off = f"main:has(#shown-{place}:not(:checked)) .figures"
        rules.append(f"{off} {{ --series-{place + 1}: transparent; }} {off} .of-{place + 1} {{ display: none; }}")
        boxes.append(
            f'<label><input type="checkbox" id="shown-{place}" checked> '
            f'<span aria-hidden="true" style="color: {colour(place)};">&#9632;</span> {escape(one.name)}</label>'
        )
    rules.append(".card tbody th { white-space: normal; min-width: 8rem; }")  # long names of methods
    rules.append(".switches { border: 0; margin: 0; padding: 0; min-width: 0; }")
    rules.append(".switches label { display: block; padding: 0.4rem 0; }")  # room for a finger
    named = '<fieldset class="switches" aria-label="Methods in the charts">'
    markup = f"<style>{' '.join(rules)}</style>\n{named}{''.join(boxes)}</fieldset>"
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
    ours, theirs = ({run.seed: _last(run, metric) for run in each.runs} for each in (one, base))
    both = [seed for seed in ours if seed in theirs]
    return paired_difference([ours[seed] for seed in both], [theirs[seed] for seed in both]) if both else None


def _told(difference: Difference | None, digits: int) -> str:
    return NOTHING if difference is None else with_margin(difference.mean, difference.margin, digits, sign=True)


def _digits(names: Sequence[str]) -> int:
    """Errors are percentages; scores have the paper's four digits."""
    return 4 if names[0] == "score" else 2 if "error" in names[-1] else 3


def _final(one: Group, metric: Sequence[str]) -> list[float]:
    return [_last(run, metric) for run in one.runs]


def _last(run: Run, metric: Sequence[str]) -> float:
    return run.scores.get(metric[1], math.nan) if metric[0] == "score" else number(run.epochs[-1], *metric)


def _interval(values: Sequence[float], digits: int) -> str:
    estimate = mean_interval(values)
    return with_margin(estimate.mean, estimate.margin, digits)


def _title(names: Sequence[str]) -> str:
    if names[0] == "score":
        return names[-1]
    if names[0] != "evaluation":
        return f"training {names[-1]}"
    return f"test {names[-1].replace('_', ' ')}"


def _epochs(one: Group) -> list[Mapping[str, Any]]:
    return [line for run in one.runs for line in run.epochs]


def _listed(methods: Sequence[str]) -> str:
    names = list(dict.fromkeys(methods))
    text = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return text[0].upper() + text[1:]
