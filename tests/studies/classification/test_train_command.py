import json
import os
import signal

import pytest
import torch
from command_line import call, said
from PIL import Image

from congruency.classification import task
from congruency.cli import runs
from congruency.training import Correction, Result, load_checkpoint, read_record, without_times

SMALL = ["--dataset", "digits", "--model", "convnet", "--per-class", "20", "--batch-size", "32", "--device", "cpu"]


def trained(out, *words, epochs=2):
    result = call("train", *SMALL, "--epochs", epochs, "--out", out, *words)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize(
    "words",
    [
        ["--method", "baseline"],
        ["--method", "dcl", "--window", "3", "--scope", "head"],
        ["--method", "dcl", "--mode", "anchor", "--margin", "0.5", "--offset", "1", "--references", "2"],
        ["--method", "gem", "--schedule", "steps", "--milestone", "1"],
        ["--method", "cautious", "--max-rescale", "5"],
        ["--method", "cautious", "--optimizer", "adamw", "--mask-decay"],
        ["--method", "dcl", "--blocks", "element", "--correct", "update", "--window", "3"],
        ["--method", "dcl", "--optimizer", "adamw", "--cautious"],  # where DCL corrects nothing
    ],
    ids=lambda words: "-".join(words[1:4:2]),
)
def test_a_network_is_trained_and_summarised(tmp_path, words):
    result = trained(tmp_path / "run", *words)
    assert "convnet on 200 images of 10 classes, tested on 360; 2 epochs in batches of 32" in said(result)
    assert "images/s" in said(result)
    record = read_record(tmp_path / "run")
    assert len(record.epochs) == 2
    assert record.epochs[1]["loss"] < record.epochs[0]["loss"]
    assert record.run["config"]["method"]["name"] == words[1]
    idle = words[1] != "baseline" and not any(line["corrected_share"] for line in record.epochs)
    without = "Cautious alone" if "--cautious" in words else "plain training"
    assert (f"corrected no step, so this was {without}" in said(result)) == idle
    assert idle or "--cautious" not in words
    assert "shorter --window" not in said(result) or words[1] == "dcl"
    assert load_checkpoint(next(iter((tmp_path / "run" / "checkpoints").iterdir())))["model"]


def test_a_stopped_run_is_resumed_to_the_same_end(tmp_path, monkeypatch):
    options = ["--method", "dcl", "--window", "4", "--crop", "padded"]
    trained(tmp_path / "whole", *options)
    with monkeypatch.context() as patch:
        evaluate = task.evaluate

        def preempted(*arguments):
            os.kill(os.getpid(), signal.SIGTERM)
            return evaluate(*arguments)

        patch.setattr(task, "evaluate", preempted)
        stopped = call("train", *SMALL, "--epochs", "2", "--out", tmp_path / "cut", *options)
    assert stopped.exit_code == 75
    assert "--resume resumes where it stopped" in said(stopped)
    assert len(read_record(tmp_path / "cut").epochs) == 1
    trained(tmp_path / "cut", *options, "--resume")
    ends = [load_checkpoint(sorted((tmp_path / name / "checkpoints").iterdir())[-1]) for name in ("whole", "cut")]
    assert all(torch.equal(ends[0]["model"][name], ends[1]["model"][name]) for name in ends[0]["model"])
    whole, cut = (read_record(tmp_path / name) for name in ("whole", "cut"))
    assert without_times(whole.steps + whole.epochs) == without_times(cut.steps + cut.epochs)


def test_a_stopped_run_without_its_checkpoint_says_where_it_resumes(tmp_path):
    record = tmp_path / "record.jsonl"
    sentences = [
        runs._stopped(Result(False, 1, 182, {}, record, None, True, resumes_at)) for resumes_at in (182, 45, 0)
    ]
    assert sentences[0] == "stopped; the same command with --resume resumes where it stopped"
    assert "stopped at step 182, whose checkpoint could not be written" in sentences[1]
    assert sentences[1].endswith("resumes from the last one, of step 45")
    assert sentences[2].endswith("starts again")


def test_a_finished_run_is_left_alone_or_refused(tmp_path):
    trained(tmp_path, epochs=1)
    held = (tmp_path / "record.jsonl").read_bytes()
    trained(tmp_path, "--resume", epochs=1)
    refused = call("train", *SMALL, "--epochs", "1", "--out", tmp_path)
    other = call("train", *SMALL, "--epochs", "1", "--out", tmp_path, "--resume", "--lr", "0.3")
    assert (refused.exit_code, other.exit_code) == (2, 2)
    assert "already holds a run; give --resume" in said(refused)
    assert "holds another run (learning_rate was 0.1 and is 0.3)" in said(other)
    assert (tmp_path / "record.jsonl").read_bytes() == held


