import json
import os
import signal
from dataclasses import replace
from functools import partial

import command_line
import pytest
from command_line import said
from PIL import Image
from typer.testing import CliRunner

from congruency import cli
from congruency.classification import task
from congruency.studies import cost
from congruency.studies.classification import runner, tables
from congruency.studies.classification.jobs import changed
from congruency.studies.image_tables import named_study, remarks, sets_of, study_of
from congruency.studies.plan import pick
from congruency.training.record import RunRecord

call = partial(command_line.call, columns=160)

TITLES = {**tables.TITLES, **cost.TITLES}
DIGITS = ["--dataset", "digits", "--per-class", "10", "--device", "cpu", "--epochs", "1"]


@pytest.fixture
def small_images(monkeypatch):
    """All tables on images of 32 pixels, so that a run takes seconds."""
    whole = tables.paper_setup
    monkeypatch.setattr(tables, "paper_setup", lambda data, model, size=None, **more: whole(data, model, 32, **more))


@pytest.mark.usefixtures("small_images")
@pytest.mark.parametrize("name", [name for name in TITLES if not name.startswith("cost")])
def test_a_slice_of_every_table_of_errors(name, tmp_path):
    result = call("reproduce", "classification", name, *DIGITS, "--model", "mlp", "--seeds", "1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    table = named_study(name)
    ran = [row for row in table.rows if row.jobs]
    assert list(found) == [row.name for row in ran]
    for row in ran:
        assert {column.key for column in table.columns} < set(found[row.name])
        assert all(len(values) == 1 for values in found[row.name].values())
    page = (tmp_path / "index.html").read_text()
    assert "10 training images per class" in page
    assert "digits instead of its images" in page
    for row in table.rows:
        assert row.name in page


def test_sets_that_are_not_the_official_ones_are_named(tmp_path):
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "cifar100_noisy_train.tar.xz").touch()
    table = named_study("cifar")
    remark = "CIFAR-100 is not the official set here: its training labels noisy (cifar100_noisy_train.tar.xz)."
    assert remarks(sets_of(table), tmp_path) == [remark]
    settings = {"table": "cifar", "base": None, "changes": {}}
    assert f" {remark} Within a seed" in study_of(settings | {"remarks": [remark]}).lead


