"""The corrections that language models are trained with, by name: one table for ``train-lm`` and the study."""

from __future__ import annotations

from congruency.training.config import Correction

__all__ = ["BASELINE", "METHODS", "method_named"]

BASELINE = "baseline"
_WINDOWS = (10, 50, 200)

METHODS: dict[str, Correction] = {
    BASELINE: Correction(),
    **{f"dcl-{w}": Correction(name="dcl", scope="all", window=w) for w in _WINDOWS},
    **{
        f"anchor-{w}": Correction(name="dcl", scope="all", window=w, mode="anchor", margin=0.5, offset=1)
        for w in _WINDOWS
    },
}
"""The methods by name; the number is DCL's window.

``dcl``: the paper's equations; ``anchor``: its published code, with a margin of 0.5.
"""


def method_named(name: str) -> Correction:
    """Return a method of :data:`METHODS`."""
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]
