"""Rows beyond the paper's tables: margins apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from congruency.continual.config import LearnerConfig
from congruency.studies.continual.tables import ContinualJob, StreamSettings, TableRow, continual_study
from congruency.studies.plan import Study

__all__ = ["MARGINS", "Part", "gem_with_margin", "part_study", "with_margins_apart"]

Part = Literal["paper", "margins"]
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5)
_WINDOWS = (10, 30)


def part_study(
    settings: StreamSettings, names: Sequence[str] = (), part: Part = "paper", against: str | None = None
) -> Study[ContinualJob]:
    """Return a part of a table as a study, every row compared with ``against`` where it is given."""
    if part == "paper":
        study = continual_study(settings, names)
    else:
        study = continual_study(settings, names, _margin_rows(), "Rows of DCL are compared with GEM of their margin.")
    if against is None:
        return study
    if against not in {row.name for row in study.rows}:
        raise ValueError(f"there is no row {against!r} to compare with; run it too, by --row {against!r}")
    rows = tuple(replace(row, against=None if row.name == against else against) for row in study.rows)
    return replace(study, rows=rows, caption="")


def gem_with_margin(margin: float) -> LearnerConfig:
    """GEM with this memory strength, named as in the paper's tables where it is one of theirs."""
    return LearnerConfig("GEM" if margin == 0.5 else f"GEM, margin {margin:g}", "gem", memory_margin=margin)


def with_margins_apart(window: int, margin: float) -> LearnerConfig:
    """DCL by the equations at margin 0, with GEM's memory at a margin of its own."""
    name = f"DCL-{window}-1 MEM, GEM margin {margin:g}, DCL margin 0"
    return LearnerConfig(name, "dcl_memory", window=window, memory_margin=margin)


def _margin_rows() -> list[TableRow]:
    rows = [TableRow(gem_with_margin(margin), against=gem_with_margin(margin).name) for margin in MARGINS]
    for window in _WINDOWS:
        rows += [TableRow(with_margins_apart(window, m), against=gem_with_margin(m).name) for m in MARGINS]
    return rows
