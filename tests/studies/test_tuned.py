"""Methods at tuned learning rates: image classifiers by the command, and the stored tables from their records."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from congruency import cli
from congruency.classification.optimizers import check_optimizer, create_optimizer
from congruency.language import LanguageSetup, Shape
from congruency.studies.classification.tuned import ROWS, TUNED, tuned_study
from congruency.studies.language.study import language_study
from congruency.studies.page import compose, to_page_markdown
from congruency.studies.results import collect, read_results
from congruency.studies.statistics import paired_difference
from congruency.studies.store import Store
from congruency.training import METHODS, choose_methods

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def stored(folder):
    """The study of a folder, from its settings and the rows that it has."""
    settings, rows = Store(RESULTS / folder).settings(), read_results(RESULTS / folder)
    tuning = [json.loads(line) for line in (RESULTS / folder / "tuning" / "finished.jsonl").read_text().splitlines()]
    methods = choose_methods([name for name in rows if name != "baseline"])
    if settings["study"] == "tuned":
        return tuned_study(settings["table"], methods, (0.4, 0.8, 1.6), settings["changes"]), tuning
    setup = {**settings["setup"], "shape": Shape(**settings["setup"]["shape"]), "betas": (0.9, 0.95)}
    return language_study("10m", LanguageSetup(**setup), methods, (0.0014, 0.002, 0.0028, 0.004, 0.0056)), tuning


def check_table(folder, study, results, repeated=0):
    """The numbers and the text of a stored table are those of its runs."""
    assert results == read_results(folder)
    committed = (folder / "table.md").read_text("utf-8")
    (command,) = (line.strip() for line in committed.splitlines() if line.startswith("    congruency "))
    page = compose(study, results, command=command, repeated=repeated)
    made = [line for line in to_page_markdown(page).splitlines() if not line.startswith("Made by ")]
    assert made == [line for line in committed.splitlines() if not line.startswith("Made by ")]


@pytest.mark.parametrize(("folder", "seeds"), [("cifar10_resnet9", [10_000, 10_001]), ("language_10m", [10_000])])
def test_a_tuned_table_comes_out_of_its_runs(folder, seeds):
    tuned, tuning = stored(folder)
    finished, found = Store(RESULTS / folder).load(), Store(RESULTS / folder / "tuning").load()
    assert {line["seed"] for line in tuning} == set(seeds)
    chosen = tuned.best_rates(collect(tuned.tuning(), found))
    study = tuned.comparison(chosen, seeds)
    results = tuned.with_steps_saved(study, collect(study, finished), finished)
    check_table(RESULTS / folder, study, results, repeated=3 if folder == "cifar10_resnet9" else 0)
    rows = dict.fromkeys(name.rpartition(",")[0] for name in read_results(RESULTS / folder / "tuning"))
    everything = replace(tuned, methods=choose_methods([name for name in rows if name != "baseline"])).tuning()
    check_table(RESULTS / folder / "tuning", everything, collect(everything, found))
    for rate in {rate for row in tuned.tuning().rows for rate in [row.settings["rate"]]}:
        assert f" {rate:g}" in study.lead


def test_the_smallest_difference_that_could_be_shown():
    """Against the power of the t-test itself, whose statistic has a noncentral t distribution."""
    generator = torch.Generator().manual_seed(0)
    for count in (5, 8, 20):
        values = torch.randn(count, dtype=torch.float64, generator=generator).tolist()
        found = paired_difference(values, [0.0] * count)
        spread = torch.tensor(values, dtype=torch.float64).std().item()
        shift = found.detectable() / (spread / math.sqrt(count))
        power = 1 - stats.nct.cdf(stats.t.ppf(0.975, count - 1), count - 1, shift)
        assert power == pytest.approx(0.8, abs=0.035)
    assert math.isnan(paired_difference([1.0], [0.5]).detectable())


@pytest.mark.parametrize("name", TUNED)
def test_every_method_has_the_same_grid(name):
    study = tuned_study(name, choose_methods(ROWS))
    rows = study.tuning().rows
    assert len(rows) == (len(ROWS) + 1) * len(TUNED[name].rates)
    assert len({row.jobs[0].digest() for row in rows}) == len(rows)
    for row in rows:
        assert row.jobs[0].setup.learning_rate == row.settings["rate"]
        assert row.jobs[0].method == METHODS[row.settings["method"]]


def test_the_command_tunes_then_compares(tmp_path):
    words = [
        "reproduce", "tuned", "cifar10_resnet9", "--dataset", "digits", "--model", "mlp", "--row", "cautious",
        "--seeds", 2, "--tuning-seeds", 1, "--rate", 0.05, "--rate", 0.2, "--epochs", 2, "--batch-size", 64,
        "--device", "cpu", "--threads", 1, "--out", tmp_path / "out",
    ]  # fmt: skip
    result = CliRunner().invoke(cli.build(), list(map(str, words)), env={"COLUMNS": "120", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {name: row["seed"] for name, row in found.items()} == {"baseline": [0, 1], "cautious": [0, 1]}
    line = json.loads((tmp_path / "out" / "finished.jsonl").read_text().splitlines()[0])
    assert len(line["arrays"]["test_error"]) == 2
    assert line["arrays"]["train_loss"][1] < line["arrays"]["train_loss"][0]
    page = (tmp_path / "out" / "table.md").read_text()
    assert "Chosen from 0.05, 0.2 on 1 seed of their own, 2 runs per method." in page
    assert "Test error by step" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize("name", ["sgd", "adamw", "lion", "nadamw"])
def test_optimizers_by_name_learn(name):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    optimizer = create_optimizer(name, model, learning_rate=0.01, weight_decay=0.1)
    inputs = torch.randn(64, 4)
    losses = []
    for _ in range(60):
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays[model[0].weight] == 0.1
    assert decays[model[0].bias] == (0.1 if name == "sgd" else 0.0)


def test_optimizers_that_there_are_not():
    with pytest.raises(ValueError, match=r"there is no optimizer 'adamm'; give a name of timm\.optim, similar: adam"):
        check_optimizer("adamm")
    with pytest.raises(ValueError, match="adahessian needs second derivatives"):
        check_optimizer("adahessian")
