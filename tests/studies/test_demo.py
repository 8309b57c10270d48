"""The demonstration: paired runs that repeat, and the page about them."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from learning import assert_learns
from rich.console import Console

from congruency.report.page import render
from congruency.studies import demo
from congruency.studies.results import read_results, to_json

SMALL = demo.Settings(seeds=2, epochs=2, window=10)


@pytest.fixture(scope="module")
def data():
    return demo.load_data()


def test_the_split_is_fixed_and_covers_every_digit(data):
    again = demo.load_data()
    assert torch.equal(data.train_x, again.train_x)
    assert torch.equal(data.test_y, again.test_y)
    assert len(data.train_y) == 1024
    assert len(data.test_y) == 773
    assert set(data.train_y.tolist()) == set(data.test_y.tolist()) == set(range(10))
    assert (data.train_x.min(), data.train_x.max()) == (0, 1)


def test_the_same_seed_gives_the_same_numbers(data):
    first, second = (demo.train_all(SMALL, data) for _ in range(2))
    for name in first:
        for one, other in zip(first[name], second[name], strict=True):
            assert one.curves == other.curves
            assert {**one.metrics, "seconds": 0} == {**other.metrics, "seconds": 0}
    assert first["baseline"][0].curves != first["baseline"][1].curves


def test_every_method_learns(data):
    for name, runs in demo.train_all(demo.Settings(seeds=2, epochs=8), data).items():
        for run in runs:
            assert_learns(run.curves["train_loss"], name)


def test_a_dcl_that_never_corrects_repeats_the_baseline(data):
    """The runs are paired: initial weights, order of samples and measuring are the same for every method."""
    idle = demo.Method("idle", "", {"window": None, "offset": 10**6})
    with demo.one_thread():
        baseline, repeated = (demo.train(method, 3, 1, data) for method in (demo.methods(SMALL)[0], idle))
    assert repeated.curves == baseline.curves


def test_training_leaves_the_random_state_and_the_threads_alone(data):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    demo.train_all(demo.Settings(seeds=1, epochs=1), data)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_baseline_is_never_corrected_and_anchor_nearly_always(data):
    with demo.one_thread():
        baseline, concentrate, anchor = (demo.train(method, 0, 2, data) for method in demo.methods(SMALL))
    assert baseline.metrics["corrected_steps"] == 0
    assert 0 < concentrate.metrics["corrected_steps"] < 90
    # of 64 steps, the first is plain and one in ten of the others records the reference
    assert anchor.metrics["corrected_steps"] == pytest.approx(100 * (64 - 1 - 7) / 64)


def test_progress_is_reported_after_every_epoch(data):
    labels = []
    demo.train_all(demo.Settings(seeds=2, epochs=1), data, labels.append)
    assert len(labels) == 2 * 3
    assert labels[0] == "seed 0, baseline"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"epochs": -1}, "epochs must be at least 1, got -1"),
        ({"references": 0}, "references must be at least 1"),
        ({"first_seed": -1}, "first-seed must not be negative"),
        ({"window": 3, "references": 3}, "window must be greater than references"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        demo.Settings(**wrong)


def runs(errors, seconds=1.0, curve=(0.5, math.nan)):
    names = ("congruency", "congruency_previous", "magnitude", "train_loss", "corrected_steps")
    made = []
    for seed, error in enumerate(errors):
        curves = {**{name: list(curve) for name in names}, "test_error": [50.0, error]}
        made.append(demo.Run(curves, demo.summarise(curves, seed, seconds)))
    return made


def test_numbers_that_are_missing_are_shown_as_missing():
    results = {"baseline": runs([2.0, 3.0]), "broken": runs([math.nan, 3.0], seconds=2.5)}
    page = demo.compose(SMALL, results, "congruency demo", 1.0)
    assert page.table.rows[1] == ["broken", "2", "-", "-", "-", "2.5"]
    assert "Nothing could be compared" in page.findings[0]
    assert "nan" not in render(page).lower()
    assert json.loads(to_json(demo.to_results(results)))["broken"]["test_error"] == [None, 3.0]


def test_the_table_pairs_by_seed():
    results = {"baseline": runs([2.0, 3.0, 7.0]), "better": runs([1.0, 2.0, 5.9])}
    page = demo.compose(SMALL, results, "", 1.0)
    assert page.table.columns == [
        "Row", "Seeds", "Test error, %", "Test error against", "Run congruency", "Cost, about",
    ]  # fmt: skip
    assert page.table.rows[1][3] == "-1.03 ± 0.14 (p 0.001)"
    assert page.findings[0] == "better, against baseline: Test error falls by 1.03 points (p 0.001)."
    assert "Left of the dashed line is fewer errors" in page.headline.note


def test_the_cost_is_the_median_over_the_seeds():
    slow = runs([1.0, 2.0, 3.0], seconds=2.0)
    slow[2] = demo.Run(slow[2].curves, {**slow[2].metrics, "seconds": 50.0})
    page = demo.compose(SMALL, {"baseline": runs([2.0, 3.0, 7.0]), "slow": slow}, "", 1.0)
    assert [row[-1] for row in page.table.rows] == ["1.0", "2.0"]


def test_hostile_names_of_methods_are_escaped():
    name = "<script>alert(1)</script>"
    html = render(demo.compose(SMALL, {"baseline": runs([2.0, 3.0]), name: runs([1.0, 3.0])}, name, 1.0))
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_the_command_repeats_the_settings():
    settings = demo.Settings(3, 4, 5, 2, 7)
    assert demo.command(settings, Path("my page")) == (
        "congruency demo --seeds 3 --epochs 4 --window 5 --references 2 --first-seed 7 --out 'my page'"
    )


def test_the_command_prints_the_table_and_writes_the_page(tmp_path):
    console = Console(record=True, width=120, file=io.StringIO())
    demo.run(demo.Settings(seeds=2, epochs=1, window=10), tmp_path, console)
    text = console.export_text()
    assert "DCL concentrate" in text
    assert "The page with the curves:" in text
    assert {"index.html", "results.json"} == {path.name for path in tmp_path.iterdir()}
    page = (tmp_path / "index.html").read_text()
    assert "Training loss" in page
    results = read_results(tmp_path)
    assert list(results) == ["baseline", "DCL concentrate", "DCL anchor"]
    assert results["DCL anchor"]["seed"] == [0, 1]
