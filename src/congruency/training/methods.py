"""Corrections by name: one table for ``train-lm`` and for the studies that tune learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from congruency.constraints.references import DEFAULT_FLOOR
from congruency.training.config import Correction

__all__ = ["BASELINE", "METHODS", "choose_methods", "method_named"]

BASELINE = "baseline"
_WINDOWS = (10, 50, 200)


def _dcl(window: int, **settings: Any) -> Correction:
    """DCL over all parameters, in the form that :class:`congruency.DCL` has by default."""
    return Correction(**{"name": "dcl", "scope": "all", "window": window, "floor": DEFAULT_FLOOR, **settings})


METHODS: dict[str, Correction] = {
    BASELINE: Correction(),
    "cautious": Correction(name="cautious", scope="all"),
    "cautious-decay": Correction(name="cautious", scope="all", mask_decay=True),
    "cautious-plain": Correction(name="cautious", scope="all", rescale=False),
    "cautious-plain-decay": Correction(name="cautious", scope="all", rescale=False, mask_decay=True),
    **{f"dcl-{w}": _dcl(w) for w in _WINDOWS},
    **{f"floor-{w}": _dcl(w, returning=False) for w in _WINDOWS},
    **{f"paper-{w}": _dcl(w, floor=None) for w in _WINDOWS},
    **{f"update-{w}": _dcl(w, correct="update") for w in _WINDOWS},
    "update-paper-50": _dcl(50, correct="update", floor=None),
    "update-row-50": _dcl(50, correct="update", floor=None, blocks="row"),
    "update-element-50": _dcl(50, correct="update", floor=None, blocks="element"),
    "row-50": _dcl(50, blocks="row"),
    "element-50": _dcl(50, floor=None, blocks="element"),
    "dcl-50-cautious": _dcl(50, cautious=True),
    "floor-50-cautious": _dcl(50, floor=0.03, returning=False, cautious=True),
    "anchor-update-50": _dcl(50, mode="anchor", floor=None, margin=0.01, correct="update"),
    **{
        f"anchor-{w}": Correction(name="dcl", scope="all", window=w, mode="anchor", margin=0.5, offset=1)
        for w in _WINDOWS
    },
}
"""The methods by name; the number is DCL's window.

``cautious``: :class:`congruency.Cautious`; ``plain`` without rescaling, ``decay`` with masked weight decay. ``dcl``: as
:class:`congruency.DCL` is by default; ``floor``: with the floor alone; ``paper``: the paper's equations; ``update``:
the update is corrected, not the gradient; ``anchor``: the paper's published code, with a margin of 0.5.
"""


def method_named(name: str) -> Correction:
    """Return a method of :data:`METHODS`."""
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


def choose_methods(names: Sequence[str] = ()) -> dict[str, Correction]:
    """Return these methods after the baseline that they are compared with; all where none is given."""
    chosen = {name: method_named(name) for name in names} if names else METHODS
    return {BASELINE: METHODS[BASELINE], **chosen}
