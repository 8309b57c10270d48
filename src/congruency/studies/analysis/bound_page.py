"""``congruency bound``: where Theorem 1 is tight and where it says nothing, as a table and a page."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import torch

import congruency
from congruency.files import write_together
from congruency.measure.bound import BoundForm
from congruency.report.charts import Series, line_chart
from congruency.report.numbers import fixed
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table
from congruency.studies.analysis.bounds import FORMS, Comparison, Problem

__all__ = ["compose", "findings", "summary", "write"]

Results = Mapping[str, tuple[Problem, Sequence[Comparison]]]

_TIGHT = 0.05
_SHOWN = (0.1, 0.5, 1.0, 1.5)  # the step sizes, times L, nearest to which curves are drawn
_TOP = 1.5  # what the printed form says above this is not drawn: no cosine is there


def summary(results: Results) -> Table:
    """One line a problem and step size."""
    rows = []
    for problem, comparisons in results.values():
        for one in comparisons:
            empty = one.vacuous_from()
            rows.append([
                f"{problem.name}, {one.relative:g} / L", fixed(float(one.measured.nanmean()), 3),
                fixed(float(one.bounds["sharp"].nanmean()), 3), fixed(one.gap(), 3), str(one.tight_for(_TIGHT)),
                "never" if empty is None else str(empty), fixed(one.broken("printed"), 0),
            ])  # fmt: skip
    caption = (
        f"Measured, sharp bound and gap: means over the iterations. Tight for: so many first iterations the bound is "
        f"within {_TIGHT:g} of the measured congruency. Vacuous from: the first iteration in which the bound is -1, "
        "which no cosine can be below anyway. Printed broken: the share of the iterations in which the congruency lies "
        "below what the theorem as printed says it cannot fall below."
    )
    columns = [
        "Problem, step size", "Measured", "Sharp bound", "Gap", "Tight for", "Vacuous from", "Printed broken, %",
    ]  # fmt: skip
    return Table(caption, columns, rows)


def findings(results: Results) -> list[str]:
    """Where the bounds hold, where they are tight and where vacuous, from the numbers."""
    return [*_validity(results), *(_reach(problem, chosen) for problem, chosen in results.values())]


def _reach(problem: Problem, comparisons: Sequence[Comparison]) -> str:
    parts = []
    for one in _chosen(comparisons):
        count, empty = one.tight_for(_TIGHT), one.vacuous_from()
        tight = "never tight" if count == 0 else f"tight for {count} iteration{'' if count == 1 else 's'}"
        parts.append(f"{one.relative:g} / L: {tight}, {'never vacuous' if empty is None else f'vacuous from {empty}'}")
    return f"The sharp bound on the {problem.name} problem, by step size. {'; '.join(parts)}."


def _validity(results: Results) -> list[str]:
    every = [one for _, comparisons in results.values() for one in comparisons]
    must: tuple[BoundForm, ...] = ("sharp", "expanded")
    sound = [form for form in must if not any(one.broken(form) for one in every)]
    broken = [one for one in every if one.broken("printed")]
    over = [one for one in every if bool((one.bounds["printed"] > 1).any())]
    first = {
        2: "The sharp and the expanded bound held at every iteration.",
        1: f"Of the two bounds that must hold, only the {sound[0]} one did: report this." if sound else "",
        0: "Neither the sharp nor the expanded bound held everywhere: report this.",
    }[len(sound)]
    second = (
        f"The theorem as printed was broken with {len(broken)} of {len(every)} step sizes, and asked for a congruency "
        f"above 1 with {len(over)}."
    )
    return [first, second]


def compose(results: Results, steps: int, command: str) -> Page:
    """The page."""
    figures = [_against_step(results, kind) for kind in ("gap", "vacuous")]
    for problem, comparisons in results.values():
        figures += [_curves(problem, one) for one in _chosen(comparisons)]
    return Page(
        title="How much Theorem 1 promises",
        lead=(
            f"Gradient descent with a fixed step for {steps} iterations, on functions whose Lipschitz constant L is "
            "known: the congruency of every gradient with the sum of those before it, and what the theorem says it "
            "cannot fall below."
        ),
        command=command,
        table=summary(results),
        findings=findings(results),
        figures=figures,
        figures_note="Point at a chart for its values.",
        notes=[*_NOTES, *((problem.name, problem.description + ".") for problem, _ in results.values())],
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d} with PyTorch "
            f"{torch.__version__} and Python {platform.python_version()}, in float64."
        ),
    )


_NOTES = (
    (
        "Sharp, expanded, printed",
        "Three steps of the paper's proof. Sharp: its first inequality. Expanded: after the sum of gradients is "
        "expanded, weaker and still sound. Printed: the theorem, whose last simplification does not hold for gradients "
        "that agree; two equal ones already make it promise a cosine of nearly 2.",
    ),
    ("1 / L", "The step size below which gradient descent on such a function never overshoots along any axis."),
)


def _against_step(results: Results, kind: str) -> Figure:
    series = []
    for problem, comparisons in results.values():
        x = [one.relative for one in comparisons]
        y = [one.gap("sharp") if kind == "gap" else one.vacuous("sharp") for one in comparisons]
        series.append(Series(problem.name, x, y))
    if kind == "gap":
        title, y_label, note = "Gap of the sharp bound", "measured less bound", "0: tight."
    else:
        title, y_label, note = "Where the sharp bound is vacuous", "% of iterations", "100: it says nothing at all."
    return Figure(title, line_chart(series, title=title, x_label="step size times L", y_label=y_label), note)


def _curves(problem: Problem, one: Comparison) -> Figure:
    x = list(range(1, len(one.measured) + 1))
    series = [Series("measured", x, one.measured.tolist())]
    for form in FORMS:
        values = one.bounds[form]
        series.append(Series(form, x, values.where(values <= _TOP, torch.nan).tolist()))
    title = f"{problem.name[0].upper()}{problem.name[1:]}, step {one.relative:g} / L"
    chart = line_chart(series, title=title, x_label="iteration", y_label="congruency")
    hidden = int((one.bounds["printed"] > _TOP).sum())
    note = f"The printed form is above {_TOP:g} in {hidden} of {len(x)} iterations, and not drawn there."
    return Figure(title, chart, note if hidden else "")


def _chosen(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those nearest to the step sizes worth a chart, each once."""
    nearest = [min(comparisons, key=lambda one: abs(one.relative - wanted)) for wanted in _SHOWN]
    return list({one.relative: one for one in nearest}.values())


def to_json(results: Results) -> str:
    """Every number."""
    content = {
        problem.name: {
            "lipschitz": problem.lipschitz,
            "steps": [
                {
                    "step_times_lipschitz": one.relative,
                    "measured": _numbers(one.measured),
                    **{form: _numbers(values) for form, values in one.bounds.items()},
                }
                for one in comparisons
            ],
        }
        for problem, comparisons in results.values()
    }
    return json.dumps(content) + "\n"


def _numbers(values: torch.Tensor) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def write(results: Results, steps: int, out: Path, command: str) -> list[Path]:
    """``index.html`` and ``results.json`` into a folder."""
    page = compose(results, steps, command)
    return write_together(out, {"index.html": render(page), "results.json": to_json(results)})