def test_weights_of_a_run_begin_another(tmp_path):
    trained(tmp_path / "first", "--crop", "none", epochs=3)
    weights = sorted((tmp_path / "first" / "checkpoints").iterdir())[-1]
    trained(tmp_path / "second", "--pretrained", weights, "--lr", "1e-6", epochs=1)
    before, after = (read_record(tmp_path / name).epochs[-1]["evaluation"]["error"] for name in ("first", "second"))
    assert after == pytest.approx(before, abs=40)
    assert after < 80


def test_a_window_longer_than_the_run_warns_before_training(tmp_path):
    result = trained(tmp_path, "--method", "dcl", "--window", "500", epochs=1)
    assert "warning: the window of 500 steps is longer than the run of 7" in said(result)
    assert "UserWarning" not in result.output


def test_a_warning_of_the_core_is_shown_though_it_names_the_line_of_a_caller(tmp_path):
    result = trained(tmp_path, "--method", "dcl", "--window", "2", "--references", "2", epochs=1)
    assert "warning: a window of 2 steps with 2 reference(s) never corrects anything" in said(result)


@pytest.fixture
def folder(tmp_path):
    """Two classes of coloured images, no test split."""
    for i, name in enumerate(("red", "blue")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for k in range(12):
            colour = (200 - 5 * k, 0, 0) if i == 0 else (0, 5 * k, 200)
            Image.new("RGB", (20 + k, 24), colour).save(tmp_path / "images" / name / f"{k}.png")
    return tmp_path / "images"


def test_any_folder_of_images(tmp_path, folder):
    words = ["--model", "convnet", "--epochs", "4", "--batch-size", "6", "--device", "cpu", "--lr", "0.05"]
    result = call(
        "train", "--dataset", folder, "--holdout", "0.25", "--size", "16", *words, "--out", tmp_path / "run"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = read_record(tmp_path / "run")
    assert (record.run["task"]["training_images"], record.run["task"]["test_images"]) == (18, 6)
    assert record.epochs[-1]["evaluation"]["error"] == 0


@pytest.mark.parametrize(
    ("spoil", "words", "reported"),
    [
        (lambda images: (images / "red" / "3.png").write_bytes(b"no image"), ["--size", "16"], "cannot be decoded"),
        (lambda images: (images / "green").mkdir(), ["--size", "16"], "holds no image"),
        (lambda images: None, [], "give a size"),
    ],
)
def test_bad_folders_are_refused_before_training(tmp_path, folder, spoil, words, reported):
    spoil(folder)
    result = call(
        "train", "--dataset", folder, "--holdout", "0.2", *words, "--device", "cpu", "--out", tmp_path / "run"
    )
    assert result.exit_code == 2
    assert reported in said(result)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--dataset", "digit"], "did you mean 'digits'"),
        (["--model", "resnet900"], "no network is called 'resnet900'"),
        (["--method", "dlc"], "'dlc' is not one of 'baseline', 'dcl', 'gem', 'cautious'"),
        (["--method", "dcl", "--mode", "both"], "'both' is not one of 'concentrate', 'anchor'"),
        (["--window", "5"], "--window: is for --method dcl"),
        (["--method", "gem", "--references", "2"], "--references: is for --method dcl"),
        (["--margin", "0.5"], "--margin: is for --method dcl or --method gem"),
        (["--method", "dcl", "--memory", "2"], "--memory: is for --method gem"),
        (["--method", "cautious", "--window", "5"], "--window: is for --method dcl"),
        (["--method", "gem", "--floor", "0.1"], "--floor: needs DCL in mode concentrate"),
        (["--method", "dcl", "--mode", "anchor", "--floor", "0.1"], "--floor: needs DCL in mode concentrate"),
        (["--method", "dcl", "--blocks", "element", "--floor", "0.1"], "--floor: needs DCL in mode concentrate"),
        (["--method", "dcl", "--floor", "2"], "--floor: must be above 0 and at most 1, or none"),
        (["--method", "dcl", "--floor", "low"], "--floor: must be above 0 and at most 1, or none"),
        (
            ["--method", "dcl", "--floor", "none", "--no-returning"],
            "--no-returning: needs DCL in mode concentrate with",
        ),
        (["--method", "cautious", "--correct", "update"], "--correct: needs DCL"),
        (["--method", "gem", "--blocks", "row"], "--blocks: needs DCL"),
        (["--method", "dcl", "--blocks", "column"], "'column' is not one of 'joint', 'group', 'tensor', 'row'"),
        (["--cautious"], "--cautious: needs DCL or GEM"),
        (["--method", "cautious", "--cautious"], "--cautious: needs DCL or GEM"),
        (["--method", "dcl", "--no-rescale"], "--no-rescale: needs a cautious optimizer"),
        (
            ["--method", "cautious", "--no-rescale", "--max-rescale", "2"],
            "--max-rescale: needs a cautious optimizer that",
        ),
        (["--method", "cautious", "--max-rescale", "0.5"], "--max-rescale"),
        (["--milestone", "1"], "--milestone: is for --schedule steps"),
        (["--schedule", "steps", "--warmup", "1"], "--warmup: is for --schedule cosine"),
        (["--schedule", "steps", "--milestone", "1", "--decay", "-1"], "decay must be above 0 and at most 1, got -1"),
        (["--capture"], "--capture: needs a GPU"),
        (["--strategy", "fsdp"], "start the command with torchrun"),
        (["--holdout", "2"], "--holdout is a share between 0 and 1, got 2"),
        (["--optimizer", "adamm"], "there is no optimizer 'adamm'"),
        (["--optimizer", "adamw", "--nesterov"], "--nesterov: is for --optimizer sgd"),
        (["--scope", "tail"], "'tail' is not one of 'head', 'all'"),
        (["--window", "0"], "--window"),
        (["--precision", "8"], "'8' is not one of '32', 'bf16', '16'"),
        (["--schedule", "linear"], "'linear' is not one of 'cosine', 'steps'"),
        (["--crop", "wide"], "'wide' is not one of 'none', 'padded', 'resized'"),
        (["--clip", "-1"], "clip must be a positive norm"),
        (["--lr", "0"], "learning_rate must be positive"),
        (["--lr", "inf"], "learning_rate must be positive and finite, got inf"),
        (["--warmup", "99"], "warmup must be from 0 to the 30 epochs"),
        (["--device", "abacus"], "'abacus' is not one of 'auto', 'cpu', 'cuda'"),
        (["--strategy", "fsdp", "--precision", "16"], "needs a gradient scaler"),
        (["--pretrained", "nowhere.pt"], "nowhere.pt does not exist"),
        (["--stream", "--holdout", "0.1"], "--holdout is for sets in memory"),
        (["--channels", "2"], "channels must be 1"),
        (["--out", "{file}"], "a folder is needed"),
    ],
)
def test_bad_options_are_refused_before_training(tmp_path, words, reported):
    file = tmp_path / "file"
    file.touch()
    chosen = {"--dataset": "digits", "--model": "convnet", "--out": str(tmp_path / "run"), "--device": "cpu"}
    given = [word.format(file=file) for word in words]
    for option in chosen.keys() - set(given):
        given += [option, chosen[option]]
    result = call("train", *given)
    assert result.exit_code == 2, result.output
    assert reported in said(result)
    assert not (tmp_path / "run" / "record.jsonl").exists()


