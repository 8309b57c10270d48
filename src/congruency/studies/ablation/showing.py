"""What an ablation came to, as a table, a page and files."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import torch

import congruency
from congruency.files import write_together
from congruency.report.numbers import NOTHING, fixed, p_value, with_margin
from congruency.report.page import Page, render
from congruency.report.tables import Table as Cells
from congruency.report.tables import to_markdown
from congruency.studies.ablation.comparisons import Comparison, comparisons
from congruency.studies.ablation.curves import curves
from congruency.studies.ablation.grid import BASELINE, Cell
from congruency.studies.ablation.runs import Failure
from congruency.studies.classification.jobs import Row, Table
from congruency.studies.classification.showing import Results, to_json
from congruency.studies.statistics import mean_interval

__all__ = ["compose", "findings", "show", "summary"]

Failed = Mapping[str, Mapping[str, Failure]]
_CLEAR = 0.05


def show(
    table: Table, grid: Sequence[Cell], results: Results, failed: Failed, out: Path, command: str, made: str
) -> tuple[Page, list[Path]]:
    """Write ``results.json``, ``index.html`` and ``table.md`` into ``out``."""
    page = compose(table, grid, results, failed, command, made)
    texts = {"results.json": to_json(results), "index.html": render(page), "table.md": _markdown(page)}
    return page, write_together(out, texts)


def compose(table: Table, grid: Sequence[Cell], results: Results, failed: Failed, command: str, made: str) -> Page:
    """The page."""
    compared = comparisons(table, results, {cell.name for cell in grid if cell.never_corrects})
    columns = list(dict.fromkeys(name for row in table.rows for name in row.columns))
    return Page(
        title=table.title,
        lead=f"{table.lead} Within a seed all cells begin with the same weights and see the same batches.",
        command=command,
        table=summary(table, results, failed, compared),
        findings=findings(table, grid, results, failed, compared),
        figures=curves(grid, results, columns),
        figures_note="Dots: means over the seeds; bars: their 95 % intervals. Grey: the baseline and its interval. "
        "Hovering over a place tells its values.",
        notes=table.notes,
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d}, {made}, with PyTorch "
            f"{torch.__version__} and Python {platform.python_version()}. results.json beside this page holds one "
            "value a seed."
        ),
    )


def summary(table: Table, results: Results, failed: Failed, compared: Sequence[Comparison]) -> Cells:
    """One line a cell: every column with its paired difference; a cell that failed says so."""
    found = {(one.cell, one.column): one for one in compared}
    columns = list(dict.fromkeys(name for row in table.rows for name in row.columns))
    header = ["Cell", "Seeds"]
    for column in columns:
        header += [column, *(["against", "p", "Holm's p"] if compared else [])]
    lines = [_line(row, columns, results, failed, found) for row in table.rows]
    caption = f"Columns: {table.unit}. Means over the seeds, ± their 95 % intervals."
    if compared:
        caption += (
            " Against: the paired difference to the baseline, seed by seed, and the p of its t-test; Holm's p: "
            f"corrected for all {_count(compared)} comparisons."
        )
    return Cells(caption, [*header, "corrected, %"], lines)


def _line(
    row: Row,
    columns: Sequence[str],
    results: Results,
    failed: Failed,
    found: Mapping[tuple[str, str], Comparison],
) -> list[str]:
    metrics, lost = results.get(row.name, {}), len(failed.get(row.name, {}))
    seeds = str(len(metrics.get("seed", [])))
    line = [row.name, f"{seeds}, {lost} failed" if lost else seeds]
    for column in columns:
        estimate = mean_interval(metrics.get(column, []))
        line.append(with_margin(estimate.mean, estimate.margin))
        if found:
            line += _compared(found.get((row.name, column)))
    shares = [value for name, values in metrics.items() if name.endswith("corrected_share") for value in values]
    line.append(fixed(100 * mean_interval(shares).mean, 0))
    return line


def _compared(one: Comparison | None) -> list[str]:
    if one is None:
        return [NOTHING] * 3
    difference = one.difference
    return [with_margin(difference.mean, difference.margin, sign=True), p_value(one.p), p_value(one.adjusted)]


def findings(
    table: Table, grid: Sequence[Cell], results: Results, failed: Failed, compared: Sequence[Comparison]
) -> list[str]:
    """What the comparisons say, together; which cells could say nothing; what failed."""
    told = _clear_ones(compared)
    idle = [cell.name for cell in grid if cell.never_corrects]
    if idle:
        told.append(
            f"Never corrected, because the window is over before all references are recorded: {'; '.join(idle)}. Such "
            "a training is the baseline's, and is not counted as a comparison."
        )
    for row in table.rows:
        for which, failure in failed.get(row.name, {}).items():
            told.append(f"Failed: {row.name}, {which}: {failure.line} (failed.json has more; the command tries again).")
    again = sum(
        max(0.0, lives - 1)
        for metrics in results.values()
        for name, values in metrics.items()
        if name.endswith("attempts")
        for lives in values
    )
    if again:
        told.append(f"{again:.0f} time(s) a run was taken up again from its checkpoint after it was cut short.")
    return told


def _clear_ones(compared: Sequence[Comparison]) -> list[str]:
    count = _count(compared)
    if not count:
        return ["Nothing could be compared: that needs the baseline, and two seeds or more that differ."]
    clear = [one for one in compared if one.p < _CLEAR]
    higher = sum(one.difference.mean > 0 for one in clear)
    ways = f", {higher} of them higher and {len(clear) - higher} lower" if clear else ""
    first = (
        f"{count} comparisons with the {BASELINE}. {len(clear)} show p < {_CLEAR:g}{ways} (about {_CLEAR * count:.1g} "
        f"would by chance alone){_listed(clear)}."
    )
    left = [one for one in compared if one.adjusted < _CLEAR]
    if not left:
        return [first, f"After Holm's correction for all {count}, no cell differs clearly from the {BASELINE}."]
    names = "; ".join(f"{one.cell} ({one.column}, p {p_value(one.adjusted)})" for one in left)
    return [first, f"After Holm's correction for all {count}, {len(left)} differ clearly: {names}."]


def _listed(clear: Sequence[Comparison]) -> str:
    """Their differences in points, by what the cells have in common."""
    groups: dict[str, list[str]] = {}
    for one in clear:
        name, _, variant = one.cell.partition(", ")
        told = f"{name} {fixed(one.difference.mean, sign=True)} (p {p_value(one.p)})"
        groups.setdefault(f"{one.column}, {variant}", []).append(told)
    return "".join(f"; {group}: {', '.join(members)}" for group, members in groups.items())


def _count(compared: Sequence[Comparison]) -> int:
    """Those that have a p."""
    return sum(one.p >= 0 for one in compared)


def _markdown(page: Page) -> str:
    told = "\n".join(f"- {text}" for text in page.findings)
    table = to_markdown(page.table)
    return f"# {page.title}\n\n{page.lead}\n\n    {page.command}\n\n{table}\n\n{told}\n\n{page.made}\n"
