"""Benchmark results as tables, at most 80 columns wide, and as a page with charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from congruency.report import charts
from congruency.report.page import Figure, Page
from congruency.report.tables import Table

Result = dict[str, Any]  # returned by studies.bench.measure
Row = dict[str, Any]


def tables(result: Result) -> list[tuple[str, Table]]:
    """Return the non-empty tables of one device with their titles."""
    made = []
    for what, title, caption, columns, cells in _TABLES:
        rows = [cells(row) for row in result[what] if cells(row)]
        if rows:
            made.append((title, Table(caption, columns, rows)))
    return made


def page(results: Sequence[Result]) -> Page:
    """Return a page of all devices: cost by the number of parameters and of references, then the tables."""
    listed = [(f"{_where(result)}: {title}", table) for result in results for title, table in tables(result)]
    machines = [[_where(r), r["machine"]["torch"], *_rates(r)] for r in results]
    figures = []
    for result in results:
        figures += [figure for figure in (_by_size(result), _by_references(result)) if figure is not None]
    return Page(
        title="What a correction costs",
        lead="One correction of all parameters beside the optimizer's own step and beside the time that moving the "
        "memory alone takes, and what it adds to whole training steps.",
        command=results[0]["command"],
        table=Table("Where it was measured.", ("machine", "torch", "reading, GB/s", "adding, GB/s"), machines),
        findings=(),
        figures=figures,
        figures_title="Cost against size and references",
        tables=listed,
        notes=(
            ("left alone", "A step whose gradient agrees: one pass that reads."),
            ("rewritten", "The worst case: the gradient is changed in every step, in a second pass."),
            ("limit", "The time that moving the memory alone takes, as a share of the time measured."),
        ),
    )


def _by_size(result: Result) -> Figure | None:
    rows = [row for row in result["corrections"] if row["workload"] == "one tensor"]
    sizes = sorted({row["parameters"] for row in rows})
    counts = sorted({row["references"] for row in rows})
    if len(sizes) < 2:
        return None
    return _figure(
        result, "Cost against size", "parameters", [_size(size) for size in sizes],
        [(f"{n} reference{'s' * (n > 1)}", [_find(rows, size, n) for size in sizes]) for n in counts],
    )  # fmt: skip


def _by_references(result: Result) -> Figure | None:
    rows = [row for row in result["corrections"] if row["workload"] == "one tensor"]
    counts = sorted({row["references"] for row in rows})
    sizes = [size for size in sorted({row["parameters"] for row in rows}) if _find(rows, size, counts[-1])]
    if len(counts) < 2:
        return None
    return _figure(
        result, "Cost against references", "references", [str(n) for n in counts],
        [(f"{_size(size)} parameters", [_find(rows, size, n) for n in counts]) for size in sizes],
    )  # fmt: skip


def _figure(
    result: Result, title: str, x_label: str, names: Sequence[str], lines: Sequence[tuple[str, Sequence[Row | None]]]
) -> Figure:
    """Draw the time of a correction that rewrites the gradient, in units of an SGD-momentum step."""
    series = [
        charts.Series(
            name,
            list(range(len(names))),
            [float("nan") if row is None else row["corrected"] / row["sgd_step"] for row in rows],
        )
        for name, rows in lines
    ]
    title = f"{title}, {_where(result)}"
    chart = charts.line_chart(series, title=title, x_label=x_label, y_label="SGD steps", log=True, x_names=names)
    return Figure(title, chart, "A correction that rewrites the gradient, beside an SGD-momentum step.")


def _find(rows: Sequence[Row], parameters: int, references: int) -> Row | None:
    found = [row for row in rows if (row["parameters"], row["references"]) == (parameters, references)]
    return found[0] if found else None


def _where(result: Result) -> str:
    machine = result["machine"]
    name: str = machine["gpu"] or f"{machine['processor']}, {machine['threads']} threads"
    return name


def _rates(result: Result) -> list[str]:
    """Memory rates in GB/s: of reading, and of an in-place addition."""
    return [f"{result[name] / 1e9:.0f}" for name in ("reading_bytes_per_second", "bandwidth_bytes_per_second")]


def _limit_cells(row: Row) -> list[str]:
    return [
        row["workload"], _size(row["parameters"]), str(row["references"]),
        _duration(row["congruent"]), f"{row['congruent_limit'] / row['congruent']:.0%}",
        _duration(row["corrected"]), f"{row['memory_limit'] / row['corrected']:.0%}",
    ]  # fmt: skip


def _step_cells(row: Row) -> list[str]:
    sgd = row["sgd_step"]
    return [
        row["workload"], _size(row["parameters"]), str(row["references"]), _duration(sgd),
        f"{row['congruent'] / sgd:.2f}", f"{row['corrected'] / sgd:.2f}",
    ]  # fmt: skip


def _meter_cells(row: Row) -> list[str]:
    times = [f"{row[name] / row['sgd_step']:.2f}" for name in ("update", "beside")]
    limit = f"{row['memory_limit'] / row['update']:.0%}"
    return [row["workload"], _size(row["parameters"]), _duration(row["update"]), limit, *times]


def _update_cells(row: Row) -> list[str]:
    base = row["adamw_step"]
    ratios = [row[name] and f"{row[name] / base:.2f}" for name in ("cautious", "timm_cautious", "dcl_update")]
    return [row["workload"], _size(row["parameters"]), _duration(base), *(ratio or "-" for ratio in ratios)]


def _training_cells(row: Row) -> list[str]:
    more = row["step_with_dcl"] - row["step"]
    return [
        _network(row), row["scope"], _correction(row), row["mode"],
        _duration(row["step"]), f"{more / row['step']:+.1%}", f"{more / row['sgd_step']:.2f}",
    ]  # fmt: skip


def _host_cells(row: Row) -> list[str]:
    host, launches = row["host"], row["launches"]
    if launches is None:
        return []
    return [
        _network(row), row["scope"], _correction(row), row["mode"],
        *(("-", "-") if host is None else (f"{1e6 * host[0]:.0f}", f"{1e6 * (host[1] - host[0]):+.0f}")),
        f"{launches[0]:.0f}", f"{launches[1] - launches[0]:+.0f}",
    ]  # fmt: skip


def _network(row: Row) -> str:
    """The network's name; a long one shows only the first and the last width."""
    name: str = row["network"].partition(",")[0]
    widths = name.split("-")
    return f"{widths[0]}-..-{widths[-1]}" if len(name) > _LONGEST_NAME else name


