"""The demonstration: paired runs that repeat, and the page about them."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from learning import assert_learns
from rich.console import Console

import congruency
from congruency.language import read_corpus
from congruency.report.page import render
from congruency.studies import demo
from congruency.studies.executor import limited_threads
from congruency.studies.results import read_results, to_json

SMALL = demo.Settings(seeds=2, steps=10, epochs=2, window=5)
ROWS = [
    "GPT, AdamW", "GPT, Cautious", "GPT, DCL", "digits, SGD", "digits, Cautious", "digits, DCL",
    "rotations, SGD", "rotations, GEM",
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus():
    return read_corpus()


def tasks_of(settings, corpus):
    return demo.language_task(corpus, settings.steps), demo.digits_task(settings.epochs), demo.stream_task()


@pytest.fixture(scope="module")
def tasks(corpus):
    """All tasks, with few held-out windows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "HELD_OUT_WINDOWS", 16)
        return tasks_of(SMALL, corpus)


@pytest.fixture(scope="module")
def small(tasks):
    """The runs of a small demonstration, and the progress that was reported."""
    labels = []
    return demo.train_all(SMALL, tasks, labels.append), labels


def test_the_split_of_the_digits_is_fixed_and_covers_every_class():
    first, again = (demo.digits_task(1).batches(torch.Generator().manual_seed(0)) for _ in range(2))
    seen = []
    for (inputs, targets, _), (other_inputs, other_targets, _) in zip(first, again, strict=True):
        assert torch.equal(inputs, other_inputs)
        assert torch.equal(targets, other_targets)
        assert inputs.shape[1:] == (64,)
        assert 0 <= inputs.min() < inputs.max() <= 1
        seen += targets.tolist()
    assert len(seen) == 1024
    assert set(seen) == set(range(10))


