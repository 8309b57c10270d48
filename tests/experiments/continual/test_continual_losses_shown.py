"""Losses of continual runs: kept in files, told in results, drawn where they are known."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from congruency.continual import LearnerConfig, Outcome
from congruency.experiments.continual import reproduce, showing, tables
from congruency.experiments.continual.reproduce import Settings
from congruency.experiments.continual.store import Store

KEPT = Path(__file__).parents[3] / "docs" / "results" / "icifar100_clean" / "runs"
LOSSES = torch.tensor(
    [[[1.0, 8.0, 8.0], [2.0, 4.0, 8.0], [1.0, 2.0, 6.0]], [[3.0, 9.0, 9.0], [4.0, 4.0, 9.0], [1.0, 1.0, 1.0]]]
)
# so far: 1, 3, 3 and 3, 4, 1; means 2, 3.5, 2; after the last task: 3 and 1


def outcome(losses=LOSSES):
    """Two seeds, three tasks."""
    matrix = torch.full((2, 1, 3, 3), 0.5, dtype=torch.float64)
    return Outcome(matrix, torch.full((2, 3), 0.1), torch.full((2, 1, 3), torch.nan), losses.double().unsqueeze(1))


def settings(**changes) -> Settings:
    return Settings(**{"table": "mnist_r", "base": "digits", "tasks": 3, "samples": 60, "memory": 20, **changes})


def test_a_kept_run_comes_back_whole(tmp_path):
    store, method = Store(tmp_path, {"tasks": 3}), LearnerConfig("mine", "single")
    one = outcome(LOSSES[:1])
    store.save(method, 0, Outcome(one.matrix[:1], one.baseline[:1], one.agreement[:1], one.losses))
    assert torch.equal(store.load(method, 0).losses, one.losses)


def test_every_run_in_the_checkout_loads_also_from_before_losses_were_kept():
    files = sorted(KEPT.glob("*.json"))
    kept = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert {"losses" in held for held in kept} == {True, False}
    for file, held in zip(files, kept, strict=True):
        found = Store(KEPT, held["setting"]).load(LearnerConfig(**held["method"]), held["seed"])
        assert found is not None, file.name
        assert found.matrix[0, 0].tolist() == held["matrix"]
        assert found.losses.shape == found.matrix.shape
        if "losses" in held:
            assert found.losses[0, 0].tolist() == held["losses"]
        else:
            assert torch.isnan(found.losses).all()


def forget_losses(folder, seed=""):
    """Make files as they were written before."""
    for file in (folder / "runs").glob(f"*seed{seed}*.json"):
        held = json.loads(file.read_text())
        del held["losses"]
        file.write_text(json.dumps(held))


def test_older_runs_are_shown_without_losses(tmp_path):
    chosen = settings(rows=["GEM", "single"], seeds=[0, 1])
    reproduce.run_rows(chosen, tmp_path)
    forget_losses(tmp_path)
    results = reproduce.run_rows(chosen, tmp_path)
    page, _ = showing.show(chosen, results, tmp_path, "command", 1.0)
    assert all("validation_loss" not in metrics for metrics in json.loads(showing.to_json(results)).values())
    assert not [figure for figure in page.figures if "loss" in figure.title.lower()]


def test_a_seed_without_losses_leaves_a_row_without_a_curve(tmp_path):
    chosen = settings(rows=["GEM", "single"], seeds=[0, 1])
    whole = reproduce.run_rows(chosen, tmp_path)
    for file in (tmp_path / "runs").glob("single-*"):
        (tmp_path / "aside").mkdir(exist_ok=True)
        file.rename(tmp_path / "aside" / file.name)
    forget_losses(tmp_path, seed=1)  # of GEM, which is the only one left
    for file in (tmp_path / "aside").iterdir():
        file.rename(tmp_path / "runs" / file.name)
    results = reproduce.run_rows(chosen, tmp_path)
    found = json.loads(showing.to_json(results))
    first = float(whole["GEM"].losses[0, 0, -1].mean())
    assert found["GEM"]["validation_loss"] == [pytest.approx(first), None]  # in the order of the seeds
    assert None not in found["single"]["validation_loss"]
    (chart,) = [f.chart for f in showing.compose(chosen, results, "command", 1.0).figures if "loss" in f.title]
    assert "single" in chart
    assert "GEM" not in chart


@pytest.mark.parametrize(
    ("losses", "reason"),
    [([[1.0]], r"losses of shape \(1, 1\) beside a matrix of shape \(3, 3\)"), (None, "real number"), ("x", "str")],
)
def test_damaged_losses_are_named(losses, reason, tmp_path):
    chosen = settings(rows=["single"], seeds=[0])
    reproduce.run_rows(chosen, tmp_path)
    (path,) = (tmp_path / "runs").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "losses": losses}))
    with pytest.raises(ValueError, match=rf"{path.name} is not a finished run \(.*{reason}.*\); remove it"):
        reproduce.run_rows(chosen, tmp_path)


def test_the_loss_after_the_last_task_is_told_for_every_seed():
    assert json.loads(showing.to_json({"single": outcome()}))["single"]["validation_loss"] == [3.0, 1.0]


def test_only_the_last_row_counts_for_what_is_told():
    """A run that went on from a state without losses has those of its later tasks."""
    losses = LOSSES.clone()
    losses[:, :2] = math.nan
    (curve,) = figures({"single": outcome(losses)})
    assert json.loads(showing.to_json({"single": outcome(losses)}))["single"]["validation_loss"] == [3.0, 1.0]
    assert tips(curve.chart) == ["task 1 single: -", "task 2 single: -", "task 3 single: 2"]


def figures(results):
    rows = tables.pick(tables.TABLES["mnist_r"], list(results))
    return [figure for figure in showing._figures(rows, results) if figure.title.startswith("Validation loss by task")]


def tips(chart):
    """What the chart tells under the pointer, without the margins."""
    found = re.findall(r'<g class="tip">.*?</g>', chart)
    return [" ".join(re.sub(r"<[^>]+>|±\s*[\d.]+", " ", tip).split()) for tip in found]


def test_the_curve_is_the_mean_over_the_tasks_learned_so_far():
    (curve,) = figures({"single": outcome()})
    assert tips(curve.chart) == ["task 1 single: 2", "task 2 single: 3.5", "task 3 single: 2"]


def test_rows_that_are_compared_share_a_chart():
    names = ["single", "GEM", "MLP DCL-30-1 MEM, anchor, margin 0.5"]
    found = figures({name: outcome() for name in names})
    assert [figure.title for figure in found] == [
        "Validation loss by task", "Validation loss by task: anchor, margin 0.5",
    ]  # fmt: skip
    assert "DCL-30-1" not in found[0].chart
    assert "GEM" in found[1].chart
    assert "DCL-30-1" in found[1].chart
