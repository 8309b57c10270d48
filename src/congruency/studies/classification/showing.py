"""What a table of classification came to, as a table, a page and files."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch

import congruency
from congruency.files import write_together
from congruency.report import charts
from congruency.report.numbers import NOTHING, fixed, p_value, with_margin
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table as Cells
from congruency.report.tables import to_markdown
from congruency.studies.classification.jobs import Row, Table
from congruency.studies.classification.recipes import Figure as Printed
from congruency.studies.classification.store import Store
from congruency.studies.statistics import Difference, mean_interval, paired_difference, together

__all__ = ["Results", "collect", "narrow", "show"]

Results = dict[str, dict[str, list[float]]]
"""``{row: {metric: [one value a seed]}}``; the metric ``"seed"`` says which."""

_AT_MOST = 6  # rows in a chart
_ALSO = {"corrected_share": ("corrected, %", 100, 0), "images_per_second": ("images/s", 1, 0)}


@dataclass(frozen=True)
class _Column:
    name: str
    compared: bool
    printed: bool


def collect(table: Table, store: Store) -> Results:
    """The finished trainings, row by row: the seeds that all trainings of a row have been through."""
    finished = store.load()
    results: Results = {}
    for row in table.rows:
        digests = [job.digest() for job in row.jobs]
        seeds = sorted({seed for digest, seed in finished if all((each, seed) in finished for each in digests)})
        if not seeds or not digests:
            continue
        metrics: dict[str, list[float]] = {"seed": [float(seed) for seed in seeds]}
        for job, digest in zip(row.jobs, digests, strict=True):
            runs = [finished[digest, seed] for seed in seeds]
            for column, figure in job.columns.items():
                metrics[column] = [run[figure] for run in runs]
            for name in runs[0]:
                if name not in job.columns.values():
                    metrics[f"{job.label} {name}".strip()] = [run.get(name, math.nan) for run in runs]
        results[row.name] = metrics
    return results


def to_json(results: Results) -> str:
    """The results as JSON: what is not a number is null, seeds are whole numbers."""
    plain = {
        row: {name: [_plain(name, value) for value in values] for name, values in metrics.items()}
        for row, metrics in results.items()
    }
    return json.dumps(plain, indent=1) + "\n"


def _plain(name: str, value: float) -> float | int | None:
    return int(value) if name == "seed" else value if math.isfinite(value) else None


def show(table: Table, results: Results, out: Path, command: str, made: str) -> tuple[Page, list[Path]]:
    """Write ``results.json``, ``index.html`` and ``table.md`` into ``out``."""
    page = compose(table, results, command, made)
    texts = {"results.json": to_json(results), "index.html": render(page), "table.md": _markdown(page)}
    return page, write_together(out, texts)


def compose(table: Table, results: Results, command: str, made: str) -> Page:
    """The page."""
    return Page(
        title=table.title,
        lead=f"{table.lead} Within a seed all rows begin with the same weights and see the same batches.",
        command=command,
        table=summary(table, results),
        findings=findings(table, results),
        figures=_figures(table, results),
        figures_title="Differences",
        figures_note="Dots: seeds. Bars: means of the paired differences and their 95 % intervals.",
        notes=table.notes,
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d}, {made}; the page with PyTorch "
            f"{torch.__version__} and Python {platform.python_version()}. The numbers behind the table are in "
            "results.json beside this page."
        ),
    )


def summary(table: Table, results: Results) -> Cells:
    """One line a row: every column with its paired difference, and the paper's number where it has one."""
    columns = _columns(table, results)
    also = [name for name in _ALSO if any(name in metrics for metrics in results.values())]
    header = ["Row", "Seeds"]
    for column in columns:
        header += [column.name, *(["against"] * column.compared), *(["paper"] * column.printed)]
    header += [_ALSO[name][0] for name in also]
    shown = [row for row in table.rows if row.name in results or not row.jobs]
    lines = [_line(row, columns, also, results, _digits(table.unit)) for row in shown]
    caption = f"Columns: {table.unit}. Means over the seeds, ± their 95 % intervals."
    if any(column.compared for column in columns):
        caption += (
            " Against: the paired difference to the plain training of the same network, seed by seed, with the p of "
            "the t-test."
        )
    return Cells(caption, header, lines)


def _columns(table: Table, results: Results) -> list[_Column]:
    names = dict.fromkeys(name for row in table.rows for name in row.columns)
    compared = any(row.against in results and row.name in results for row in table.rows)
    return [
        _Column(name, compared and not name.endswith("params"), any(name in row.paper for row in table.rows))
        for name in names
    ]


def _line(row: Row, columns: Sequence[_Column], also: Sequence[str], results: Results, digits: int) -> list[str]:
    metrics = results.get(row.name, {})
    line = [row.name, str(len(metrics.get("seed", [])))]
    for column in columns:
        estimate = mean_interval(metrics.get(column.name, []))
        line.append(with_margin(estimate.mean, estimate.margin, digits))
        if column.compared:
            line.append(_told(_difference(row, results, column.name), digits))
        if column.printed:
            line.append(_printed(row.paper.get(column.name)))
    for name in also:
        _, scale, places = _ALSO[name]
        line.append(fixed(scale * mean_interval(metrics.get(name, [])).mean, places))
    return line


