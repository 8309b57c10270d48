"""The curves of an ablation (the paper's Figure 9): what is measured, by window and by number of reference points."""

from __future__ import annotations

import math
from collections.abc import Sequence

from congruency.report import charts
from congruency.report.page import Figure
from congruency.studies.ablation.grid import BASELINE, Cell, Variant, variant_name, window_name
from congruency.studies.classification.showing import Results
from congruency.studies.statistics import mean_interval

__all__ = ["curves"]

_AT_MOST = 5  # lines beside the baseline in a chart: there are no more colours


def curves(grid: Sequence[Cell], results: Results, columns: Sequence[str]) -> list[Figure]:
    """For every column and variant: against the window for each number of references, and the other way round."""
    made = []
    for column in columns:
        for variant in dict.fromkeys(cell.variant for cell in grid):
            chosen = [cell for cell in grid if cell.variant == variant]
            made += _by_window(chosen, results, column, variant)
            made += _by_references(chosen, results, column, variant)
    return made


def _by_window(grid: Sequence[Cell], results: Results, column: str, variant: Variant) -> list[Figure]:
    windows = sorted({cell.window for cell in grid}, key=lambda window: math.inf if window is None else window)
    lines = {_counted(count): [_cell(grid, window, count) for window in windows] for count in _references(grid)}
    names = [window_name(window) for window in windows]
    return _charts(lines, results, column, names, "window, steps", f"by window: {variant_name(variant)}")


def _by_references(grid: Sequence[Cell], results: Results, column: str, variant: Variant) -> list[Figure]:
    windows = sorted({cell.window for cell in grid}, key=lambda window: math.inf if window is None else window)
    counts = _references(grid)
    lines = {f"window {window_name(window)}": [_cell(grid, window, count) for count in counts] for window in windows}
    names = [str(count) for count in counts]
    return _charts(lines, results, column, names, "reference points", f"by references: {variant_name(variant)}")


def _charts(
    lines: dict[str, list[Cell | None]],
    results: Results,
    column: str,
    places: Sequence[str],
    x_label: str,
    by: str,
) -> list[Figure]:
    """One chart, or several where there are more lines than colours."""
    named = list(lines.items())
    made = []
    for start in range(0, len(named), _AT_MOST):
        part = [_line(name, of, results, column) for name, of in named[start : start + _AT_MOST]]
        chart = charts.line_chart(
            [_baseline(results, column, len(places)), *part],
            title=f"{column} {by}",
            x_label=x_label,
            y_label=f"{column}, %",
            x_names=places,
            possible=(0.0, 100.0),
        )
        made.append(Figure(f"{column} {by}", chart))
    return made


def _line(name: str, of: Sequence[Cell | None], results: Results, column: str) -> charts.Series:
    found = [mean_interval([] if cell is None else results.get(cell.name, {}).get(column, [])) for cell in of]
    places = list(range(len(of)))
    return charts.Series(name, places, [one.mean for one in found], [one.margin for one in found], bars=True)


def _baseline(results: Results, column: str, places: int) -> charts.Series:
    """A band across the chart."""
    found = mean_interval(results.get(BASELINE, {}).get(column, []))
    return charts.Series(BASELINE, list(range(places)), [found.mean] * places, [found.margin] * places)


def _references(grid: Sequence[Cell]) -> list[int]:
    return sorted({cell.references for cell in grid})


def _counted(count: int) -> str:
    return "1 reference" if count == 1 else f"{count} references"


def _cell(grid: Sequence[Cell], window: int | None, references: int) -> Cell | None:
    return next((cell for cell in grid if (cell.window, cell.references) == (window, references)), None)