def _correction(row: Row) -> str:
    """The correction's name, for DCL with the number of references."""
    name: str = row["correction"]
    return f"{name} {row['references']}" if name == "DCL" else name


def _size(parameters: int) -> str:
    """Format a count with three digits, such as 2.5e7."""
    return f"{parameters:.3g}".replace("e+0", "e")


def _duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.2f} us"


_LONGEST_NAME = 18
_GPU = " On a GPU times are the device's own."
_LIMITS = ("what", "size", "refs", "left alone", "limit", "rewritten", "limit ")
_TRAINING = ("network", "scope", "correction", "mode", "plain", "more", "x step")
_TABLES: tuple[tuple[str, str, str, tuple[str, ...], Callable[[Row], list[str]]], ...] = (
    (
        "corrections", "One correction of all parameters, and the limit of the memory",
        "Medians. left alone: the gradient disagrees with nothing; rewritten: it is changed in every step. limit: the "
        "time that moving the memory alone would take, as a share; measured by a sum and an addition." + _GPU,
        _LIMITS, _limit_cells,
    ),
    (
        "corrections", "One correction of all parameters, beside an SGD step",
        "x: times an SGD-momentum step (foreach) on the same parameters.",
        ("what", "size", "refs", "SGD", "x left alone", "x rewritten"), _step_cells,
    ),
    (
        "memory", "One correction by constraints that all change at every step (GEM)",
        "As in the first table, with vectors of an episodic memory in place of references." + _GPU,
        ("what", "size", "rows", *_LIMITS[3:]), _limit_cells,
    ),
    (
        "meter", "One update of a congruency meter",
        "limit: as above, for one pass that reads. x: times an SGD-momentum step; beside DCL: where DCL has measured "
        "the step already." + _GPU, ("what", "size", "update", "limit", "x SGD", "x beside DCL"), _meter_cells,
    ),
    (
        "updates", "An AdamW step whose update is corrected",
        "Medians of whole optimizer steps. x: the step with the correction over AdamW's own (foreach). timm: its "
        "cautious AdamW. DCL: on the update, one reference." + _GPU,
        ("what", "size", "AdamW", "x Cautious", "x timm", "x DCL"), _update_cells,
    ),
    (
        "training_steps", "A whole training step, corrected every time",
        "Medians. DCL 3: with 3 references, on SGD with momentum; Cautious: on AdamW. mode: as written, captured in a "
        "CUDA graph, or compiled (reduce-overhead). x step: what the correction adds, beside the optimizer's own step.",
        _TRAINING, _training_cells,
    ),
    (
        "training_steps", "The host's part of a training step",
        "host: time in optimizer.step() before the device has done it; launches: kernels and copies of a whole step; "
        "more: what the correction adds.",
        ("network", "scope", "correction", "mode", "host, us", "more", "launches", "more "), _host_cells,
    ),
)  # fmt: skip
