import math

import pytest

from congruency.report import scales


def test_linear_axis_ends_on_round_marks():
    axis = scales.linear([0.3, 9.1], 0, 100)
    assert axis.ticks == (0, 2, 4, 6, 8, 10)
    assert (axis(0), axis(5), axis(10)) == (0, 50, 100)


def test_tight_axis_ends_at_the_values():
    axis = scales.linear([1, 30], 0, 290, ticks=7, integers=True, tight=True)
    assert axis.ticks == (5, 10, 15, 20, 25, 30)
    assert (axis(1), axis(30)) == (0, 290)


def test_integer_marks_are_integers():
    assert scales.linear([1, 3], 0, 1, integers=True, tight=True).ticks == (1, 2, 3)


def test_an_axis_may_be_reversed():
    axis = scales.linear([0, 10], 200, 0)
    assert axis(0) == 200
    assert axis(10) == 0


def test_log_axis():
    axis = scales.logarithmic([0.003, 40], 0, 100)
    assert axis.ticks == (0.001, 0.01, 0.1, 1, 10, 100)
    assert axis(0.1) == pytest.approx(40)
    assert axis(0) == axis(-1) == 0


def test_short_log_axis_has_marks_between_powers():
    assert scales.logarithmic([2.2, 60], 0, 1).ticks == pytest.approx((2, 5, 10, 20, 50, 100))


@pytest.mark.parametrize("scale", [scales.linear, scales.logarithmic])
@pytest.mark.parametrize(
    "values",
    [
        [],
        [math.nan],
        [math.inf, -math.inf],
        [0.0],
        [3.0],
        [-2.0, -2.0],
        [1.0, 1.0 + 1e-15],
        [1e-320, 1e-310],
        [1e308, -1e308],
        [1e-8, 1e8],
        [1.0, 10.0],
        [1e12, 1e12 + 1],
    ],
)
def test_any_values_give_an_axis(scale, values):
    axis = scale(values, 0, 100)
    assert len(axis.ticks) >= 2
    assert len(axis.ticks) <= 12
    assert axis.low < axis.high
    assert all(0 <= axis(value) <= 100 for value in [*values, *axis.ticks] if not math.isnan(value))
