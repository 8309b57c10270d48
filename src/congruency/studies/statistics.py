"""Statistics over a few seeds: mean with interval, paired difference with t-test, Holm's correction.

Inputs are one number per seed. Results are nan where undefined (a single seed, no spread, a non-finite value): an
unknown spread is not a spread of zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

# Equal decimal differences (2.5 - 2.3, 3.5 - 3.3) differ in the last bits: this is rounding, not spread.
_ROUNDING = 1e-12
_LEVEL, _POWER = 0.95, 0.8


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` seeds with its 95 % interval, `mean ± margin`; nan where undefined."""

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
        """The smallest true difference detectable with this number of seeds at a power of 80 %.

        ``(t_level + t_power) s / sqrt(n)``, with quantiles of Student's t for n - 1 degrees of freedom; nan without a
        spread.
        """
        if self.count < 2:
            return math.nan
        two_sided, one_sided = (float(stats.t.ppf(q, self.count - 1)) for q in ((1 + _LEVEL) / 2, _POWER))
        return self.margin * (1 + one_sided / two_sided)


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean and Student-t interval: `mean ± t * s / sqrt(n)`, t with n - 1 degrees of freedom.

    The margin is nan for a single value and for identical values. A non-finite value makes the whole estimate nan:
    leaving out a failed run would favour the method that failed.
    """
    mean, error = _mean_and_error(values, scale=max(map(abs, values), default=0.0))
    return Estimate(mean, _margin(error, len(values)), len(values))


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Mean of `values - baseline`, paired by seed, with its interval and two-sided t-test.

    p is the probability of a mean difference at least this large, in either direction, if the true difference is 0;
    p < 0.05 exactly if the interval excludes 0.
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
    """Holm's adjusted p-values: for m sorted p-values, ``p'_i = max over j <= i of min(1, (m - j + 1) p_j)``.

    Rejecting those below a level keeps the family-wise error rate below that level, whatever the dependence between
    the tests. A nan marks a test that was not made: it stays nan and does not count in m.
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
    """Mean and standard error; the error is nan if the spread is within rounding at `scale`."""
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)  # sum() rounds differently from Python 3.12 on, which would change tables
    if max(values) - min(values) <= _ROUNDING * scale:
        return mean, math.nan
    variance = math.fsum((value - mean) * (value - mean) for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