@pytest.mark.usefixtures("small_images")
@pytest.mark.parametrize("name", ["cost", "cost_window", "cost_references"])
def test_costs_are_measured_on_synthetic_images(name, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "STEPS", 4)
    monkeypatch.setattr(cost, "TimedSetup", partial(cost.TimedSetup, size=(60, 80)))
    model = "lcnet_035" if name == "cost" else "mlp"  # SALICON's network needs a backbone
    small = ["--model", model, "--batch-size", "2", "--device", "cpu"]
    result = call("reproduce", "classification", name, *small, "--seeds", "1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    columns = {column.key for column in named_study(name).columns}
    assert list(found) == [row.name for row in named_study(name).rows]
    for metrics in found.values():
        assert columns < set(metrics)
        assert all(metrics[column][0] > 0 for column in columns)
    text = (tmp_path / "table.md").read_text()
    assert "random ones of the data set's shape" in text
    assert ("Nothing could be compared" in text) == (
        name == "cost"
    )  # the other two have nothing to compare their rows with
    if name == "cost":
        plain, *others = found.values()
        last_layers = {"Tiny ImageNet": 1280 * 200 + 200, "SALICON": 2 * 176 + 1, "ImageNet": 1280 * 1000 + 1000}
        for other in others:
            for data, weights in last_layers.items():
                assert other[f"{data} params"][0] == pytest.approx(plain[f"{data} params"][0] + weights / 1e6)


def test_the_table_of_costs_has_all_of_the_papers_numbers():
    columns = [f"{data} {unit}" for data in ("Tiny ImageNet", "SALICON", "ImageNet") for unit in ("params", "ms")]
    gem, dcl = [42.91, 78, 23.51, 102, 25.55, 10], [42.91, 49, 23.51, 65, 25.55, 8]
    printed = {
        "baseline (ResNet-101 / ResNet-50 / ResNet-50)": [42.50, 47, 23.51, 64, 23.50, 6],
        "GEM": gem,
        "DCL, concentrate, margin 0": dcl,
        "DCL, anchor, margin 0.5": dcl,
    }
    table = named_study("cost")
    assert {row.name: [row.paper[column] for column in columns] for row in table.rows} == printed
    assert [column.key for column in table.columns] == columns
    for row in table.rows:
        assert [list(job.columns.values()) for job in row.jobs] == [["parameters", "ms"]] * 3


def test_salicon_is_timed_as_the_other_columns_are():
    for row in named_study("cost").rows:
        tiny, salicon, imagenet = row.jobs
        assert (salicon.steps, salicon.short) == (tiny.steps, tiny.short) == (imagenet.steps, True)
        assert salicon.method == replace(tiny.method, window=None)  # DCL-inf-1, as in the table salicon
        assert (salicon.method.name == "baseline") or salicon.method.scope == "head"
        assert (salicon.setup.model, salicon.setup.batch_size, salicon.setup.optimizer) == ("resnet50", 8, "rmsprop")
        assert salicon.data.synthetic
        assert salicon.data.shape == (3, 240, 320)
    assert "always on random images, of 240x320" in named_study("cost").lead
    assert "SALICON" not in named_study("cost_window").lead


def test_options_change_the_timed_saliency_run_too():
    given = {"model": "resnet18", "batch_size": 4, "learning_rate": 0.01, "epochs": 3, "pretrained": "installed"}
    setup = changed(named_study("cost"), **given).rows[0].jobs[1].setup
    assert (setup.model, setup.batch_size, setup.learning_rate, setup.epochs) == ("resnet18", 4, 0.01, 1)


def test_what_was_finished_before_salicon_had_columns_stays_finished():
    """The digests of that time."""
    digests = {row.name: [job.digest() for job in row.jobs] for row in named_study("cost").rows}
    tiny, salicon, imagenet = digests["baseline (ResNet-101 / ResNet-50 / ResNet-50)"]
    assert (tiny, imagenet) == ("8f04c3915712", "41427bd875fc")
    assert digests["GEM"][0] == "8dff60d0bf42"
    assert salicon not in (tiny, imagenet)
    assert len({digest for row in digests.values() for digest in row}) == 12
    assert named_study("cifar").rows[0].jobs[0].digest() == "4780c7985ddc"
    assert named_study("cost_window").rows[0].jobs[0].digest() == "893da5eb1d16"


def test_the_row_of_the_paper_runs_in_both_modes(tmp_path):
    words = ["--model", "mlp", "--row", "ResNeXt-29 SGD DCL-inf-1", "--row", "ResNeXt-29 SGD", "--seeds", "2"]
    result = call("reproduce", "classification", "cifar", *DIGITS, *words, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found) == [
        "ResNeXt-29 SGD",
        "ResNeXt-29 SGD DCL-inf-1, concentrate, margin 0",
        "ResNeXt-29 SGD DCL-inf-1, anchor, margin 0.5",
    ]
    assert all(row["seed"] == [0, 1] and len(row["CIFAR-10"]) == 2 for row in found.values())
    text = (tmp_path / "table.md").read_text()
    assert "3.33" in text  # the paper's
    assert "| CIFAR-10, % | CIFAR-10 against | CIFAR-10, paper |" in text
    assert "Changed by options: model mlp, epochs 1" in text


def test_what_is_finished_is_not_repeated_and_what_was_stopped_is_resumed(tmp_path, monkeypatch):
    words = [
        "classification",
        "cifar",
        *DIGITS[:-1],
        "2",
        "--model",
        "convnet",
        "--row",
        "DenseNet-100-12 SGD",
        "--seeds",
        "2",
    ]
    assert call("reproduce", *words, "--out", tmp_path / "whole").exit_code == 0
    evaluations = []
    evaluate = task.evaluate

    def preempted(*arguments):
        evaluations.append(1)
        if len(evaluations) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    monkeypatch.setattr(task, "evaluate", preempted)
    stopped = call("reproduce", *words, "--out", tmp_path / "cut")
    assert stopped.exit_code == 75, stopped.output
    assert len(evaluations) == 4  # the run was at its end when the signal came: it is finished, no other is started
    assert call("reproduce", *words, "--out", tmp_path / "cut").exit_code == 0
    assert len(evaluations) == 2 * 2 * 2  # sets, seeds, epochs: none twice
    whole, cut = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "cut"))
    for metric in ("seed", "CIFAR-10", "CIFAR-100", "CIFAR-10 train_loss", "CIFAR-100 congruency"):
        assert whole["DenseNet-100-12 SGD"][metric] == cut["DenseNet-100-12 SGD"][metric]
    again = call("reproduce", *words, "--out", tmp_path / "cut")
    assert again.exit_code == 0
    assert len(evaluations) == 8
    assert not list((tmp_path / "cut" / "runs").rglob("*.pt"))


def test_a_run_stopped_within_is_resumed_from_its_checkpoint(tmp_path, monkeypatch):
    words = [
        "classification",
        "cifar",
        *DIGITS[:-1],
        "3",
        "--model",
        "convnet",
        "--row",
        "DenseNet-100-12 SGD",
        "--seeds",
        "1",
    ]
    evaluate, seen = task.evaluate, []

    def preempted(*arguments):
        seen.append(1)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    monkeypatch.setattr(task, "evaluate", preempted)
    stopped = call("reproduce", *words, "--out", tmp_path)
    assert stopped.exit_code == 75
    assert "resumes where it stopped" in said(stopped)
    assert not (tmp_path / "results.json").exists()
    assert call("reproduce", *words, "--out", tmp_path).exit_code == 0
    assert len(seen) == 6


def test_both_modes_stand_beside_the_papers_number():
    for name in TITLES:
        table = named_study(name)
        methods = [job.method for row in table.rows for job in row.jobs if job.method.name == "dcl"]
        assert {(m.mode, m.effective_margin, m.offset) for m in methods} == {
            ("concentrate", 0.0, 0),
            ("anchor", 0.5, 1),
        }
        assert all(row.paper for row in table.rows)
        assert {row.against for row in table.rows} <= {None, *(row.name for row in table.rows)}


