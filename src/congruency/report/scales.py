"""Axes: from the numbers of a chart to round tick marks and positions on paper."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_TINY = 1e-300  # beyond this, and its inverse, floats lose their digits or overflow: such values do not set an axis


@dataclass(frozen=True)
class Scale:
    """Maps `low..high` onto `start..stop` on paper, in proportion or by the logarithm; `ticks` lie within."""

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        """Position of `value`, held within the axis; nan stays nan."""
        if math.isnan(value):
            return value
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.stop - self.start)


def linear(
    values: Iterable[float], start: float, stop: float, *, ticks: int = 5, whole: bool = False, snug: bool = False
) -> Scale:
    """An axis in proportion, about `ticks` marks at 1, 2 or 5 times a power of ten.

    It ends on marks, or with `snug` at the outermost values; with `whole` the marks are whole numbers. Values that are
    not finite do not count; with none left the axis is 0..1.
    """
    low, high = _extent(values, (0.0, 1.0))
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 10 or 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / ticks)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step), math.ceil(high / step)
    marks = [n * step for n in range(first, last + 1)]
    if snug:
        return Scale(low, high, start, stop, tuple(mark for mark in marks if low <= mark <= high))
    return Scale(marks[0], marks[-1], start, stop, tuple(marks))


def logarithmic(values: Iterable[float], start: float, stop: float) -> Scale:
    """A logarithmic axis with marks at powers of ten, and at 2 and 5 times these where it spans little.

    Values that are not positive and finite do not count; with none left the axis is 0.1..1.
    """
    low, high = _extent((value for value in values if value > _TINY), (0.1, 1.0))
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if last - first > 3:
        every = math.ceil((last - first) / 6)
        marks = [10.0**n for n in range(first, last + every, every)]
    else:
        fine = [digit * 10.0**n for n in range(first - 1, last + 1) for digit in (1, 2, 5)]
        below = max(mark for mark in fine if mark <= low)
        marks = [mark for mark in fine if mark >= below]
        enough = next((n for n, mark in enumerate(marks) if n and mark >= high), len(marks) - 1)
        marks = marks[: enough + 1]
    return Scale(marks[0], marks[-1], start, stop, tuple(marks), log=True)


def _extent(values: Iterable[float], otherwise: tuple[float, float]) -> tuple[float, float]:
    finite = [value for value in values if abs(value) < 1 / _TINY]
    return (min(finite), max(finite)) if finite else otherwise


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next((digit * power for digit in (1, 2, 5) if digit * power >= rough * 0.999), 10 * power)
