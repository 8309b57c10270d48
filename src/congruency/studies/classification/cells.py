"""The cells of a grid of DCL settings: one correction per combination of values, and its name."""

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
"""The default margin of each mode: the paper's equations, and its published code."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The values of the grid; every combination is a cell.

    Attributes:
        windows: None for an infinite window.
        margins: DCL's margins; None takes each mode's default, :data:`MARGINS`.
        floors: None for the paper's form; like ``returning`` only for mode concentrate.
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
    """Return every combination once; references vary fastest, then windows, then the other settings.

    Anchor cells record a reference after the step, as in the paper's published code (offset 1).
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
                    offset=int(mode == "anchor" and window != 1),  # a window of one step allows no offset
                )
            )  # fmt: skip
    return list(dict.fromkeys(made))


def cell_name(cell: Correction) -> str:
    """Return a cell's name in the paper's notation, with the settings that the notation lacks."""
    return f"DCL-{window_name(cell.window)}-{cell.references}, {variant_of(cell.settings())}"


def window_name(window: int | None) -> str:
    """Return a window in the paper's notation."""
    return "inf" if window is None else str(window)


def variant_of(settings: Mapping[str, Any]) -> str:
    """Return the settings that are constant along a curve: mode, margin, scope, and any beyond the paper's."""
    others = {name: settings[name] for name in LATER_FIELDS if name in settings}
    return ", ".join([settings["mode"], f"margin {settings['margin']:g}", settings["scope"], *in_words(others)])
