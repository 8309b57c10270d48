import json
import math
from pathlib import Path

import pytest
import torch
from learning import assert_learns

from congruency.experiments import demo
from congruency.experiments.evidence import Difference, paired_difference

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
    """The runs are paired: first weights, order of samples and measuring are the same for every method."""
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


def test_progress_is_told_for_every_epoch(data):
    told = []
    demo.train_all(demo.Settings(seeds=2, epochs=1), data, told.append)
    assert len(told) == 2 * 3
    assert told[0] == "seed 0, baseline"


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


@pytest.mark.parametrize(
    ("values", "baseline", "expected"),
    [
        (
            [3.0, 5.0, 5.0, 7.0],
            [2.0, 3.0, 4.0, 3.0],
            "M changed the test error by +2.00 points (95 % interval -0.25 to +4.25, p = 0.066): "
            "no difference shown at 4 seeds.",
        ),
        (
            [1.0, 1.1, 1.2],
            [2.0, 2.2, 2.1],
            "M changed the test error by -1.00 points (95 % interval -1.25 to -0.75, p = 0.003): "
            "lower than the baseline's at 3 seeds, for this network and this split of these digits.",
        ),
        (
            [2.0, 2.2, 2.1],
            [1.0, 1.1, 1.2],
            "M changed the test error by +1.00 points (95 % interval +0.75 to +1.25, p = 0.003): "
            "higher than the baseline's at 3 seeds, for this network and this split of these digits.",
        ),
        (
            [2.0],
            [1.5],
            "M changed the test error by +0.50 points at the one seed that was run: one seed has no interval and no "
            "test, and shows nothing.",
        ),
        (
            [2.0, 3.0],
            [2.0, 3.0],
            "M and the baseline ended with the same test error at each of 2 seeds: without any spread there is no "
            "interval and no test.",
        ),
        (
            [2.5, 3.5],
            [2.0, 3.0],
            "M changed the test error by +0.50 points at each of 2 seeds: without any spread there is no interval and "
            "no test.",
        ),
        ([math.nan, 3.0], [2.0, 3.0], "M: no comparison, for at least one run ended without a test error."),
    ],
)
def test_the_finding_says_what_the_test_says(values, baseline, expected):
    assert demo.finding("M", paired_difference(values, baseline)) == expected


def test_a_tiny_p_is_not_called_equal():
    assert "p < 0.001)" in demo.finding("M", Difference(-1.0, -1.1, -0.9, 12, 1e-9))


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
    assert page.table.rows[1] == ["broken", "-", "-", "-", "-", "2.5x"]
    assert "no comparison" in page.findings[0]
    assert "nan" not in demo.render(page).lower()
    assert json.loads(demo.to_json(results))["broken"]["test_error"] == [None, 3.0]


def test_the_table_pairs_by_seed():
    results = {"baseline": runs([2.0, 3.0, 7.0]), "better": runs([1.0, 2.0, 5.9])}
    _, better = demo.compose(SMALL, results, "", 1.0).table.rows
    assert better[2:4] == ["-1.03 ± 0.14", "0.001"]


def test_hostile_names_of_methods_are_escaped():
    name = "<script>alert(1)</script>"
    html = demo.render(demo.compose(SMALL, {"baseline": runs([2.0, 3.0]), name: runs([1.0, 3.0])}, name, 1.0))
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_the_command_repeats_the_settings():
    settings = demo.Settings(3, 4, 5, 2, 7)
    assert demo.command(settings, Path("my page")) == (
        "congruency demo --seeds 3 --epochs 4 --window 5 --references 2 --first-seed 7 --out 'my page'"
    )
