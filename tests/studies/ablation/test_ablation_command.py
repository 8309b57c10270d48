import json
import os
import re
import signal
import sys
from functools import partial

import command_line
import pytest
import torch
from command_line import said

from congruency.classification import task
from congruency.studies.classification import runner
from congruency.studies.store import Store
from congruency.training import read_record, without_times

call = partial(command_line.call, columns=160)

SMALL = [
    "--dataset",
    "digits",
    "--model",
    "mlp",
    "--per-class",
    10,
    "--batch-size",
    20,
    "--epochs",
    2,
    "--device",
    "cpu",
]
GRID = ["--window", 3, "none", "--references", 1]
FIRST, LAST = "DCL-3-1, concentrate, margin 0, head", "DCL-inf-1, concentrate, margin 0, head"
FOLDERS = {
    "baseline": "baseline",
    FIRST: "DCL-3-1_concentrate_margin_0_head",
    LAST: "DCL-inf-1_concentrate_margin_0_head",
}


def results(out):
    return json.loads((out / "results.json").read_text())


def measured(out):
    """Without what a clock or an interruption changes."""
    times = ("seconds", "images_per_second")
    return {
        row: {name: values for name, values in metrics.items() if name not in times}
        for row, metrics in results(out).items()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("ablation") / "whole"
    return call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", out), out


def test_every_cell_has_a_record_and_a_place_in_the_results(whole):
    result, out = whole
    assert result.exit_code == 0, result.output
    found = results(out)
    assert list(found) == list(FOLDERS)
    for row, metrics in found.items():
        assert metrics["seed"] == [0, 1]
        assert all(len(values) == 2 for values in metrics.values())
        for place, seed in enumerate((0, 1)):
            (folder,) = (out / "runs").glob(f"{FOLDERS[row]}-seed-{seed}-*")
            record = read_record(folder)
            assert record.epochs[-1]["evaluation"]["error"] == metrics["test error"][place]
            assert record.run["config"]["method"]["name"] == ("baseline" if row == "baseline" else "dcl")
            assert (record.run["table"], record.run["row"]) == ("ablation", row)
            assert not (folder / "checkpoints").exists()
    assert found["baseline"]["corrected_share"] == [0.0, 0.0]
    assert min(found[FIRST]["corrected_share"]) > 0
    assert re.search("of 2 comparisons have p < 0.05|No clear difference", said(result))
    page = (out / "index.html").read_text()
    assert page.count('class="chart"') == 2
    assert "Test error by references: concentrate, margin 0, head" in page
    assert f"| {FIRST} " in (out / "table.md").read_text()


def test_a_cell_is_what_train_makes_with_the_same_options(whole, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        words = [*SMALL, "--method", "dcl", "--window", 3, "--floor", "none", "--scope", "head", "--seed", 1]
        words += ["--out", tmp_path / "run"]
        assert call("train", *words).exit_code == 0
    finally:
        torch.set_num_threads(threads)
    (cell,) = (whole[1] / "runs").glob(f"{FOLDERS[FIRST]}-seed-1-*")
    one, other = (read_record(folder) for folder in (cell, tmp_path / "run"))
    assert without_times(one.epochs) == without_times(other.epochs)


def test_what_is_finished_is_never_run_again_and_the_grid_grows(whole, monkeypatch):
    _, out = whole
    before, trained = results(out), []
    train_run = runner.train_run

    def counted(run, build, config, folder, *rest):
        trained.append(folder.name.rpartition("-")[0])
        return train_run(run, build, config, folder, *rest)

    monkeypatch.setattr(runner, "train_run", counted)
    assert call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", out).exit_code == 0
    assert trained == []
    assert results(out) == before
    wider = ["--window", 3, "--window", 5, "--references", 1]
    assert call("ablate", *SMALL, *wider, "--seeds", 1, "--out", out).exit_code == 0
    assert trained == ["DCL-5-1_concentrate_margin_0_head-seed-0"]
    assert list(results(out)) == ["baseline", FIRST, FIRST.replace("-3-", "-5-")]


def test_an_interrupted_run_resumes_from_its_checkpoint_to_the_same_results(whole, tmp_path, monkeypatch):
    evaluate, seen = task.evaluate, []

    def preempted(*arguments):
        seen.append(1)
        if len(seen) == 3:  # after the first epoch of the second run
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    monkeypatch.setattr(task, "evaluate", preempted)
    stopped = call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", tmp_path)
    assert stopped.exit_code == 75, stopped.output
    assert "the same command resumes" in said(stopped)
    assert not (tmp_path / "results.json").exists()
    assert call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", tmp_path).exit_code == 0
    assert len(seen) == 3 * 2 * 2, "cells, seeds and epochs: none twice"
    assert Store(tmp_path).repeated_attempts() == 1
    call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", whole[1])
    assert measured(tmp_path) == measured(whole[1])
    assert "1 time(s) a run was resumed from its checkpoint" in (tmp_path / "table.md").read_text()


def test_a_failed_cell_is_reported_and_does_not_stop_the_rest(whole, tmp_path):
    """Where its folders should be there are files."""
    (tmp_path / "runs").mkdir()
    blocked = [tmp_path / "runs" / path.name for path in (whole[1] / "runs").glob(f"{FOLDERS[FIRST]}-seed-*")]
    assert len(blocked) == 2
    for path in blocked:
        path.touch()
    result = call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", tmp_path)
    assert result.exit_code == 1, result.output
    assert list(results(tmp_path)) == ["baseline", LAST]
    assert f"| {FIRST} | 0, 2 failed | - |" in (tmp_path / "table.md").read_text()
    assert f"Failed: {FIRST}, seed 1: NotADirectoryError" in said(result)
    kept = json.loads((tmp_path / "failed.json").read_text())
    assert [(entry["row"], entry["seed"]) for entry in kept] == [(FIRST, 0), (FIRST, 1)]
    assert "NotADirectoryError" in kept[0]["reason"][-1]
    for path in blocked:
        path.unlink()
    again = call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert not (tmp_path / "failed.json").exists()
    call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", whole[1])
    assert measured(tmp_path) == measured(whole[1])


def test_another_process_makes_the_same(whole, tmp_path):
    words = [*SMALL, "--window", "none", "--references", 1, "--seeds", 1]
    result = call("ablate", *words, "--processes", 2, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    call("ablate", *SMALL, *GRID, "--seeds", 2, "--out", whole[1])
    found = measured(whole[1])[LAST]
    assert measured(tmp_path)[LAST] == {name: values[:1] for name, values in found.items()}
    attempts = (tmp_path / "attempts.jsonl").read_text().splitlines()
    assert len(attempts) == 2
    assert all(json.loads(attempt)["pid"] != os.getpid() for attempt in attempts)


def test_a_recipe_of_the_paper_on_other_images(tmp_path):
    words = [
        "--dataset",
        "digits",
        "--model",
        "mlp",
        "--epochs",
        1,
        "--batch-size",
        256,
        "--device",
        "cpu",
        "--seeds",
        1,
    ]
    result = call(
        "ablate", "cifar/ResNeXt-29 SGD DCL-inf-1", *words, "--window", 2, "--references", 1, "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = results(tmp_path)
    assert list(found) == ["baseline", "DCL-2-1, concentrate, margin 0, head"]
    assert {"CIFAR-10", "CIFAR-100"} < set(found["baseline"])
    assert len(list((tmp_path / "runs").glob("baseline_CIFAR-100-seed-0-*/record.jsonl"))) == 1
    assert "digits instead of its images" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--epochs", "3"], r"changes\.epochs was 2 and is 3"),
        (["--per-class", "11"], r"changes\.per_class was 10 and is 11"),
        (["--threads", "2"], "threads was 1 and is 2"),
        (["--precision", "bf16"], r"machine\.precision was .* and is .*bf16"),
        (["--dataset", "mnist"], "recipe was 'digits' and is 'mnist'"),
    ],
)
def test_another_configuration_in_the_same_folder_is_refused(whole, change, message, monkeypatch):
    monkeypatch.setattr(runner, "train_run", lambda *_, **__: pytest.fail("it began to train"))
    result = call("ablate", *SMALL, *GRID, "--out", whole[1], *change)
    assert result.exit_code == 2, result.output
    assert re.search(f"holds runs with other settings .*{message}", said(result))
    assert "give the same options or another --out" in said(result)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to train: a RECIPE"),
        (["--dataset", "digits", "--window", "0"], "must be positive numbers of steps, or none"),
        (["--dataset", "digits", "--window", "5", "x"], "got 'x'"),
        (["--dataset", "digits", "--references", "0"], "--references"),
        (["--dataset", "digits", "--mode", "concentrate", "both"], "'both' is not one of 'concentrate', 'anchor'"),
        (["--dataset", "digits", "--scope", "tail"], "'tail' is not one of 'head', 'all'"),
        (["--dataset", "digits", "--margin", "-1"], "--margin"),
        (["--dataset", "digits", "--ray", "a:1", "--processes", "2"], "a Ray cluster executes as many runs as fit"),
        (["--dataset", "digits", "--pretrained", "installed"], "is for a RECIPE that is fine-tuned"),
        (["--dataset", "digits", "--device", "abacus"], "'abacus' is not one of 'auto', 'cpu', 'cuda'"),
        (["--dataset", "digits", "--model", "resnet900"], "no network is called 'resnet900'"),
        (["--dataset", "nowhere"], "nowhere is not a folder or archive"),
        (["cifar10_grid", "--size", "8"], "is for --dataset without a RECIPE"),
        (["salicon/ResNet-50 RMSP"], "`congruency saliency osie FILE --method DCL-120-1 --method DCL-inf-1` compares"),
        (["osie"], "ablate is for classification"),
        (["mnist_r/GEM"], "`congruency reproduce continual` methods of continual learning"),
        (["nothing"], "no table of classification is called 'nothing'"),
    ],
)
def test_bad_options_are_refused_before_any_work(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "train_run", lambda *_, **__: pytest.fail("it began to train"))
    result = call("ablate", *words, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in said(result)
    assert not (tmp_path / "out").exists()


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    result = call("ablate", *SMALL, *GRID, "--ray", "local", "--out", tmp_path)
    assert result.exit_code == 2
    assert "ray is missing; leave --ray out, or pip install '.[cluster]' in a checkout" in said(result)


def test_under_torchrun_it_says_that_it_starts_its_own_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = call("ablate", *SMALL, "--out", tmp_path)
    assert result.exit_code == 2
    assert "without torchrun" in said(result)


def test_help_names_the_grid():
    text = said(call("ablate", "--help"))
    for word in ("--window", "STEPS|none", "--references", "--mode", "--ray", "ADDRESS"):
        assert word in text
