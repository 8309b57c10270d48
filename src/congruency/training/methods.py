"""Named corrections, for ``train-lm`` and for the studies that tune learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from congruency.constraints.references import DEFAULT_FLOOR
from congruency.training.config import Correction

BASELINE = "baseline"
_WINDOWS = (10, 50, 200)
_MARGINS = (0.001, 0.01)
_STRENGTHS = (0.001, 0.01, 0.1)
_OF_THE_PAPER = (8, 60, 90, None)  # the paper's windows for EfficientNet, ResNet-101, DenseNet and ResNeXt


def _dcl(window: int, **settings: Any) -> Correction:
    """DCL over all parameters, by default with the default settings of :class:`congruency.DCL`."""
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
"""Methods by name; the number is DCL's window.

``cautious``: :class:`congruency.Cautious`; ``plain``: without rescaling; ``decay``: with masked weight decay. ``dcl``:
:class:`congruency.DCL` with its defaults; ``floor``: with ``returning=False``; ``paper``: the paper's equations;
``update``: corrects the update instead of the gradient; ``anchor``: the paper's published code, with margin 0.5.
"""


def _window(window: int | None) -> str:
    return "inf" if window is None else str(window)


_OTHERS: dict[str, Correction] = {
    "gem": Correction(name="gem"),
    "gem-0": Correction(name="gem", margin=0.0),
    "gem-0.1": Correction(name="gem", margin=0.1),
    "cautious-bounded": Correction(name="cautious", scope="all", max_rescale=2.0),
    **{f"head-{_window(w)}": Correction(name="dcl", window=w) for w in _OF_THE_PAPER},
    **{
        f"head-anchor-{_window(w)}": Correction(name="dcl", window=w, mode="anchor", margin=0.5, offset=1)
        for w in _OF_THE_PAPER
    },
    **{f"update-paper-{w}": _dcl(w, correct="update", floor=None) for w in _WINDOWS},
    **{f"anchor-{w}-{m:g}": _dcl(w, mode="anchor", floor=None, margin=m) for w in _WINDOWS for m in _MARGINS},
    **{
        f"anchor-update-{w}-{m:g}": _dcl(w, mode="anchor", floor=None, margin=m, correct="update")
        for w in _WINDOWS
        for m in _MARGINS
    },
    **{
        f"anchor-start-{m:g}": Correction(name="dcl", scope="all", mode="anchor", window=None, margin=m)
        for m in _STRENGTHS
    },
    **{f"l2sp-{alpha:g}": Correction(name="l2sp", scope="all", strength=alpha) for alpha in _STRENGTHS},
}
"""Further methods, for comparisons that name them.

``gem-M``: the paper's classification GEM with margin M (0.5 if omitted). ``head-W``, ``head-anchor-W``: the paper's
equations and its published code on the last layer, as in its tables, with window W. ``anchor-W-M``: window W, margin M.
``anchor-start-M``: margin M, with the initial weights as the only reference. ``l2sp-S``:
:class:`congruency.training.l2sp.L2SP` with strength S.
"""

FAMILIES: dict[str, tuple[str, ...]] = {
    "gem": ("gem-0", "gem-0.1", "gem"),
    "cautious": ("cautious", "cautious-plain", "cautious-bounded"),
    "dcl": tuple(f"dcl-{w}" for w in _WINDOWS),
    "concentrate": tuple(f"paper-{w}" for w in _WINDOWS),
    "concentrate-update": tuple(f"update-paper-{w}" for w in _WINDOWS),
    "anchor": tuple(f"anchor-{w}-{m:g}" for w in _WINDOWS for m in _MARGINS),
    "anchor-update": tuple(f"anchor-update-{w}-{m:g}" for w in _WINDOWS for m in _MARGINS),
    "anchor-start": tuple(f"anchor-start-{m:g}" for m in _STRENGTHS),
    "l2sp": tuple(f"l2sp-{alpha:g}" for alpha in _STRENGTHS),
}
"""Families of methods that differ in window, margin, strength or rescaling; tuning chooses one of each family."""


def method_named(name: str) -> Correction:
    """Return a method by its name."""
    known = METHODS | _OTHERS
    if name not in known:
        raise ValueError(f"there is no method {name!r}; choose one of {', '.join(known)}")
    return known[name]


def choose_methods(names: Sequence[str] = ()) -> dict[str, Correction]:
    """Return the baseline and the named methods; without names all of :data:`METHODS`.

    Raises:
        ValueError: there is no method with that name.
    """
    return {BASELINE: METHODS[BASELINE], **{name: method_named(name) for name in names or METHODS}}


def choose_families(names: Sequence[str]) -> dict[str, dict[str, Correction]]:
    """Return the baseline and the variants of the named families; any other method is its own only variant."""
    chosen = {name: FAMILIES.get(name, (name,)) for name in (BASELINE, *names)}
    return {family: {name: method_named(name) for name in variants} for family, variants in chosen.items()}
