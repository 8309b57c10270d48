"""What the benchmark measured as tables, one per question and no wider than 80 columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from congruency.report.tables import Table

Row = dict[str, Any]  # see congruency.studies.bench


def tables(result: dict[str, Any]) -> list[tuple[str, Table]]:
    """The tables of one device with their titles: those that something was measured for."""
    made = []
    for what, title, caption, columns, cells in _TABLES:
        rows = [cells(row) for row in result[what] if cells(row)]
        if rows:
            made.append((title, Table(caption, columns, rows)))
    return made


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
    """Its name; of many widths the first and the last."""
    name: str = row["network"].partition(",")[0]
    widths = name.split("-")
    return f"{widths[0]}-..-{widths[-1]}" if len(name) > _LONGEST_NAME else name


def _correction(row: Row) -> str:
    """Which correction, of DCL with the number of references."""
    name: str = row["correction"]
    return f"{name} {row['references']}" if name == "DCL" else name


def _size(parameters: int) -> str:
    """Three digits, as 2.5e7."""
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
