"""Records of continual runs: losses are kept and drawn, stored tables come out the same."""

import math
import re
from pathlib import Path

import pytest
import torch
from chart_data import chart_data, lines

from congruency.continual import Outcome
from congruency.studies.continual.figures import continual_figures
from congruency.studies.continual.parts import part_study
from congruency.studies.continual.runner import outcome_of, result_of
from congruency.studies.continual.tables import StreamSettings, continual_study
from congruency.studies.page import compose, to_page_markdown
from congruency.studies.results import collect, read_results
from congruency.studies.store import Store

RESULTS = Path(__file__).parents[3] / "docs" / "results"
STUDIES = {
    "mnist_r": ("paper", {"table": "mnist_r"}),
    "mnist_p": ("paper", {"table": "mnist_p"}),
    "icifar100_clean": ("paper", {"table": "icifar100", "labels": "clean"}),
    "icifar100_clean_tenth": ("all", {"table": "icifar100", "labels": "clean", "memory": 40}),
    "mnist_r_margins": ("margins", {"table": "mnist_r"}),
    "mnist_p_margins": ("margins", {"table": "mnist_p"}),
    "split_mnist_class": ("peers", {"table": "split_mnist", "scenario": "class"}),
    "split_mnist_task": ("peers", {"table": "split_mnist", "scenario": "task"}),
}
LOSSES = torch.tensor(
    [[[1.0, 8.0, 8.0], [2.0, 4.0, 8.0], [1.0, 2.0, 6.0]], [[3.0, 9.0, 9.0], [4.0, 4.0, 9.0], [1.0, 1.0, 1.0]]]
)
# so far: 1, 3, 3 and 3, 4, 1; means 2, 3.5, 2; after the last task: 3 and 1


@pytest.mark.parametrize("folder", STUDIES)
def test_the_stored_table_comes_out_the_same(folder):
    part, settings = STUDIES[folder]
    results = read_results(RESULTS / folder)
    study = part_study(StreamSettings(**settings), list(results), part)
    committed = (RESULTS / folder / "table.md").read_text(encoding="utf-8")
    command = re.search(r"^    (congruency .*)$", committed, re.MULTILINE)[1]
    page = compose(study, results, command=command)
    before_provenance = to_page_markdown(page).partition("\nMade by ")[0]
    assert before_provenance == committed.partition("\nMade by ")[0]


@pytest.mark.parametrize("folder", ["icifar100_clean", "icifar100_clean_tenth"])
def test_kept_runs_give_the_stored_results(folder):
    """Some of them are from before losses were recorded."""
    store, (part, settings) = Store(RESULTS / folder), STUDIES[folder]
    assert store.settings() == StreamSettings(**settings).described()
    stored = read_results(store.folder)
    results = collect(part_study(StreamSettings(**settings), list(stored), part), store.load())
    assert results.keys() == stored.keys()
    for row, metrics in stored.items():
        for name, values in metrics.items():
            assert results[row][name] == pytest.approx(values, rel=1e-12, nan_ok=True)


def result(losses):
    """One seed, three tasks."""
    matrix = torch.full((1, 1, 3, 3), 0.5, dtype=torch.float64)
    losses = losses.double()[None, None]
    return result_of(Outcome(matrix, torch.full((1, 3), 0.1), torch.full((1, 1, 3), torch.nan), losses))


def figures(results_by_row, chosen="Validation loss by task"):
    """The charts whose title has these words, of validation losses by default, for rows with two seeds each."""
    study = continual_study(StreamSettings(table="mnist_r"), list(results_by_row))
    finished = {
        (row.jobs[0].digest(), seed): one
        for row in study.rows
        for seed, one in enumerate(results_by_row[row.name])
    }  # fmt: skip
    made, _ = continual_figures(study, collect(study, finished), finished)
    return [figure for figure in made if chosen in figure.title]


def test_a_kept_run_comes_back_whole(tmp_path):
    run = continual_study(StreamSettings(table="mnist_r")).runs([0])[0]
    Store(tmp_path).add(run, result(LOSSES[0]))
    found = outcome_of([Store(tmp_path).load()[run.key]])
    assert torch.equal(found.losses[0, 0], LOSSES[0].double())
    assert torch.isnan(found.agreement).all()


def test_the_loss_after_the_last_task_is_a_figure():
    assert [result(losses).figures["validation_loss"] for losses in LOSSES] == [3.0, 1.0]


def test_the_curve_is_the_mean_over_the_tasks_learned_so_far():
    (curve,) = figures({"single": [result(losses) for losses in LOSSES]})
    assert lines(curve.chart) == {"single": {1: 2.0, 2: 3.5, 3: 2.0}}
    assert list(chart_data(curve.chart)["series"][0]["runs"]) == ["0", "1"], "every seed is there"


def test_losses_that_differ_much_are_drawn_on_a_logarithmic_axis():
    """In all charts of a study, since they share their axes."""
    wide = LOSSES.clone()
    wide[:, 0, 0] = 500.0
    rows = {"single": [result(each) for each in LOSSES], "GEM": [result(each) for each in LOSSES]}
    assert not any(chart_data(figure.chart)["log"] for figure in figures(rows))
    rows["GEM"] = [result(each) for each in wide]
    assert all(chart_data(figure.chart)["log"] for figure in figures(rows))


def test_a_run_resumed_from_a_state_without_losses_has_those_of_its_later_tasks():
    losses = LOSSES.clone()
    losses[:, :2] = math.nan
    (curve,) = figures({"single": [result(each) for each in losses]})
    assert lines(curve.chart) == {"single": {1: None, 2: None, 3: 2.0}}


def test_rows_without_losses_have_no_curve():
    undefined = torch.full_like(LOSSES, math.nan)
    assert not figures({"single": [result(each) for each in undefined]})
    (chart,) = figures({"single": [result(each) for each in LOSSES], "GEM": [result(each) for each in undefined]})
    assert "single" in chart.chart
    assert "GEM" not in chart.chart


def test_rows_that_are_compared_share_a_chart():
    names = ["single", "GEM", "MLP DCL-30-1 MEM, anchor, margin 0.5"]
    found = figures({name: [result(losses) for losses in LOSSES] for name in names})
    assert [figure.title for figure in found] == [
        "Validation loss by task", "Validation loss by task: anchor, margin 0.5",
    ]  # fmt: skip
    assert "DCL-30-1" not in found[0].chart
    assert "GEM" in found[1].chart
    assert "DCL-30-1" in found[1].chart


def test_learning_curves_follow_each_task_from_when_it_was_learned():
    matrix = torch.tensor([[0.9, 0.1, 0.1], [0.7, 0.8, 0.2], [0.5, 0.6, 0.7]], dtype=torch.float64)
    agreement, losses = torch.full((1, 1, 3), torch.nan), LOSSES[:1, None].double()
    runs = [result_of(Outcome(m[None, None], torch.full((1, 3), 0.1), agreement, losses)) for m in (matrix, matrix / 2)]
    (curve,) = figures({"single": runs}, "learning curves")
    expected = {"task 1": {1: 67.5, 2: 52.5, 3: 37.5}, "task 2": {2: 60.0, 3: 45.0}, "task 3": {3: 52.5}}
    found = lines(curve.chart)
    assert {name: pytest.approx(line) for name, line in expected.items()} == found
