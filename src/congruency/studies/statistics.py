"""The statistics of a handful of seeds: a mean with its interval, a paired difference with its test, Holm's correction.

Every function takes one number per seed and returns plain floats; nan where they are undefined (one seed, no spread, a
value that is not finite): a spread that could not be measured is not a spread of zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

# Differences of equal decimals (2.5 - 2.3, 3.5 - 3.3) disagree in the last bits: that is rounding, not spread.
_ROUNDING = 1e-12
_LEVEL, _POWER = 0.95, 0.8


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` seeds and the margin of the interval about it, `mean ± margin`; nan where undefined."""

    mean: float
    margin: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.margin

    @property
    def high(self) -> float:
        return self.mean + self.margin


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean of paired differences, its interval, and the p-value of the two-sided paired t-test."""

    p: float

    @property
    def detectable(self) -> float:
        """The smallest true difference that so many seeds would have shown with a power of 80 %.

        ``(t_level + t_power) s / sqrt(n)``, with quantiles of Student's t for n - 1 degrees of freedom; nan without a
        spread.
        """
        if self.count < 2:
            return math.nan
        two_sided, one_sided = (float(stats.t.ppf(q, self.count - 1)) for q in ((1 + _LEVEL) / 2, _POWER))
        return self.margin * (1 + one_sided / two_sided)


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean and Student-t interval: `mean ± t * s / sqrt(n)`, t with n - 1 degrees of freedom.

    The interval is nan for a single value and for values that are all the same. A value that is not finite makes the
    whole estimate nan: leaving a failed run out would flatter the method that failed.
    """
    mean, error = _mean_and_error(values, scale=max(map(abs, values), default=0.0))
    return Estimate(mean, _margin(error, len(values)), len(values))


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Mean of `values - baseline`, seed by seed, with its interval and its paired t-test.

    p is the chance of a mean difference at least this large, in either direction, if the true one were 0. It agrees
    with the interval: p < 0.05 exactly where the interval leaves 0 out.
    """
    if len(values) != len(baseline):
        raise ValueError(
            f"a paired difference needs as many values as baseline values, one of each per seed, "
            f"got {len(values)} and {len(baseline)}"
        )
    differences = [value - base for value, base in zip(values, baseline, strict=True)]
    mean, error = _mean_and_error(differences, scale=max(map(abs, (*values, *baseline)), default=0.0))
    p = 2 * float(stats.t.sf(abs(mean) / error, len(values) - 1)) if error > 0 else math.nan
    return Difference(mean, _margin(error, len(values)), len(values), p)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: of m, sorted upwards, ``p'_i = max over j <= i of min(1, (m - j + 1) p_j)``.

    Calling those below a level different keeps the chance of even one false call below that level, whatever the
    dependence between the tests. A p that is nan was no test: it stays nan, and is not counted in m.
    """
    order = sorted((p, place) for place, p in enumerate(ps) if not math.isnan(p))
    adjusted = [math.nan] * len(ps)
    highest = 0.0
    for passed, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - passed) * p))
        adjusted[place] = highest
    return adjusted


def _margin(error: float, count: int) -> float:
    return error * float(stats.t.ppf((1 + _LEVEL) / 2, count - 1)) if error > 0 else math.nan


def _mean_and_error(values: Sequence[float], scale: float) -> tuple[float, float]:
    """Mean and standard error; the error is nan where the values show no spread beyond rounding at `scale`."""
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)  # sum() rounds otherwise from Python 3.12 on, and tables would too
    if max(values) - min(values) <= _ROUNDING * scale:
        return mean, math.nan
    variance = math.fsum((value - mean) * (value - mean) for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
