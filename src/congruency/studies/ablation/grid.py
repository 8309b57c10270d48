"""The cells of an ablation as plain data, and the table that they make of one training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from congruency.constraints.references import Mode
from congruency.studies.ablation.bases import Base
from congruency.studies.classification.grids import CONSTRAINT_NOTES, CORRECTED_NOTE
from congruency.studies.classification.jobs import Row, Table
from congruency.training.config import Correction, Scope

__all__ = ["BASELINE", "MARGINS", "Axes", "Cell", "Variant", "cells", "table_of"]

BASELINE = "baseline"
MARGINS: dict[Mode, float] = {"concentrate": 0.0, "anchor": 0.5}
"""What each mode takes where no margin is given: the paper's equations, and its published code."""

Variant = tuple[Mode, float, Scope]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One choice of DCL's settings.

    Attributes:
        window: beta_w, None for infinity.
        references: N_r.
        mode: the paper's equations, or its published code, which records a reference after the step (offset 1).
        margin: least multiplier of every constraint.
        scope: which parameters are corrected.
    """

    window: int | None
    references: int
    mode: Mode = "concentrate"
    margin: float = 0.0
    scope: Scope = "head"

    @property
    def name(self) -> str:
        """As the paper writes it, with what it does not say."""
        return f"DCL-{window_name(self.window)}-{self.references}, {variant_name(self.variant)}"

    @property
    def variant(self) -> Variant:
        """What stays the same along a curve."""
        return self.mode, self.margin, self.scope

    @property
    def method(self) -> Correction:
        """For the training loop."""
        return Correction(
            name="dcl",
            scope=self.scope,
            references=self.references,
            window=self.window,
            offset=self.offset,
            mode=self.mode,
            margin=self.margin,
        )

    @property
    def offset(self) -> int:
        """The published code records a reference after the step; a window of one step has no room for that."""
        return int(self.mode == "anchor" and self.window != 1)

    @property
    def never_corrects(self) -> bool:
        """A window that is over before all references are recorded: the training is the baseline's."""
        return self.window is not None and self.window <= self.references


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The values that the grid is made of; every combination is a cell.

    Attributes:
        windows: None for infinity.
        references: numbers of reference points.
        modes: of DCL.
        margins: of DCL; None takes that of each mode, :data:`MARGINS`.
        scopes: of DCL.
        baseline: train plainly too, to compare with.
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
                raise ValueError(f"the grid needs at least one of its {name}")

    @property
    def variants(self) -> list[Variant]:
        """Every combination of mode, margin and scope."""
        return list(
            dict.fromkeys(
                (mode, margin, scope)
                for scope in self.scopes
                for mode in self.modes
                for margin in (self.margins or (MARGINS[mode],))
            )
        )


def cells(axes: Axes) -> list[Cell]:
    """Every combination once, references within windows within variants."""
    return list(dict.fromkeys(_cells(axes)))


def _cells(axes: Axes) -> Iterator[Cell]:
    for (mode, margin, scope), window, references in itertools.product(axes.variants, axes.windows, axes.references):
        yield Cell(window=window, references=references, mode=mode, margin=margin, scope=scope)


def table_of(base: Base, grid: Sequence[Cell], *, baseline: bool = True) -> Table:
    """The table to run: the base's trainings once plainly, and once for every cell."""
    plain = [Row(name=BASELINE, jobs=base.jobs)] if baseline else []
    rows = [_row(base, cell, BASELINE if baseline else None) for cell in grid]
    return Table(
        name="ablation",
        title=f"DCL by its window and reference points: {base.title}",
        lead=base.lead,
        rows=(*plain, *rows),
        notes=_NOTES,
    )


def _row(base: Base, cell: Cell, against: str | None) -> Row:
    return Row(name=cell.name, jobs=tuple(replace(job, method=cell.method) for job in base.jobs), against=against)


def window_name(window: int | None) -> str:
    """As the paper writes it."""
    return "inf" if window is None else str(window)


def variant_name(variant: Variant) -> str:
    """What stays the same along a curve, in words."""
    mode, margin, scope = variant
    return f"{mode}, margin {margin:g}, {scope}"


_NOTES = (
    *CONSTRAINT_NOTES,
    (
        "Against, p",
        "The paired difference to the baseline, seed by seed (same first weights, same batches), its 95 % interval and "
        "the p of the t-test. Holm's p is the same after correction for all comparisons of the table: below 0.05 it "
        "would stay clear however many cells were looked at.",
    ),
    CORRECTED_NOTE,
)