def test_a_row_of_the_paper_is_trained_as_the_paper_says():
    table = named_study("cifar")
    job = table.rows[2].jobs[1]
    assert table.rows[2].name == "ResNeXt-29 SGD DCL-inf-1, concentrate, margin 0"
    assert (job.setup.epochs, job.setup.batch_size, job.setup.milestones) == (300, 128, (150, 225))
    assert (job.setup.model, job.data.name, job.data.per_class) == ("resnext29_16x64", "cifar100", None)
    assert not job.short


def test_rows_are_picked_and_runs_changed():
    table = changed(pick(named_study("cifar"), ["DenseNet-100-12 SGD DCL-90-1"]), epochs=30)
    assert [len(row.jobs) for row in table.rows] == [2, 2]
    assert table.rows[0].jobs[0].setup.milestones == (15, 22)
    assert "epochs 30" in table.lead
    with pytest.raises(ValueError, match="similar:"):
        pick(table, ["DenseNet-100-12 SGD DCL-80-1"])


def test_jobs_have_digests_of_their_own():
    table = named_study("cifar")
    digests = [job.digest() for row in table.rows for job in row.jobs]
    assert len(set(digests)) == len(digests)
    few = [job.digest() for row in changed(table, per_class=10).rows for job in row.jobs]
    assert not set(few) & set(digests)


def test_tables_are_listed():
    result = CliRunner().invoke(cli.build(), ["reproduce"])
    assert result.exit_code == 0
    for name in (*TITLES, "cifar10_grid", "cifar100_noisy", "tiny_subset"):
        assert f"  classification {name} " in result.output
    for name in ("continual mnist_r", "continual icifar100", "saliency salicon"):
        assert f"  {name} " in result.output
    whole = CliRunner().invoke(cli.build(), ["reproduce", "--list"])
    assert whole.exit_code == 0
    assert whole.output == result.output
    unknown = call("reproduce", "classification", "cfar")
    assert unknown.exit_code == 2
    assert "'cfar' is not one of" in said(unknown)
    assert "tiny_subset" in unknown.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar", "--row", "ResNeXt-29 SDG"], "has no row 'ResNeXt-29 SDG'; similar:"),
        (["cifar", "--tasks", "3"], "No such option: --tasks"),
        (["cifar", "--device", "cuda:99"], "'cuda:99' is not one of 'auto', 'cpu', 'cuda'"),
        (["cifar", "--model", "resnet900"], "no network is called 'resnet900'"),
        (["cost", "--model", "resnet900"], "no network is called 'resnet900'"),
        (["cost", "--model", "mlp"], "SALICON's columns need a network that can be a backbone: timm cannot make 'mlp'"),
        (["cost", "--lr", "-1"], "learning_rate must be positive and finite, got -1"),
        (["cost", "--record-steps", "1"], "--record-steps is for runs whose records are kept"),
        (["cifar", "--row", "ResNeXt-29 SGD", "--data", "{folder}"], "CIFAR-10 is not in"),
        (["cost", "--dataset", "digits"], "cost is measured on random images; leave --dataset out"),
        (["cifar", "--ray", "a:1", "--processes", "2"], "a Ray cluster executes as many runs as fit"),
        (["cifar", "--precision", "8", "--dataset", "digits"], "'8' is not one of '32', 'bf16'"),
    ],
)
def test_bad_options_of_tables_are_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "train_run", lambda *_, **__: pytest.fail("it began to train"))
    given = [word.format(folder=tmp_path) for word in words]
    result = call("reproduce", "classification", *given, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in said(result)
    assert not (tmp_path / "out").exists(), "the corrected command must not find other settings there"


def test_a_set_with_other_classes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "train_run", lambda *_, **__: pytest.fail("it began to train"))
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "cifar10" / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / "cifar10" / split / name / "one.png")
    words = ["--row", "ResNeXt-29 SGD", "--model", "mlp", "--device", "cpu"]
    result = call("reproduce", "classification", "cifar", *words, "--data", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "cifar10 has 10 classes, and the set that was found 2" in said(result)


def test_a_cost_is_the_median_of_the_steps_that_count():
    """Ten steps: two warm up, a third records; one of the others was held up by its host."""
    seconds = [9.0, 9.0, 9.0, 0.3, 0.5, 0.4, 99.0, 0.4, 0.4, 0.4]
    steps = [{"samples": 4, "seconds": each, "data_seconds": 0.1 if each < 1 else 0.0} for each in seconds]
    found = runner._costs(RunRecord(run={}, steps=steps, epochs=[]), 1.5, recording=3)
    assert found == {"ms": pytest.approx(75.0), "parameters": 1.5, "images_per_second": pytest.approx(10.0)}
    later = runner._costs(RunRecord(run={}, steps=steps, epochs=[]), 1.5, recording=0)
    assert later["ms"] == pytest.approx(75.0)
