"""``congruency audit`` on digits that are really trained: what was flipped is found, what cannot be done is said."""

import csv
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
import typer
from browser import Browser, needs_browser
from torch.nn import functional
from typer.testing import CliRunner

from congruency.classification import create
from congruency.datasets import load
from congruency.experiments.audit import checkpoint as checkpoints
from congruency.experiments.audit import training
from congruency.experiments.audit.checkpoint import look
from congruency.experiments.audit.command import audit
from congruency.experiments.audit.images import ImageSource
from congruency.experiments.classification import train as command
from congruency.experiments.classification.sets import ImageOptions
from congruency.measure import congruency
from congruency.modules import head
from congruency.saliency.models import create as create_saliency
from congruency.saliency.models import save_model
from congruency.training import TrainingConfig, load_checkpoint

SETUP = {
    "model": "mlp", "epochs": 2, "batch_size": 32, "learning_rate": 0.1, "momentum": 0.9, "nesterov": False,
    "weight_decay": 0.0, "schedule": "steps", "warmup": 0.0, "milestones": (), "decay": 0.1, "smoothing": 0.0,
    "workers": 0, "pretrained": None,
}  # fmt: skip
PER_CLASS = 30
FLIPPED_PER_CLASS = 60


def call(*words):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    app.command()(audit)
    result = CliRunner().invoke(app, ["audit", *map(str, words)], env={"COLUMNS": "100", "TERM": "dumb"})
    return result, " ".join(result.output.replace("│", " ").split())


def trained(folder, **changes):
    config = TrainingConfig(epochs=2, seed=5, accelerator="cpu", **changes)
    images = ImageOptions(source="digits", per_class=PER_CLASS)
    command.run(command.Training(images=images, config=config, setup=SETUP, out=folder))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def flipped(tmp_path_factory):
    """Two seeds of a small network on digits with a fifth of the labels wrong."""
    out = tmp_path_factory.mktemp("audit")
    words = (
        "mlp",
        "--data",
        "digits",
        "--per-class",
        FLIPPED_PER_CLASS,
        "--flip",
        0.2,
        "--epochs",
        8,
        "--batch-size",
        32,
    )
    result, said = call(*words, "--seeds", 2, "--folds", 2, "--top", 13, "--device", "cpu", "--out", out)
    assert result.exit_code == 0, result.output
    return out, said


def test_flipped_digits_are_found_far_above_chance(flipped):
    found = json.loads((flipped[0] / "results.json").read_text())
    assert list(found) == [
        "congruency", "congruency_last", "class_congruency", "class_congruency_last", "direction_congruency",
        "direction_congruency_last", "loss", "loss_last", "cleanlab",
    ]  # fmt: skip
    for name, metrics in found.items():
        assert len(metrics["auc"]) == len(metrics["precision"]) == 2
        assert min(metrics["auc"]) > 0.9, name  # chance is 0.5
        assert min(metrics["precision"]) > 0.6, name  # chance is 0.2


