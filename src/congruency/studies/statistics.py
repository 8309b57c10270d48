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


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` seeds and the interval about it, `low` to `high`; nan where undefined."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def margin(self) -> float:
        """Half the width of the interval, which is the same on both sides of the mean."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean of paired differences, its interval, and the p-value of the two-sided paired t-test."""

    p: float

    def detectable(self, power: float = 0.8, level: float = 0.95) -> float:
        """Return the smallest true difference that so many seeds would have shown with this power.

        ``(t_level + t_power) s / sqrt(n)``, with quantiles of Student's t for n - 1 degrees of freedom; nan without a
        spread. ``level`` is that of the interval.
        """
        if self.count < 2:
            return math.nan
        two_sided, one_sided = (float(stats.t.ppf(q, self.count - 1)) for q in ((1 + level) / 2, power))
        return self.margin * (1 + one_sided / two_sided)


def mean_interval(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Mean and Student-t interval: `mean ± t * s / sqrt(n)`, t with n - 1 degrees of freedom.

    The interval is nan for a single value and for values that are all the same. A value that is not finite makes the
    whole estimate nan: leaving a failed run out would flatter the method that failed.
    """
    mean, error = _mean_and_error(values, scale=max(map(abs, values), default=0.0))
    margin = error * float(stats.t.ppf((1 + level) / 2, len(values) - 1)) if error > 0 else math.nan
    return Estimate(mean, mean - margin, mean + margin, len(values))


def paired_difference(values: Sequence[float], baseline: Sequence[float], level: float = 0.95) -> Difference:
    """Mean of `values - baseline`, seed by seed, with its interval and its paired t-test.

    p is the chance of a mean difference at least this large, in either direction, if the true one were 0. It agrees
    with the interval: p < 1 - level exactly where the interval leaves 0 out.
    """
    if len(values) != len(baseline):
        raise ValueError(
            f"a paired difference needs as many values as baseline values, one of each per seed, "
            f"got {len(values)} and {len(baseline)}"
        )
    differences = [value - base for value, base in zip(values, baseline, strict=True)]
    mean, error = _mean_and_error(differences, scale=max(map(abs, (*values, *baseline)), default=0.0))
    if not error > 0:
        return Difference(mean, math.nan, math.nan, len(values), math.nan)
    freedom = len(values) - 1
    margin = error * float(stats.t.ppf((1 + level) / 2, freedom))
    p = 2 * float(stats.t.sf(abs(mean) / error, freedom))
    return Difference(mean, mean - margin, mean + margin, len(values), p)


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


def _mean_and_error(values: Sequence[float], scale: float) -> tuple[float, float]:
    """Mean and standard error; the error is nan where the values show no spread beyond rounding at `scale`."""
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    mean = sum(values) / len(values)
    if max(values) - min(values) <= _ROUNDING * scale:
        return mean, math.nan
    variance = sum((value - mean) * (value - mean) for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
