"""Methods at tuned learning rates: image classifiers by the command, and the stored tables from their records."""

import itertools
import json
import math
import re
import shlex
import shutil
import typing
from dataclasses import replace
from functools import partial
from pathlib import Path

import command_line
import pytest
import torch
from scipy import stats

from congruency.classification.optimizers import check_optimizer, create_optimizer
from congruency.cli.reproduce.tuned import tuned
from congruency.language import LanguageSetup, Shape
from congruency.studies.classification.tuned import TUNED, tuned_study
from congruency.studies.language.study import RATES, language_study
from congruency.studies.page import compose, to_page_markdown
from congruency.studies.results import collect, read_results
from congruency.studies.statistics import paired_difference
from congruency.studies.store import Store
from congruency.studies.tuned import finer
from congruency.training import choose_families, choose_methods, method_named

RESULTS = Path(__file__).parents[2] / "docs" / "results"


AT_TUNED_RATES = [
    path.parent
    for path in sorted(RESULTS.glob("*/settings.json"))
    if json.loads(path.read_text()).get("study") in ("tuned", "language")
]


def stored(folder):
    """The study of a folder and the seeds of its tuning: from its settings, and what its page says."""
    settings, rows = Store(folder).settings(), read_results(folder)
    page = (folder / "table.md").read_text("utf-8")
    words = shlex.split(command_of(folder))
    given = [(word, value) for word, value in itertools.pairwise(words) if word.startswith("--")]
    rates = [float(value) for word, value in given if word == "--rate"]
    seeds = range(10_000, 10_000 + int(dict(given).get("--tuning-seeds", 2)))
    choose = choose_families if settings.get("screen") else choose_methods
    methods = choose([name for name in rows if name != "baseline"])
    if settings["study"] == "tuned":
        study = tuned_study(settings["table"], methods, rates, settings["changes"])
        notes = re.findall(r"[^.\s][^.]* is not the official set here: .*?\)\.", page)
        return replace(study, lead=" ".join([study.lead, *notes])), seeds
    setup = {**settings["setup"], "shape": Shape(**settings["setup"]["shape"]), "betas": (0.9, 0.95)}
    size = words[3]
    return language_study(size, LanguageSetup(**setup), methods, rates or RATES[size]), seeds


def check_table(folder, study, results, command):
    """The numbers and the text of a stored table are those of its runs."""
    assert results == read_results(folder)
    committed = (folder / "table.md").read_text("utf-8")
    resumed = re.search(r"^- (\d+) time\(s\) a run was resumed", committed, re.MULTILINE)
    page = compose(study, results, command=command, repeated=int(resumed[1]) if resumed else 0)
    made = [line for line in to_page_markdown(page).splitlines() if not line.startswith("Made by ")]
    assert made == [line for line in committed.splitlines() if not line.startswith("Made by ")]


def command_of(folder):
    (command,) = (
        line.strip() for line in (folder / "table.md").read_text("utf-8").splitlines() if line.startswith("    congr")
    )
    return command


@pytest.mark.parametrize("folder", AT_TUNED_RATES, ids=lambda folder: folder.name)
def test_a_tuned_table_comes_out_of_its_runs(folder):
    tuned, seeds = stored(folder)
    finished, found = Store(folder).load(), Store(folder / "tuning").load()
    if tuned.tunes:
        assert {seed for _, seed in found} == set(seeds)
        chosen = tuned.best(collect(tuned.tuning(), found))
    else:
        assert not found
        chosen = {name: tuned.grid(name)[0] for name in tuned.methods}
    study = tuned.comparison(chosen, seeds)
    results = tuned.with_steps_saved(study, collect(study, finished), finished)
    check_table(folder, study, results, command_of(folder))
    figures, _ = tuned.learning_curves(study, results, finished)
    assert [figure.title for figure in figures][:: len(figures) - 1] == [
        f"{tuned.column.heading.partition(',')[0]} by step", "Training loss by step",
    ]  # fmt: skip
    if found:
        check_tuning(folder, tuned, found)


def check_tuning(folder, tuned, found):
    rows = dict.fromkeys(name.partition(",")[0] for name in read_results(folder / "tuning"))
    choose = choose_families if Store(folder).settings().get("screen") else choose_methods
    everything = replace(tuned, methods=choose([name for name in rows if name != "baseline"])).tuning()
    check_table(folder / "tuning", everything, collect(everything, found), command_of(folder / "tuning"))


def test_the_smallest_difference_that_could_be_shown():
    """Against the power of the t-test itself, whose statistic has a noncentral t distribution."""
    generator = torch.Generator().manual_seed(0)
    for count in (5, 8, 20):
        values = torch.randn(count, dtype=torch.float64, generator=generator).tolist()
        found = paired_difference(values, [0.0] * count)
        spread = torch.tensor(values, dtype=torch.float64).std().item()
        shift = found.detectable / (spread / math.sqrt(count))
        power = 1 - stats.nct.cdf(stats.t.ppf(0.975, count - 1), count - 1, shift)
        assert power == pytest.approx(0.8, abs=0.035)
    assert math.isnan(paired_difference([1.0], [0.5]).detectable)


@pytest.mark.parametrize("name", TUNED)
def test_every_method_has_the_same_grid(name):
    methods = choose_methods(TUNED[name].rows)
    study = tuned_study(name, methods)
    rows = study.tuning().rows
    assert len(rows) == len(methods) * len(TUNED[name].rates)
    assert len({row.jobs[0].digest() for row in rows}) == len(rows)
    for row in rows:
        assert row.jobs[0].setup.learning_rate == row.settings["rate"]
        assert row.jobs[0].method == method_named(row.settings["method"])


