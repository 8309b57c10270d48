import math

import pytest

from congruency.report.numbers import fixed, p_value, short, with_margin


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (fixed(1.005, 1), "1.0"),
        (fixed(-0.001), "0.00"),
        (fixed(-0.001, sign=True), "0.00"),
        (fixed(0.5, sign=True), "+0.50"),
        (fixed(math.nan), "-"),
        (fixed(math.inf), "-"),
        (fixed(999_999.5), "999999.50"),
        (fixed(-4.8517e12, 4, sign=True), "-4.85e+12"),
        (with_margin(4.8517e12, 2.09e13, 4), "4.85e+12 ± 2.09e+13"),
        (with_margin(2.5, 0.25), "2.50 ± 0.25"),
        (with_margin(2.5, math.nan), "2.50"),
        (with_margin(math.nan, math.nan), "-"),
        (p_value(0.523), "0.52"),
        (p_value(0.0496), "0.050"),
        (p_value(0.0004), "< 0.001"),
        (p_value(math.nan), "-"),
        (short(12345.6), "1.23e+04"),
        (short(math.nan), "-"),
    ],
)
def test_numbers_as_text(shown, expected):
    assert shown == expected
