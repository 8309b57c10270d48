"""``congruency ablate``: DCL over a grid of windows, references, modes, margins and scopes, with curves (Figure 9)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from congruency.constraints.references import Mode
from congruency.report import charts
from congruency.report.page import Figure
from congruency.studies.ablation.bases import Base
from congruency.studies.classification.grids import CONSTRAINT_NOTES, CORRECTED_NOTE, TEST_ERROR
from congruency.studies.classification.jobs import ImageJob, extras, settings_of
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import Results
from congruency.studies.statistics import mean_interval
from congruency.studies.store import RunResult
from congruency.training.config import Correction, Scope

__all__ = ["BASELINE", "MARGINS", "Axes", "Cell", "ablation_study", "cells", "curves"]

BASELINE = "baseline"
MARGINS: dict[Mode, float] = {"concentrate": 0.0, "anchor": 0.5}
"""The margin of each mode where none is given: the paper's equations, and its published code."""

Variant = tuple[Mode, float, Scope]
"""What stays the same along a curve: mode, margin and scope."""

_LINES_PER_CHART = 5  # beside the baseline: there are no more colours
_NOTES = (
    *CONSTRAINT_NOTES,
    (
        "Against, p",
        "The paired difference to the baseline, seed by seed (same initial weights, same batches), its 95 % interval "
        "and the p-value of the t-test. Holm's p is the same after correction for all comparisons of the table: below "
        "0.05 it would stay clear however many rows were looked at.",
    ),
    CORRECTED_NOTE,
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One choice of DCL's settings.

    Attributes:
        window: beta_w, None for infinity.
        references: N_r.
        mode: the paper's equations, or its published code, which records a reference after the step (offset 1).
    """

    window: int | None
    references: int
    mode: Mode = "concentrate"
    margin: float = 0.0
    scope: Scope = "head"

    @property
    def name(self) -> str:
        """As the paper writes it, with what it does not say."""
        return f"DCL-{_window_name(self.window)}-{self.references}, {_variant_name(self.variant)}"

    @property
    def variant(self) -> Variant:
        return self.mode, self.margin, self.scope

    @property
    def method(self) -> Correction:
        """The same, for the training loop."""
        return Correction(
            name="dcl",
            scope=self.scope,
            references=self.references,
            window=self.window,
            offset=int(self.mode == "anchor" and self.window != 1),  # a window of one step has no room for an offset
            mode=self.mode,
            margin=self.margin,
        )

    @property
    def inactive(self) -> str:
        """Why no step is corrected, where that is so; else empty."""
        never = self.window is not None and self.window <= self.references
        return "the window is over before all references are recorded" if never else ""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The values of the grid; every combination is a cell.

    Attributes:
        windows: None for infinity.
        margins: of DCL; None takes that of each mode, :data:`MARGINS`.
        baseline: train without DCL too, to compare with.
    """

    windows: tuple[int | None, ...] = (5, 10, 20, 50, None)
    references: tuple[int, ...] = (1, 2, 3, 5)
    modes: tuple[Mode, ...] = ("concentrate",)
    margins: tuple[float, ...] | None = None
    scopes: tuple[Scope, ...] = ("head",)
    baseline: bool = True

    def __post_init__(self) -> None:
        for name, known in (("modes", Mode), ("scopes", Scope)):
            unknown = [value for value in getattr(self, name) if value not in get_args(known)]
            if unknown:
                raise ValueError(f"{name[:-1]} must be one of {', '.join(get_args(known))}, got {unknown[0]!r}")
        for name in ("windows", "references", "modes", "scopes"):
            if not getattr(self, name):
                raise ValueError(f"a grid needs at least one of its {name}")


def cells(axes: Axes) -> list[Cell]:
    """Return every combination once: references within windows within scopes, modes and margins."""
    variants = [
        (mode, margin, scope)
        for scope in axes.scopes
        for mode in axes.modes
        for margin in (axes.margins or (MARGINS[mode],))
    ]
    made = (
        Cell(window=window, references=references, mode=mode, margin=margin, scope=scope)
        for (mode, margin, scope), window, references in itertools.product(variants, axes.windows, axes.references)
    )
    return list(dict.fromkeys(made))


def ablation_study(base: Base, axes: Axes) -> Study[ImageJob]:
    """Return the study: the base's runs without correction, and with that of every cell."""
    plain = [Row(name=BASELINE, jobs=base.jobs, settings=settings_of(base.jobs))] if axes.baseline else []
    rows = (*plain, *(_row(base, cell, BASELINE if axes.baseline else None) for cell in cells(axes)))
    keys = dict.fromkeys(key for job in base.jobs for key in job.columns)
    return Study(
        name="ablation",
        title=f"DCL by its window and reference points: {base.title}",
        lead=f"{base.lead} Within a seed all rows begin with the same weights and see the same batches.",
        rows=rows,
        columns=tuple(TEST_ERROR if key == TEST_ERROR.key else Column(key=key, title=f"{key}, %") for key in keys),
        notes=_NOTES,
        extras=tuple(column for column in extras(rows) if column.scale != 1),
        holm=True,
    )


def _row(base: Base, cell: Cell, against: str | None) -> Row[ImageJob]:
    jobs = tuple(replace(job, method=cell.method) for job in base.jobs)
    return Row(name=cell.name, jobs=jobs, against=against, settings=settings_of(jobs), inactive=cell.inactive)


def _window_name(window: int | None) -> str:
    return "inf" if window is None else str(window)


def _variant_name(variant: Variant) -> str:
    mode, margin, scope = variant
    return f"{mode}, margin {margin:g}, {scope}"


def curves(
    study: Study[ImageJob], results: Results, finished: Mapping[tuple[str, int], RunResult]
) -> tuple[list[Figure], str]:
    """Return charts of every column and variant, by window and by number of references, and how to read them."""
    made = []
    rows = study.find(method="dcl")
    for column in study.columns:
        for variant in dict.fromkeys(_variant(row) for row in rows):
            chosen = [row for row in rows if _variant(row) == variant]
            windows = sorted({row.settings["window"] for row in chosen}, key=lambda w: math.inf if w is None else w)
            counts = sorted({row.settings["references"] for row in chosen})
            by_cell = {(row.settings["window"], row.settings["references"]): row.name for row in chosen}
            by_window = {
                "1 reference" if count == 1 else f"{count} references": [by_cell.get((w, count)) for w in windows]
                for count in counts
            }
            by_count = {f"window {_window_name(w)}": [by_cell.get((w, count)) for count in counts] for w in windows}
            of = f": {_variant_name(variant)}"
            names = [_window_name(window) for window in windows]
            made += _charts(by_window, results, column, names, "window, steps", f"by window{of}")
            made += _charts(by_count, results, column, list(map(str, counts)), "reference points", f"by references{of}")
    note = (
        "Dots: means over the seeds; bars: their 95 % intervals. Grey: the baseline and its interval. Hover over a "
        "point to see its values."
    )
    return made, note


def _variant(row: Row[ImageJob]) -> Variant:
    return row.settings["mode"], row.settings["margin"], row.settings["scope"]


def _charts(
    lines: dict[str, list[str | None]], results: Results, column: Column, places: Sequence[str], x_label: str, by: str
) -> list[Figure]:
    """One chart, or several where there are more lines than colours."""
    named = list(lines.items())
    title = f"{column.heading.partition(',')[0]} {by}"
    plain = mean_interval(results.get(BASELINE, {}).get(column.key, []))
    count = len(places)
    band = charts.Series(BASELINE, list(range(count)), [plain.mean] * count, [plain.margin] * count)
    return [
        Figure(
            title,
            charts.line_chart(
                [band, *(_line(name, rows, results, column) for name, rows in named[start : start + _LINES_PER_CHART])],
                title=title, x_label=x_label, y_label=column.heading, x_names=places, possible=(0.0, 100.0),
            ),
        )
        for start in range(0, len(named), _LINES_PER_CHART)
    ]  # fmt: skip


def _line(name: str, rows: Sequence[str | None], results: Results, column: Column) -> charts.Series:
    found = [mean_interval(results.get(row or "", {}).get(column.key, [])) for row in rows]
    return charts.Series(
        name, list(range(len(rows))), [one.mean for one in found], [one.margin for one in found], bars=True
    )
