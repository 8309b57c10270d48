"""Format numbers and lists for the terminal and HTML pages."""

import math
from collections.abc import Sequence

NOTHING = "-"
_HUGE = 1e6  # larger values are shown with three significant digits


def fixed(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """Format `value` with `digits` decimals, optionally with its sign; a dash if it is not finite, never minus zero.

    From a million on, such as the loss of a diverged run, it has three significant digits instead.
    """
    if not math.isfinite(value):
        return NOTHING
    if abs(value) >= _HUGE:
        return f"{value:+.3g}" if sign else f"{value:.3g}"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text if float(text) else f"{0:.{digits}f}"


def with_margin(mean: float, margin: float, digits: int = 2, *, sign: bool = False) -> str:
    """Format `mean ± margin`; only the mean if the margin is not finite, a dash if the mean is not."""
    text = fixed(mean, digits, sign=sign)
    return f"{text} ± {fixed(margin, digits)}" if math.isfinite(mean) and math.isfinite(margin) else text


def p_value(p: float) -> str:
    """Format a p-value with up to three decimals, or as "< 0.001"."""
    if not math.isfinite(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def short(value: float) -> str:
    """Format `value` with three significant digits, for labels and hover texts."""
    return f"{value:.3g}" if math.isfinite(value) else NOTHING


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: ``1 seed``, ``12 seeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Join names: ``a``, ``a and b``, ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