def _digits(unit: str) -> int:
    """A network for small images costs fractions of a millisecond."""
    return 2 if "%" in unit else 4


def _told(difference: Difference | None, digits: int) -> str:
    if difference is None or not math.isfinite(difference.mean):
        return NOTHING
    text = with_margin(difference.mean, difference.margin, digits, sign=True)
    return f"{text} (p {p_value(difference.p)})" if math.isfinite(difference.p) else text


def _printed(figure: Printed | None) -> str:
    if figure is None:
        return NOTHING
    return f"{figure[0]:.2f} (sd {figure[1]:.2f})" if isinstance(figure, tuple) else f"{figure:.2f}"


def _difference(row: Row, results: Results, column: str) -> Difference | None:
    """Over the seeds that both have."""
    pair = _paired(row, results, column)
    return None if pair is None else paired_difference(*pair)


def _paired(row: Row, results: Results, column: str) -> tuple[list[float], list[float]] | None:
    if row.against not in results or row.name not in results:
        return None
    own, other = (_by_seed(results[name], column) for name in (row.name, row.against))
    both = sorted(own.keys() & other.keys())
    return ([own[seed] for seed in both], [other[seed] for seed in both]) if both else None


def _by_seed(metrics: Mapping[str, list[float]], column: str) -> dict[float, float]:
    return dict(zip(metrics["seed"], metrics[column], strict=True)) if column in metrics else {}


def findings(table: Table, results: Results) -> list[str]:
    """A sentence for every comparison that could be made, and one on all of them; none where the table has none."""
    if all(row.against is None for row in table.rows):
        return []
    told, ps = [], []
    for row in table.rows:
        parts = []
        for column in (column.name for column in _columns(table, results) if column.compared):
            difference = _difference(row, results, column)
            if difference is not None and math.isfinite(difference.p):
                parts.append(_finding(column, difference, table.unit))
                ps.append(difference.p)
        if parts:
            told.append(f"{row.name}, against {row.against}: {'; '.join(parts)}.")
    if len(ps) > 1:
        told.append(together(ps))
    return told or ["Too few seeds, or rows, to compare anything; run more of them."]


def _unit(table: Table) -> str:
    """Of differences."""
    return "points" if "%" in table.unit else table.unit


def _finding(column: str, difference: Difference, unit: str) -> str:
    points = " points" if "%" in unit else " ms"
    if difference.p < 0.05:
        way = "rises" if difference.mean > 0 else "falls"
        size = fixed(abs(difference.mean), _digits(unit))
        return f"{column} {way} by {size}{points} (p {p_value(difference.p)})"
    return f"{column} shows no clear change (p {p_value(difference.p)})"


def _figures(table: Table, results: Results) -> list[Figure]:
    made = []
    for column in (column.name for column in _columns(table, results) if column.compared):
        pairs = [(row, _paired(row, results, column)) for row in table.rows]
        samples = [_sample(row, pair) for row, pair in pairs if pair is not None and len(pair[0]) > 1]
        for part in _evenly(samples):
            chart = charts.strip_chart(part, title=column, x_label=f"difference, {_unit(table)}")
            made.append(Figure(f"{column}, against the plain training", chart))
    return made


def _evenly(samples: Sequence[charts.Sample]) -> list[Sequence[charts.Sample]]:
    """As few parts as will do, of about the same length."""
    count = math.ceil(len(samples) / _AT_MOST)
    each = math.ceil(len(samples) / max(1, count))
    return [samples[part * each : (part + 1) * each] for part in range(count)]


def _sample(row: Row, pair: tuple[list[float], list[float]]) -> charts.Sample:
    difference = paired_difference(*pair)
    values = [own - other for own, other in zip(*pair, strict=True)]
    return charts.Sample(row.name, values, difference.mean, difference.margin)


def narrow(cells: Cells) -> str:
    """The table for a terminal that is too narrow for it: a paragraph a row."""
    paragraphs = []
    for row in cells.rows:
        told = [f"{name}: {cell}" for name, cell in zip(cells.columns[1:], row[1:], strict=True) if cell != NOTHING]
        paragraphs.append("\n    ".join([row[0], *_filled(told)]))
    return "\n".join([*paragraphs, "", cells.caption])


def _filled(parts: Sequence[str], width: int = 74) -> list[str]:
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f"; {part}"
        else:
            lines.append(part)
    return lines


def _markdown(page: Page) -> str:
    told = "\n".join(f"- {text}" for text in page.findings)
    parts = (f"# {page.title}", page.lead, f"    {page.command}", to_markdown(page.table), told, page.made)
    return "\n\n".join(filter(None, parts)) + "\n"
