"""The bounds of Theorem 1 beside measured congruency, and the command and page that compare them."""

import json

import pytest
import torch
from one_command import call

from congruency.cli.bound import bound as command
from congruency.studies.analysis import bound
from congruency.studies.analysis.bound import PROBLEMS, BoundedDescent, Problem, compare, logistic

STEPS = (0.02, 0.1, 0.5, 0.9, 1.0, 1.3, 1.9)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("relative", STEPS)
def test_the_sound_bounds_hold_below_and_above_one_over_l(name, relative):
    one = compare(PROBLEMS[name](), relative, 30)
    assert (one.measured >= one.bounds["sharp"] - 1e-9).all()
    assert (one.bounds["sharp"] >= one.bounds["expanded"] - 1e-9).all()
    assert one.broken("sharp") == one.broken("expanded") == 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_printed_form_asks_for_the_impossible_with_small_steps(name):
    one = compare(PROBLEMS[name](), 0.1, 30)
    assert one.broken("printed") > 90
    assert float(one.bounds["printed"].max()) > 1


def test_one_variable_is_known_in_closed_form():
    """g_i = (1 - a)^i: congruency 1 while a < 1, and the sharp bound by the sums of powers."""
    a, steps = 0.3, 12
    line = Problem("line", "", lambda x: 2.0 * x, torch.ones(1, dtype=torch.float64), 2.0)
    one = compare(line, a, steps)
    g = [2 * (1 - a) ** i for i in range(steps + 1)]
    for k in range(1, steps + 1):
        total, squares = sum(g[:k]), sum(v * v for v in g[:k])
        expected = max(-1.0, ((1 - a / 2) * squares - a / 2 * total**2) / (g[k] * total))
        assert float(one.measured[k - 1]) == pytest.approx(1.0)
        assert float(one.bounds["sharp"][k - 1]) == pytest.approx(expected)


def test_the_constant_of_logistic_regression_is_reached_at_the_start():
    problem = logistic()
    bends = torch.autograd.functional.jacobian(problem.gradient, problem.start)
    assert float(torch.linalg.eigvalsh(bends)[-1]) == pytest.approx(problem.lipschitz, rel=1e-9)


def test_gap_tight_and_vacuous_by_hand():
    bounds = torch.tensor([0.88, 0.5, -1.0, -1.0])
    one = BoundedDescent(
        1.0, torch.tensor([0.9, 0.8, 0.5, 0.0]), dict.fromkeys(("sharp", "expanded", "printed"), bounds)
    )
    assert one.tight_for == 1
    assert one.vacuous_from == 3
    assert one.gap == pytest.approx((0.02 + 0.3 + 1.5 + 1.0) / 4)
    assert one.broken("printed") == 0


def test_a_descent_that_explodes_or_stops_is_cut():
    line = Problem("line", "", lambda x: x, torch.ones(1, dtype=torch.float64), 1.0)
    assert len(compare(line, 1e30, 100).measured) < 10
    with pytest.raises(ValueError, match="nothing to compare"):
        compare(line, 1.0, 10)  # at the minimum after one step
    with pytest.raises(ValueError, match="positive"):
        compare(line, 0.0, 10)


def test_findings_say_which_bounds_held():
    problem = PROBLEMS["quadratic"]()
    reported = bound.findings({"quadratic": (problem, [compare(problem, size, 20) for size in (0.1, 1.5)])})
    assert reported[0] == "The sharp and the expanded bound held at every iteration."
    assert "broken with 1 of 2 step sizes" in reported[1]
    assert len(reported) == 2


def test_the_command(tmp_path):
    result, _ = call(command, "--problem", "logistic", "--step", 0.1, "--step", 1.5, "--steps", 12, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "logistic, 0.1 / L" in result.output
    page = (tmp_path / "index.html").read_text()
    assert page.count('class="chart"') == 3
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert len(numbers["logistic"]["steps"][0]["measured"]) == 12


@pytest.mark.parametrize(
    ("words", "message"), [(["--problem", "cubic"], "'cubic' is not one of"), (["--step", "-1"], "positive")]
)
def test_bad_input(tmp_path, words, message):
    result, text = call(command, *words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in text