def test_help_names_every_choice():
    text = said(call("train", "--help"))
    for word in (
        "--method",
        "baseline|dcl|gem",
        "--window",
        "--scope",
        "--resume",
        "torchrun",
        "--out",
        "--precision",
        "--floor",
        "NUMBER|none",
        "--no-returning",
        "--correct",
        "--blocks",
        "--cautious",
        "--no-rescale",
    ):
        assert word in text


def test_the_record_has_what_was_asked_for(tmp_path):
    words = [
        "--accumulate",
        "2",
        "--clip",
        "1.5",
        "--tensorboard",
        "--channels-last",
        "--seed",
        "7",
        "--measure",
        "all",
    ]
    reported = said(trained(tmp_path, *words, epochs=1))
    assert "1 epoch in batches" in reported
    assert "Congruency: of the whole network's gradients" in reported
    first = json.loads((tmp_path / "record.jsonl").read_text().splitlines()[0])
    config = first["config"]
    assert (config["accumulate"], config["clip"], config["measure"], first["seed"]) == (2, 1.5, "all", 7)
    assert first["task"]["accumulate"] == 2
    assert first["task"]["seed"] == 7
    assert any((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize(
    ("words", "expected", "said_of_it"),
    [
        (["--method", "dcl"], {"floor": 0.3}, "SGD, with DCL-∞-1 concentrate, whole network, floor 0.3."),
        (["--method", "dcl", "--floor", "none"], {}, "with DCL-∞-1 concentrate, whole network."),
        (["--method", "dcl", "--mode", "anchor"], {"mode": "anchor"}, "with DCL-∞-1 anchor, whole network."),
        (["--method", "dcl", "--floor", "0.1", "--no-returning", "--correct", "update", "--blocks", "row",
          "--cautious"],
         {"floor": 0.1, "returning": False, "correct": "update", "blocks": "row", "cautious": True},
         "floor 0.1, returning off, corrects the update, by row, cautious."),
        (["--method", "gem", "--cautious", "--max-rescale", "4"], {"cautious": True, "max_rescale": 4.0},
         "with GEM, whole network, cautious, rescaled at most 4.0."),
        (["--method", "cautious", "--no-rescale"], {"rescale": False}, "with Cautious, not rescaled."),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_the_correction_that_options_choose(tmp_path, words, expected, said_of_it):
    """The defaults of scope and DCL are those of Python; other methods' records have no such settings."""
    result = trained(tmp_path, *words, epochs=1)
    assert said_of_it in said(result)
    record = read_record(tmp_path)
    assert record.run["config"]["method"] == Correction(name=words[1], scope="all", **expected).settings()
    assert all(("kept" in line) == ("cautious" in words[1] or "--cautious" in words) for line in record.steps)
