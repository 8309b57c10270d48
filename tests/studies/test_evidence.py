import math
import warnings
from dataclasses import replace

import pytest
from scipy import stats

from congruency.studies import summary
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import Comparison
from congruency.studies.statistics import Difference, holm, mean_interval, paired_difference

T_2 = 4.302652729911275  # 97.5 % point of Student's t, 2 degrees of freedom, from a printed table
T_3 = 3.182446305284263


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_mean_interval_by_hand():
    estimate = mean_interval([1.0, 2.0, 3.0])  # mean 2, s = 1, standard error 1 / sqrt(3)
    assert estimate.mean == pytest.approx(2.0)
    assert estimate.margin == pytest.approx(T_2 / math.sqrt(3))
    assert estimate.low == pytest.approx(2 - T_2 / math.sqrt(3))
    assert estimate.high == pytest.approx(2 + T_2 / math.sqrt(3))
    assert estimate.count == 3


def test_a_mean_is_the_same_on_every_release_of_python():
    """Rounded once: added up one by one these ten are 38.665000000000006, which a table would round up."""
    values = [38.95, 37.925, 39.0, 39.175, 38.625, 38.25, 38.975, 38.175, 38.7, 38.875]
    assert mean_interval(values).mean == 38.665
    assert f"{mean_interval(values).mean:.2f}" == "38.66"


def test_paired_difference_by_hand():
    difference = paired_difference([3.0, 5.0, 5.0, 7.0], [2.0, 3.0, 4.0, 3.0])  # 1, 2, 1, 4: mean 2, s^2 = 6 / 3
    error = math.sqrt(2.0) / 2
    assert difference.mean == pytest.approx(2.0)
    assert (difference.low, difference.high) == pytest.approx((2 - T_3 * error, 2 + T_3 * error))
    # the distribution function of t at 3 degrees of freedom, in closed form
    theta = math.atan(2 / error / math.sqrt(3))
    assert difference.p == pytest.approx(1 - 2 / math.pi * (theta + math.sin(theta) * math.cos(theta)))
    assert difference.count == 4


def test_paired_difference_agrees_with_scipy():
    values, baseline = [2.3, 2.5, 1.9, 2.2, 2.9], [2.1, 2.6, 1.7, 2.0, 2.2]
    oracle = stats.ttest_rel(values, baseline)
    difference = paired_difference(values, baseline)
    assert difference.p == pytest.approx(oracle.pvalue)
    assert (difference.low, difference.high) == pytest.approx(tuple(oracle.confidence_interval(0.95)))


def test_interval_and_test_agree_about_zero():
    """Moved so that its interval ends at 0, a difference has p = 0.05."""
    low = paired_difference([1.0, 2.0, 4.0], [0.5, 0.5, 0.5]).low
    difference = paired_difference([1.0, 2.0, 4.0], [0.5 + low] * 3)
    assert difference.low == pytest.approx(0.0, abs=1e-12)
    assert difference.p == pytest.approx(0.05)


def test_order_of_the_arguments_gives_the_sign():
    there, back = paired_difference([1, 2, 4], [0, 3, 1]), paired_difference([0, 3, 1], [1, 2, 4])
    assert there.mean == -back.mean
    assert there.p == back.p


@pytest.mark.parametrize("values", [[2.5], [2.5, 2.5, 2.5], [0.0, 0.0], [0.1] * 3])
def test_no_spread_no_interval(values):
    estimate = mean_interval(values)
    assert estimate.mean == pytest.approx(values[0])
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
    assert math.isnan(estimate.margin)


@pytest.mark.parametrize(
    ("values", "baseline", "mean"),
    [([1.0], [0.5], 0.5), ([1.0, 2.0], [1.0, 2.0], 0.0), ([2.5, 3.5, 9.5], [2.3, 3.3, 9.3], 0.2)],
)
def test_no_spread_no_test(values, baseline, mean):
    difference = paired_difference(values, baseline)
    assert difference.mean == pytest.approx(mean)
    assert math.isnan(difference.low)
    assert math.isnan(difference.p)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_failed_seed_is_not_left_out(broken):
    assert math.isnan(mean_interval([1.0, broken, 2.0]).mean)
    difference = paired_difference([1.0, broken, 2.0], [1.0, 1.0, 1.0])
    assert math.isnan(difference.mean)
    assert math.isnan(difference.p)


def test_no_values():
    assert math.isnan(mean_interval([]).mean)
    assert math.isnan(paired_difference([], []).p)


def test_huge_values_do_not_raise():
    assert math.isinf(mean_interval([1e200, -1e200]).margin)


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="as many values as baseline values"):
        paired_difference([1.0, 2.0], [1.0])


def comparison(row, p):
    difference = Difference(-1.0, 1.0, 3, p)
    return Comparison(row, "error", difference, identical=False)


def study_of(rows):
    made = tuple(Row(name=name, jobs=(), against="baseline") for name in rows)
    return Study(name="tests", title="", lead="", rows=made, columns=(Column(key="error"),))


@pytest.mark.parametrize(
    ("ps", "expected"),
    [
        # Holm: 0.01 * 3 = 0.03 is clear, 0.04 * 2 = 0.08 is not; the one that is nan was no test.
        (
            {"a": 0.04, "b": math.nan, "c": 0.01, "d": 0.6},
            "2 of 3 comparisons have p < 0.05, where 0.15 would by chance alone; 1 is left after Holm's correction",
        ),
        (
            {"a": 0.04, "b": 0.04},
            "2 of 2 comparisons have p < 0.05, where 0.1 would by chance alone; none is left after Holm's correction",
        ),
    ],
)
def test_many_tests_together(ps, expected, monkeypatch):
    made = {(row, "error"): comparison(row, p) for row, p in ps.items()}
    adjusted = holm(list(ps.values()))
    made = {key: replace(one, adjusted=p) for (key, one), p in zip(made.items(), adjusted, strict=True)}
    monkeypatch.setattr(summary, "comparisons", lambda *_: made)
    assert summary.findings(study_of(ps), {})[-1].startswith(expected)


def test_holms_correction():
    adjusted = holm([0.04, math.nan, 0.01, 0.6])
    assert adjusted == pytest.approx([0.08, math.nan, 0.03, 0.6], nan_ok=True)
