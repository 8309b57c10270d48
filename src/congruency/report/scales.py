"""Axes: map values to positions, with round tick marks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_TINY = 1e-300  # values below it or above its inverse are ignored: floats lose digits or overflow there


@dataclass(frozen=True)
class Scale:
    """Map `low..high` to `start..stop`, linearly or logarithmically; `ticks` are the tick marks."""

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of `value`, clamped to the axis; nan stays nan."""
        if math.isnan(value):
            return value
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        fraction = (value - low) / (high - low)
        return self.start + min(max(fraction, 0.0), 1.0) * (self.stop - self.start)


def linear(
    values: Iterable[float], start: float, stop: float, *, ticks: int = 5, integers: bool = False, tight: bool = False
) -> Scale:
    """A linear axis with about `ticks` tick marks at 1, 2 or 5 times a power of ten.

    It ends on tick marks, or with `tight` at the outermost values; `integers` restricts the marks to integers. Values
    that are not finite are ignored; without any value the axis is 0..1.
    """
    low, high = _extent(values, (0.0, 1.0))
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 10 or 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / ticks)
    if integers:
        step = max(1.0, step)
    first, last = math.floor(low / step), math.ceil(high / step)
    marks = [n * step for n in range(first, last + 1)]
    if tight:
        return Scale(low, high, start, stop, tuple(mark for mark in marks if low <= mark <= high))
    return Scale(marks[0], marks[-1], start, stop, tuple(marks))


def logarithmic(values: Iterable[float], start: float, stop: float) -> Scale:
    """A logarithmic axis with tick marks at powers of ten, on a short range also at 2 and 5 times these.

    Values that are not positive and finite are ignored; without any value the axis is 0.1..1.
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