def test_the_language_model_is_asked_for_the_next_byte(corpus):
    [(inputs, targets, _), *rest] = demo.language_task(corpus, 10).batches(torch.Generator().manual_seed(0))
    assert len(rest) == 9
    assert inputs.shape == targets.shape == (16, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert bytes([*inputs[0].tolist(), targets[0, -1]]) in bytes(corpus.train.tolist())


def test_the_validation_loss_is_that_of_held_out_text(corpus):
    """A model that knows only how frequent the bytes of the held-out text are has about their entropy as its loss."""
    frequency = torch.bincount(corpus.held_out.long(), minlength=256).double() / len(corpus.held_out)
    entropy = torch.special.entr(frequency).sum().item()
    logits = frequency.clamp(min=1e-9).log().float()
    found = demo.language_task(corpus, 10).evaluate(lambda inputs: logits.expand(*inputs.shape, 256))
    assert found == pytest.approx(entropy, rel=0.05)


def test_the_same_seed_gives_the_same_numbers(small, tasks):
    first, _ = small
    assert list(first) == ROWS
    assert repr(first) == repr(demo.train_all(SMALL, tasks))  # bit for bit, nan included
    for name in ROWS:
        assert first[name][0].curves != first[name][1].curves


def test_every_method_learns_every_task(corpus):
    settings = demo.Settings(seeds=1, steps=30, epochs=4)
    for name, [run] in demo.train_all(settings, tasks_of(settings, corpus)).items():
        assert_learns(run.curves["train_loss"], name)
        if name != "rotations, SGD":  # which forgets the earlier angles as it learns the next
            assert_learns(run.curves["validation_loss" if name.startswith("GPT") else "test_error"], name)


def test_a_correction_that_never_acts_repeats_the_baseline(tasks):
    """The runs are paired: initial weights, batches and measuring are the same for every method."""
    for task in tasks:
        with limited_threads(1):
            baseline = demo.train(task, lambda model, optimizer: None, 3)
            repeated = demo.train(task, lambda model, optimizer: congruency.DCL(optimizer, offset=10**6), 3)
        assert repeated.curves == baseline.curves


def test_training_leaves_the_random_state_and_the_threads_alone(tasks):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    demo.train_all(demo.Settings(seeds=1), tasks)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_gem_forgets_less_than_plain_training(tasks):
    with limited_threads(1):
        plain, gem = (demo.train(tasks[2], correct, 0) for correct in demo.methods(tasks[2], SMALL).values())
    assert gem.metrics["test_error"] < plain.metrics["test_error"] - 10
    assert gem.curves["changed"][0] == 0, "there is no past task"
    assert gem.curves["changed"][-1] > 20


def test_the_tasks_of_the_stream_are_the_digits_at_five_angles(tasks):
    numbers = [number for _, _, number in tasks[2].batches(torch.Generator().manual_seed(0))]
    assert numbers == sorted(numbers)
    assert {number: numbers.count(number) for number in numbers} == dict.fromkeys(range(5), 4 * 32)


def test_what_a_correction_changed_is_measured(tasks):
    def paper(model, optimizer):
        return congruency.DCL(optimizer, window=5, mode="anchor", margin=0.5, offset=1)

    with limited_threads(1):
        for task in tasks[:2]:
            found = [demo.train(task, c, 0) for c in (*demo.methods(task, SMALL).values(), paper)]
            plain, cautious, _, anchor = (run.metrics["changed"] for run in found)
            assert plain == 0
            assert 20 < cautious < 70
            # the first step is plain, and one in five of the others records the reference
            steps = task.steps
            assert anchor == pytest.approx(100 * (steps - 1 - math.ceil((steps - 1) / 5)) / steps)


def test_progress_is_reported_after_every_evaluation(small):
    _, labels = small
    assert len(labels) == 2 * (3 * (10 + 2) + 2 * 5)
    assert labels[0] == "seed 0: GPT, AdamW"


def test_a_number_of_steps_that_cannot_be_divided_is_refused():
    with pytest.raises(ValueError, match="steps must be a multiple of 10, got 55"):
        demo.Settings(steps=55)


BETTER, WORSE, UNCLEAR, SAME = (1.0, 1.0, 1.1), (-1.0, -1.0, -1.1), (0.5, -0.4, 0.1), (0.0, 0.0, 0.0)


def runs(tasks, gains=SAME, changed=0.0, bad=None):
    """Runs of three seeds in which Cautious is better than the baseline by `gains`, and DCL changed some steps."""
    made = {}
    for task in tasks:
        of_methods = (SAME, gains, SAME), (0.0, 40.0, changed)
        if task.name == "rotations":  # GEM is as the baseline
            of_methods = (SAME, SAME), (0.0, 80.0)
        rows = zip(demo.methods(task, SMALL), *of_methods, strict=True)
        for name, own_gains, share in rows:
            made[name] = []
            for seed, (value, gain) in enumerate(zip((2.0, 3.0, 7.0), own_gains, strict=True)):
                last = math.nan if (name, seed) == (bad, 0) else value - gain
                curves = {task.metric: [50.0, last], "train_loss": [1.0, 0.5], "congruency": [0.5, math.nan]}
                curves["changed"] = [share, share]
                made[name].append(demo.Run(curves, demo.summarise(task, curves, seed)))
    return made


def compose(tasks, corpus, made, repeat="congruency demo"):
    return demo.compose(SMALL, tasks, corpus, made, repeat, 1.0)


def test_numbers_that_are_missing_are_shown_as_missing(tasks, corpus):
    made = runs(tasks, bad="digits, Cautious")
    page = compose(tasks, corpus, made)
    assert ["digits, Cautious", "3", "-", "-", "-", "-"] in page.table.rows
    assert page.table.rows[0][2:] == ["4.000 ± 6.572", "-", "-", "-"]
    assert "nan" not in render(page).lower()
    assert json.loads(to_json(demo.to_results(made)))["digits, Cautious"]["test_error"] == [None, 3.0, 7.0]


def test_each_row_is_compared_with_its_own_baseline_in_its_own_metric(tasks, corpus):
    page = compose(tasks, corpus, runs(tasks, BETTER))
    assert page.table.columns == [
        "Row", "Seeds", "Validation loss", "Validation loss against", "Test error, %", "Test error against",
    ]  # fmt: skip
    assert [row[0] for row in page.table.rows] == ROWS
    assert page.table.rows[1][3:] == ["-1.033 ± 0.143 (p 0.001)", "-", "-"]
    assert page.table.rows[4][2:4] == ["-", "-"]
    assert page.table.rows[4][5] == "-1.03 ± 0.14 (p 0.001)"
    assert page.findings[:3] == [
        "GPT, Cautious, against GPT, AdamW: Validation loss falls by 1.033 nats per byte (p 0.001).",
        "digits, Cautious, against digits, SGD: Test error falls by 1.03 points (p 0.001).",
        "Identical on every seed to the row they are compared with: GPT, DCL; digits, DCL; rotations, GEM.",
    ]


def test_a_correction_that_changed_nothing_is_reported_as_such(tasks, corpus):
    idle = compose(tasks, corpus, runs(tasks)).findings
    assert "Cautious left out 40.0 % (GPT), 40.0 % (digits) of the elements of the updates." in idle
    assert "DCL corrected 0.0 % (GPT), 0.0 % (digits) of the steps; it had no effect on GPT and digits." in idle
    active = compose(tasks, corpus, runs(tasks, changed=2.5)).findings
    assert "DCL corrected 2.5 % (GPT), 2.5 % (digits) of the steps." in active


def test_worse_and_unclear_results_are_reported_as_such(tasks, corpus):
    worse = compose(tasks, corpus, runs(tasks, WORSE)).findings
    assert "digits, Cautious, against digits, SGD: Test error rises by 1.03 points (p 0.001)." in worse
    unclear = compose(tasks, corpus, runs(tasks, UNCLEAR)).findings
    assert unclear[0] == "No clear difference: GPT, Cautious; digits, Cautious."


def test_hostile_text_is_escaped(tasks, corpus):
    html = render(compose(tasks, corpus, runs(tasks), "<script>alert(1)</script>"))
    assert html.count("<script") == 1, "the one that draws the charts"
    assert "&lt;script&gt;" in html


def test_what_to_try_next_can_be_run():
    """The lines of Python work as they stand, given a model and its optimizer; the command is one of ours."""
    model = torch.nn.Linear(2, 2)
    names = {"congruency": congruency, "model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    *lines, command = demo.NEXT.values()
    for line in lines:
        exec(line, names)
    assert isinstance(names["cautious"], congruency.Cautious)
    assert isinstance(names["dcl"], congruency.DCL)
    assert isinstance(names["gem"], congruency.GEM)
    assert isinstance(names["meter"], congruency.CongruencyMeter)
    assert command.startswith("congruency train-lm ")


def test_the_command_repeats_the_settings():
    settings = demo.Settings(3, 40, 4, 5, 7)
    assert demo.command(settings, Path("my page")) == (
        "congruency demo --seeds 3 --steps 40 --epochs 4 --window 5 --first-seed 7 --out 'my page'"
    )


def test_the_command_prints_the_table_and_writes_the_page(tmp_path):
    console = Console(record=True, width=120, file=io.StringIO())
    demo.run(SMALL, tmp_path, console)
    text = console.export_text()
    assert "digits, DCL" in text
    assert "cautious = congruency.Cautious(optimizer)" in text
    assert "The page with the curves:" in text
    assert {"index.html", "results.json"} == {path.name for path in tmp_path.iterdir()}
    page = (tmp_path / "index.html").read_text()
    assert "GPT: validation loss" in page
    assert "What to try in your own loop" in page
    results = read_results(tmp_path)
    assert list(results) == ROWS
    assert results["digits, DCL"]["seed"] == [0, 1]
    assert "test_error" not in results["GPT, DCL"]