def test_the_list_has_every_sample_of_every_seed_and_what_was_done_to_it(flipped):
    with (flipped[0] / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    digits = load("digits", per_class=FLIPPED_PER_CLASS)
    count = len(digits)
    assert len(rows) == 2 * count
    for seed in "01":
        part = [row for row in rows if row["seed"] == seed]
        assert sorted(int(row["index"]) for row in part) == list(range(count))
        assert [int(row["rank"]) for row in part] == list(range(1, count + 1))
        nu = [float(row["congruency"]) for row in part]
        assert nu == sorted(nu)
        assert all(-1 <= value <= 1 for value in nu)
        assert sum(int(row["flipped"]) for row in part) == round(0.2 * count)
    for row in rows:
        assert row["label in the set"] == digits.classes[int(digits.labels[int(row["index"])])]
        assert (row["given"] != row["label in the set"]) == (row["flipped"] == "1")


def test_the_page_has_the_table_the_verdicts_and_the_pictures(flipped):
    out, said = flipped
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 13
    assert page.count("Cong. ") == 13
    assert "Most incongruent, 13 to 13" in page
    table = (out / "table.md").read_text()
    for text in (table, page, said):
        assert re.search("No ranking by congruency finds|Better than the loss, by AUC or precision", text)
        assert "20 % of the labels were flipped by us" in text.replace("&nbsp;", " ") or text is said
    assert "by 2-fold cross-validation: 2 more trainings a seed" in page
    assert table.count("\n| ") == 2 + 9


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_page_opens_in_a_browser_without_complaints(flipped, tmp_path):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    shown = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", (flipped[0] / "index.html").as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "<title>Which labels disagree with what the network learns</title>" in shown.stdout
    assert "CONSOLE" not in shown.stderr


@needs_browser
def test_every_chart_stands_under_its_caption(flipped, tmp_path):
    """Not at the foot of a card that is as high as the pictures beside it."""
    browser = Browser(tmp_path / "profile")
    browser.open(flipped[0] / "index.html", width=1200, height=900)
    gaps = browser.run("""[...document.querySelectorAll('.figures figure svg')].map(each =>
        each.getBoundingClientRect().top - each.parentElement.querySelector('figcaption').getBoundingClientRect().bottom
    )""")
    browser.close()
    assert len(gaps) == 5
    assert max(gaps) < 40


def test_labels_as_they_are_are_ranked_without_judging(tmp_path):
    words = ("mlp", "--data", "digits", "--per-class", 10, "--epochs", 2, "--seeds", 2, "--no-cleanlab")
    result, said = call(*words, "--device", "cpu", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["loss"]["rank_correlation"] == pytest.approx([1.0, 1.0])
    assert found["loss"]["overlap"] == [1.0, 1.0]
    assert "cleanlab" not in found
    assert "is not known from this page" in said
    assert "a part of the set only" in said
    with (tmp_path / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 100
    assert {row["seed"] for row in rows} == {"mean of 2"}
    assert "flipped" not in rows[0]


def test_a_checkpoint_is_looked_at_once(run, tmp_path):
    result, said = call(run, "--data", "digits", "--per-class", PER_CLASS, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "the first weights of the run, which the checkpoint holds" in said
    assert "One checkpoint is looked at once" in said
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found) == ["congruency_last", "class_congruency_last", "direction_congruency_last", "loss_last"]
    with (tmp_path / "ranking.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 10 * PER_CLASS


def test_a_checkpoints_scores_are_those_of_its_network_and_its_first_weights(run):
    """The network made again by hand from the seed, as the loop makes it, and a sample's gradient by backward."""
    torch.manual_seed(5)
    first = create("mlp", 10, shape=(1, 8, 8))
    model = create("mlp", 10, shape=(1, 8, 8))
    model.load_state_dict(load_checkpoint(max((run / "checkpoints").iterdir()))["model"])
    looked = look(run, ImageSource(name="digits", per_class=PER_CLASS))
    images = looked.images.images
    way = [
        now.detach() - then.detach()
        for now, then in zip(head(model).parameters(), head(first).parameters(), strict=True)
    ]
    for place in (0, 100, 299):
        x = (images.images[place][None].float() / 255 - 0.3050) / 0.3756
        loss = functional.cross_entropy(model(x), images.labels[place][None])
        gradient = torch.autograd.grad(loss, list(head(model).parameters()))
        expected = congruency(list(gradient), [-part for part in way])
        assert float(looked.followed.scores["way"][0, place]) == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("measure", ["all", "none"])
def test_first_weights_are_found_whatever_the_run_measured(run, tmp_path, measure):
    """From all weights in the checkpoint, or made again from the seed: those of the run that keeps the head's."""
    other = look(trained(tmp_path / measure, measure=measure), ImageSource(name="digits", per_class=PER_CLASS))
    same = look(run, ImageSource(name="digits", per_class=PER_CLASS))
    torch.testing.assert_close(other.followed.scores["way"], same.followed.scores["way"])
    assert ("made again from its seed" in other.remarks[0]) == (measure == "none")


def test_without_first_weights_only_the_class_is_compared(run, tmp_path, monkeypatch):
    record = (run / "record.jsonl").read_text()
    copied = tmp_path / "copied"
    shutil.copytree(run, copied)
    (copied / "record.jsonl").write_text(record.replace('"pretrained": null', '"pretrained": "some.pth"', 1))
    monkeypatch.setattr(checkpoints, "_kept", lambda *_: None)
    result, said = call(copied, "--data", "digits", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "Congruency with the way come is left out" in said
    assert "trained on 300 images; 1437 are looked at here" in said
    assert "congruency_last" not in json.loads((tmp_path / "out" / "results.json").read_text())


@pytest.mark.parametrize("share", ["0", "1", "20", "-0.1"])
def test_shares_out_of_range(share, tmp_path):
    result, said = call("mlp", "--data", "digits", "--flip", share, "--out", tmp_path)
    assert result.exit_code == 2
    assert "--flip must be a share of the labels above 0 and below 1" in said
    assert not list(tmp_path.iterdir())


def test_bad_input_is_said(run, tmp_path):
    for words, expected in [
        (("missing/run", "--data", "digits"), "no run or checkpoint that is there, and no network"),
        ((tmp_path / "missing.pt", "--data", "digits"), "is missing; give a run's folder or a checkpoint in it"),
        ((run, "--data", "digits", "--flip", 0.2), "--flip needs a network that was trained on the flipped labels"),
        ((run, "--data", "digits", "--batch-size", 8), "--batch-size is for a network or a recipe that is trained"),
        ((run, "--data", "digits", "--cleanlab"), "--cleanlab is for a network or a recipe that is trained"),
        (("mlp", "--data", "digits", "--no-cleanlab", "--folds", 3), "--folds are cleanlab's"),
        (("mlp", "--data", "digits", "--device", "tpu"), "must be auto, cpu or cuda"),
        (("mlp", "--data", tmp_path / "nothing"), "nothing"),
    ]:
        result, said = call(*words, "--out", tmp_path / "out")
        assert result.exit_code == 2, (words, result.output)
        assert expected in said
    assert not (tmp_path / "out").exists()


def test_cleanlab_is_asked_for_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab", None)  # as if it were not installed
    result, said = call("mlp", "--data", "digits", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "cleanlab is not installed; install it (pip install cleanlab), or give --no-cleanlab" in said


def test_more_folds_than_samples_are_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("it began to train"))
    words = ("mlp", "--data", "digits", "--per-class", 5, "--folds", 500, "--device", "cpu")
    result, said = call(*words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "--folds must be from 2 to the 50 samples, got 500" in said


def test_a_run_without_its_record_or_with_half_a_checkpoint(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = max((tmp_path / "run" / "checkpoints").iterdir())
    path.write_bytes(path.read_bytes()[:2000])
    result, said = call(tmp_path / "run", "--data", "digits", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "is cut short or damaged" in said
    (tmp_path / "run" / "record.jsonl").unlink()
    result, said = call(tmp_path / "run", "--data", "digits", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "has checkpoints and no record.jsonl" in said


def test_a_set_of_other_classes_is_refused(run, tmp_path):
    from PIL import Image

    for name in ("cats", "dogs"):
        folder = tmp_path / "pets" / "train" / name
        folder.mkdir(parents=True)
        for i in range(2):
            Image.new("L", (8, 8), 100 * i).save(folder / f"{i}.png")
    result, said = call(run, "--data", tmp_path / "pets", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "has 2 classes, the network was trained on 10" in said


def test_images_of_another_size_are_refused(run, tmp_path):
    from PIL import Image

    for name in range(10):
        folder = tmp_path / "larger" / "train" / str(name)
        folder.mkdir(parents=True)
        Image.new("L", (16, 16), 10 * name).save(folder / "one.png")
    result, said = call(run, "--data", tmp_path / "larger", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "the weights of mlp do not fit images of 1 x 16 x 16" in said


def test_a_saliency_model_has_no_labels_to_audit(tmp_path):
    save_model(create_saliency("dinet", backbone="resnet18"), tmp_path / "model.pt")
    result, said = call(tmp_path / "model.pt", "--data", "digits", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "is a saliency model: its images have no labels to audit" in said


def test_files_are_named_so_that_they_can_be_found_again(tmp_path):
    from PIL import Image

    for name, shade in (("dark", 20), ("light", 200)):
        folder = tmp_path / "shades" / "train" / name
        folder.mkdir(parents=True)
        for i in range(6):
            Image.new("L", (8, 8), shade + i).save(folder / f"{name}-{i}.png")
    words = ("mlp", "--data", tmp_path / "shades", "--epochs", 2, "--size", 8, "--no-cleanlab", "--device", "cpu")
    result, _ = call(*words, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    with (tmp_path / "out" / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    for row in rows:
        assert row["file"].endswith(".png")
        assert row["given"] in row["file"]