def test_the_command_tunes_then_compares(tmp_path):
    words = [
        "reproduce", "tuned", "cifar10_resnet9", "--dataset", "digits", "--model", "mlp", "--row", "cautious",
        "--seeds", 2, "--tuning-seeds", 1, "--rate", 0.05, "--rate", 0.2, "--epochs", 2, "--batch-size", 64,
        "--device", "cpu", "--threads", 1, "--out", tmp_path / "out",
    ]  # fmt: skip
    result = run(*words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {name: row["seed"] for name, row in found.items()} == {"baseline": [0, 1], "cautious": [0, 1]}
    line = json.loads((tmp_path / "out" / "finished.jsonl").read_text().splitlines()[0])
    assert len(line["arrays"]["test_error"]) == 2
    assert line["arrays"]["train_loss"][1] < line["arrays"]["train_loss"][0]
    page = (tmp_path / "out" / "table.md").read_text()
    assert "Chosen from 0.05, 0.2 on 1 seed of their own, 2 runs per method." in page
    assert "Test error by step" in (tmp_path / "out" / "index.html").read_text()


run = partial(command_line.call, columns=120)


def test_the_command_tunes_variants_too(tmp_path):
    """On embedded digits: the best of every family, by hand from the runs of the tuning."""
    words = [
        "reproduce", "tuned", "cifar10_resnet9", "--dataset", "digits", "--model", "mlp", "--row", "l2sp",
        "--row", "dcl-50", "--seeds", 2, "--tuning-seeds", 1, "--rate", 0.05, "--rate", 0.2, "--epochs", 1,
        "--batch-size", 256, "--device", "cpu", "--threads", 1, "--out", tmp_path / "out",
    ]  # fmt: skip
    result = run(*words, "--screen")
    assert result.exit_code == 0, result.output
    tuning = [json.loads(line) for line in (tmp_path / "out" / "tuning" / "finished.jsonl").read_text().splitlines()]
    assert len(tuning) == 3 * 6
    of_l2sp = {line["row"]: line for line in tuning if line["row"].startswith("l2sp, ")}
    assert list(of_l2sp) == [f"l2sp, l2sp-{s:g}, {r:g}" for s in (0.001, 0.01, 0.1) for r in (0.05, 0.2)]
    best = min(of_l2sp.values(), key=lambda line: (line["figures"]["error"], line["row"].split(", ")[2]))
    finished = [json.loads(line) for line in (tmp_path / "out" / "finished.jsonl").read_text().splitlines()]
    assert {line["job"] for line in finished if line["row"] == "l2sp"} == {best["job"]}
    page = (tmp_path / "out" / "table.md").read_text()
    _, variant, rate = best["row"].split(", ")
    assert f"l2sp {rate} ({variant})" in page
    assert "Chosen from 0.05, 0.2 on 1 seed of their own, 6 runs per method." in page
    assert "Variants of l2sp: l2sp-0.001, l2sp-0.01, l2sp-0.1." in page
    finer_rates = "0.0315, 0.05, 0.0794, 0.126, 0.2, 0.317"
    assert f"With fewer variants and therefore more rates, {finer_rates}: baseline, dcl-50." in page
    assert "Training loss by step" in (tmp_path / "out" / "index.html").read_text()
    again = run(*words)
    assert again.exit_code != 0
    assert "a comparison of families" in " ".join(again.output.replace("│", "").split())


def test_the_page_of_finished_runs_needs_neither_their_device_nor_their_data(tmp_path):
    """Runs on a GPU that is lent for a while; the page is made again from what came back."""
    stored, out = RESULTS / "cifar10_resnet9", tmp_path / "out"
    shutil.copytree(stored, out)
    for page in ("table.md", "tuning/table.md", "results.json"):
        (out / page).unlink()
    words = shlex.split(command_of(stored))[1:-1]
    words.remove("FOLDER"), words.remove("--data")
    assert run(*words, out).exit_code == 0
    assert (out / "results.json").read_bytes() == (stored / "results.json").read_bytes()
    assert "from runs on NVIDIA H200 in precision bf16" in (out / "table.md").read_text()
    more = ["--seeds", 21, "--data", tmp_path]
    if not torch.cuda.is_available():
        refused = " ".join(run(*words, out, *more).output.replace("│", "").split())
        assert "PyTorch cannot use 'cuda' here" in refused


def test_finer_grids_have_the_rates_given_and_even_steps():
    for times in (1, 2, 3, 4, 6):
        found = finer((0.1, 0.2, 0.4), times)
        assert len(found) == 3 * times
        assert {0.1, 0.2, 0.4} <= set(found)
        steps = [math.log(b / a) for a, b in itertools.pairwise(found)]
        assert steps == pytest.approx([math.log(2) / times] * len(steps), rel=0.05)
    assert finer((0.3,), 4) == (0.212, 0.252, 0.3, 0.357)
    assert finer((0.3,), 1) == (0.3,)


def test_every_family_is_tuned_in_as_many_runs():
    for name, table in TUNED.items():
        study = tuned_study(name, choose_families(table.families))
        assert len({len(study.grid(method)) for method in study.methods}) == 1, name


def test_the_command_knows_the_tables():
    (argument,) = typing.get_args(typing.get_type_hints(tuned, include_extras=True)["table"])[:1]
    assert set(typing.get_args(argument)) == set(TUNED)


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
