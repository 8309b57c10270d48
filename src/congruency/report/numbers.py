"""Numbers as text, the same way in the terminal and on the page."""

import math

NOTHING = "-"
_HUGE = 1e6  # decimals say nothing of such a number


def fixed(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """`value` with `digits` decimals, with its sign where asked; a dash where it is not finite, and no minus zero.

    From a million on, as the loss of a training that diverged, it has three significant digits instead.
    """
    if not math.isfinite(value):
        return NOTHING
    if abs(value) >= _HUGE:
        return f"{value:+.3g}" if sign else f"{value:.3g}"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text if float(text) else f"{0:.{digits}f}"


def with_margin(mean: float, margin: float, digits: int = 2, *, sign: bool = False) -> str:
    """`mean ± margin`; the mean alone where the margin could not be measured, a dash where the mean could not."""
    text = fixed(mean, digits, sign=sign)
    return f"{text} ± {fixed(margin, digits)}" if math.isfinite(mean) and math.isfinite(margin) else text


def p_value(p: float) -> str:
    """A p-value to the third decimal; what is smaller is only called smaller."""
    if not math.isfinite(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def short(value: float) -> str:
    """`value` to three significant digits, for labels and hover texts."""
    return f"{value:.3g}" if math.isfinite(value) else NOTHING
