"""Rows beyond the paper's tables: margins apart, the methods that others compare with, and combinations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from congruency.continual.config import Kind, LearnerConfig
from congruency.studies.continual.tables import TUNED, ContinualJob, StreamSettings, TableRow, continual_study
from congruency.studies.plan import Study

Part = Literal["paper", "margins", "peers", "all"]
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5)
FURTHER_MARGINS = (0.7, 1.0)  # tried in tuning, run on request
WINDOWS = (10, 30)


def part_study(
    settings: StreamSettings, names: Sequence[str] = (), part: Part | None = None, against: str | None = None
) -> Study[ContinualJob]:
    """Return a part of a table as a study, every row compared with ``against`` where it is given.

    Without a ``part`` it is the paper's, or the peers where the paper has no such table.
    """
    part = part or ("paper" if settings.stream_table.rows else "peers")
    if part == "paper":
        study = continual_study(settings, names)
    elif part == "margins":
        study = continual_study(settings, names, _margin_rows(), "Rows of DCL are compared with GEM of their margin.")
        study = replace(study, title=f"{study.title}: GEM's margin apart from DCL's")
    else:
        paper = settings.stream_table.rows if part == "all" else ()
        known = {row.method.name for row in paper}
        further = [row for row in _peer_rows(settings) if row.method.name not in known]
        study = continual_study(settings, names, [*paper, *further], _PEER_CAPTION)
        study = replace(study, notes=(*study.notes, ("Settings of the losses", _searched(settings))))
    if against is None:
        return study
    if against not in {row.name for row in study.rows}:
        part_study(settings, [against], part)  # refuses a name that no row has
        raise ValueError(f"the row {against!r} to compare with is not run; run it too, by --row {against!r}")
    rows_against = tuple(replace(row, against=None if row.name == against else against) for row in study.rows)
    return replace(study, rows=rows_against, caption="")


def gem_with_margin(margin: float) -> LearnerConfig:
    """GEM with this memory strength, named as in the paper's tables where it is one of theirs."""
    return LearnerConfig("GEM" if margin == 0.5 else f"GEM, margin {margin:g}", "gem", memory_margin=margin)


def with_margins_apart(window: int, margin: float) -> LearnerConfig:
    """DCL by the equations at margin 0, with GEM's memory at a margin of its own."""
    name = f"DCL-{window}-1 MEM, GEM margin {margin:g}, DCL margin 0"
    return LearnerConfig(name, "dcl_memory", window=window, memory_margin=margin)


def _margin_rows() -> list[TableRow]:
    gems = {margin: gem_with_margin(margin) for margin in (*MARGINS, *FURTHER_MARGINS)}
    pairs = [(gem, margin) for margin, gem in gems.items()]
    pairs += [(with_margins_apart(window, margin), margin) for window in WINDOWS for margin in gems]
    return [TableRow(method, None, gems[margin].name, on_request=margin not in MARGINS) for method, margin in pairs]


_PEER_CAPTION = (
    "A loss with constraints is compared with the same loss without, DCL with GEM of the same margin, other rows with "
    "GEM."
)


def _peer_rows(settings: StreamSettings) -> list[TableRow]:
    """The losses alone, and ER and DER++ under DCL's constraints, GEM's, and both."""
    gem = "ResNet GEM" if settings.table == "icifar100" else "GEM"
    tuned = TUNED.get(settings.table, {})

    def method(name: str, kind: Kind, **more: Any) -> LearnerConfig:
        known = tuned.get(kind) or LearnerConfig(name, kind, strength=_NOT_TUNED.get(kind, 1.0))
        return replace(known, name=name, **more)

    rows = [
        TableRow(LearnerConfig("single", "single"), against=gem),
        TableRow(LearnerConfig("joint", "joint"), against=gem),
        TableRow(method("EWC", "ewc"), against=gem),
        TableRow(method("MAS", "mas"), against=gem),
        TableRow(method("LwF", "lwf"), against=gem),
        TableRow(LearnerConfig(gem, "gem", memory_margin=0.5), against=gem),
        TableRow(LearnerConfig(f"{gem}, margin 0", "gem"), against=gem),
        TableRow(method("ER", "er"), against=gem),
        TableRow(method("ER, ring", "er", replay="ring"), against="ER"),
        TableRow(method("DER", "der"), against=gem),
        TableRow(method("DER++", "derpp"), against=gem),
    ]
    if settings.chosen_scenario != "task":  # A-GEM draws from all tasks at once
        rows.insert(2, TableRow(LearnerConfig("A-GEM", "agem"), against=gem))
    if settings.chosen_scenario != "domain":  # iCaRL needs classes of their own
        rows.insert(2, TableRow(method("iCARL", "icarl"), against=gem))
    for loss, kind in _COMBINED:
        rows += [
            TableRow(method(f"{loss}, DCL-10-1", kind, constraints="dcl", window=10), against=loss),
            TableRow(method(f"{loss}, GEM", kind, constraints="gem", memory_margin=0.5), against=loss),
            TableRow(method(f"{loss}, DCL-10-1 MEM", kind, constraints="dcl_memory", window=10), against=loss),
        ]
    return rows


_COMBINED: tuple[tuple[str, Kind], ...] = (("ER", "er"), ("DER++", "derpp"))
_NOT_TUNED: dict[Kind, float] = {"ewc": 0.1, "mas": 0.01, "der": 0.3, "derpp": 0.3}
"""Strengths of the losses where none was searched."""


def _searched(settings: StreamSettings) -> str:
    """Which losses have been tuned, for the page."""
    names = ", ".join(kind for kind in TUNED.get(settings.table, {}) if settings.labels != "noisy") or "none"
    return f"Learning rate and strength searched on held-out seeds for: {names}. The others have rate 0.1, not tuned."
