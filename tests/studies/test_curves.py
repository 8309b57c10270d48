import math

import pytest

from congruency.studies.curves import mean_series


def test_the_mean_its_margin_and_every_seed():
    made = mean_series("a", [1, 2], {3: [1.0, 2.0], 5: [3.0, 6.0]})
    assert made.y == [2.0, 4.0]
    assert made.margin == pytest.approx(
        [12.7062 * 1.0, 12.7062 * 2.0], rel=1e-4
    )  # t at 97.5 % with one degree of freedom
    assert made.runs == {3: [1.0, 2.0], 5: [3.0, 6.0]}


def test_a_run_that_ended_early_counts_as_far_as_it_came():
    made = mean_series("a", [1, 2], {3: [1.0], 5: [3.0, 6.0]})
    assert made.y == [2.0, 6.0]
    assert math.isnan(made.margin[1])
    assert math.isnan(made.runs[3][1])


def test_a_single_run_is_its_own_line():
    assert mean_series("a", [1], {0: [1.0]}).runs == {}
