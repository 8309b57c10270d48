"""The cells of a grid of DCL's settings: every combination of their values as a correction, and its name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from congruency.constraints.references import Mode
from congruency.corrector import Blocks, Correct
from congruency.training.config import LATER_FIELDS, Correction, Scope
from congruency.training.wording import in_words

MARGINS: dict[Mode, float] = {"concentrate": 0.0, "anchor": 0.5}
"""The margin of each mode where none is given: the paper's equations, and its published code."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The values of the grid; every combination is a cell.

    Attributes:
        windows: None for infinity.
        margins: of DCL; None takes that of each mode, :data:`MARGINS`.
        floors: None for the paper's form; of mode concentrate alone, as is returning.
    """

    windows: tuple[int | None, ...] = (5, 10, 20, 50, None)
    references: tuple[int, ...] = (1, 2, 3, 5)
    modes: tuple[Mode, ...] = ("concentrate",)
    margins: tuple[float, ...] | None = None
    scopes: tuple[Scope, ...] = ("head",)
    floors: tuple[float | None, ...] = (None,)
    returning: tuple[bool, ...] = (True,)
    corrects: tuple[Correct, ...] = ("gradient",)
    blocks: tuple[Blocks, ...] = ("joint",)


def cells(axes: Axes) -> list[Correction]:
    """Return every combination once: references within windows within scopes, modes, margins and other settings.

    The anchor records a reference after the step, as the paper's published code does (offset 1).
    """
    made = []
    for scope, mode in itertools.product(axes.scopes, axes.modes):
        margins = axes.margins or (MARGINS[mode],)
        for margin, correct, blocks, floor, returning, window, references in itertools.product(
            margins, axes.corrects, axes.blocks, axes.floors, axes.returning, axes.windows, axes.references
        ):
            floored = None if mode == "anchor" or blocks == "element" else floor
            made.append(
                Correction(
                    name="dcl", window=window, references=references, mode=mode, margin=margin, scope=scope,
                    floor=floored, returning=returning or floored is None, correct=correct, blocks=blocks,
                    offset=int(mode == "anchor" and window != 1),  # a window of one step has no room for an offset
                )
            )  # fmt: skip
    return list(dict.fromkeys(made))


def cell_name(cell: Correction) -> str:
    """As the paper writes it, with what it does not say."""
    return f"DCL-{window_name(cell.window)}-{cell.references}, {variant_of(cell.settings())}"


def window_name(window: int | None) -> str:
    """As the paper writes it."""
    return "inf" if window is None else str(window)


def variant_of(settings: Mapping[str, Any]) -> str:
    """Return what stays the same along a curve: mode, margin, scope, and further settings that are not the paper's."""
    others = {name: settings[name] for name in LATER_FIELDS if name in settings}
    return ", ".join([settings["mode"], f"margin {settings['margin']:g}", settings["scope"], *in_words(others)])
