"""The charts of the stored results: of the numbers in them, and of every result that has a page."""

from pathlib import Path

import pytest
from chart_data import chart_data, lines

from congruency.studies.results import paired, read_results
from congruency.studies.statistics import mean_interval, paired_difference
from replication.figures import result_figures

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGES = sorted(path.parent.name for path in RESULTS.glob("*/table.md"))


@pytest.mark.parametrize("name", PAGES)
def test_every_result_with_a_page_has_charts(name):
    figures = result_figures(RESULTS / name)
    assert figures
    for figure in figures:
        data = chart_data(figure.chart)
        values = (
            [one["y"] for one in data["series"]]
            if data["kind"] == "line"
            else [one["values"] for one in data["samples"]]
        )
        assert values
        assert all(any(value is not None for value in each) for each in values), figure.title


def test_differences_are_those_of_the_results():
    results = read_results(RESULTS / "mnist_r")
    first = chart_data(result_figures(RESULTS / "mnist_r")[1].chart)["samples"][0]
    assert first["name"] == "MLP DCL-30-1 MEM, concentrate, margin 0"
    ours, theirs = paired(results, first["name"], "GEM, margin 0", "accuracy")
    found = paired_difference(ours, theirs)
    assert first["mean"] == pytest.approx(100 * found.mean, rel=1e-4)
    assert first["margin"] == pytest.approx(100 * found.margin, rel=1e-4)
    assert len(first["values"]) == 20


def test_the_orders_are_compared_with_each_other():
    (figure,) = result_figures(RESULTS / "order_digits")
    means = [round(one["mean"], 4) for one in chart_data(figure.chart)["samples"]]
    kept = (RESULTS / "order_digits" / "table.md").read_text("utf-8")
    assert len(means) == 4
    assert all(f"| {mean:.4f} ±" in kept for mean in means), "the differences of its table"


def test_curves_are_those_of_the_results():
    (by_window,) = result_figures(RESULTS / "cost_window")
    results = read_results(RESULTS / "cost_window")
    for row, values in lines(by_window.chart).items():
        assert list(values) == ["10", "20", "30", "40", "50"]
        for window, value in values.items():
            assert value == pytest.approx(mean_interval(results[row][window]).mean, rel=1e-4)
    by_step = lines(result_figures(RESULTS / "language_10m")[0].chart)
    final = read_results(RESULTS / "language_10m")
    for row, values in by_step.items():
        assert values[1500] == pytest.approx(mean_interval(final[row]["validation loss"]).mean, rel=1e-4)


def test_without_results_there_is_nothing_to_draw(tmp_path):
    assert result_figures(tmp_path) == []
