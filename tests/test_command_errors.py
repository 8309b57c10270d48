"""What a new user types wrong: one line that says what to do, and nothing left behind."""

import io
import re
import typing
import urllib.error
import urllib.request

import pytest
import torch
import typer
from command_line import call, said
from typer.models import OptionInfo

from congruency import cli, pretrained
from congruency.cli.terminal import interrupted
from congruency.studies import bench

DIGITS = [
    "train",
    "--dataset",
    "digits",
    "--model",
    "mlp",
    "--per-class",
    "20",
    "--batch-size",
    "32",
    "--device",
    "cpu",
]


def refused(result, *messages):
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for message in messages:
        assert re.search(message, said(result)), result.output


def test_a_size_that_is_too_large_for_anything(monkeypatch):
    monkeypatch.setattr(bench, "MemoryClock", lambda *_: pytest.fail("it began to work"))
    refused(call("bench", "--device", "cpu", "--size", "1e20"), "--size")
    refused(
        call("bench", "--device", "cpu", "--size", "1e12", "--references", 1, "--quick"),
        r"not measured: 1e\+12 parameters with 1 reference\(s\): 28,000 GB or more are needed",
        "nothing of this fits into the memory.*smaller --size",
    )


def test_a_folder_that_nothing_can_be_written_to(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("congruency.cli.terminal.TemporaryDirectory", full)
    refused(call("demo", "--out", tmp_path / "out"), r"--out.*cannot be written to \(No space left on device\)")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_no_wrong_usage(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device", str(tmp_path / "record.jsonl"))

    monkeypatch.setattr("congruency.training.record.RecordWriter.append", full)
    result = call("train", "--dataset", "digits", "--model", "mlp", "--epochs", "1", "--out", tmp_path / "run")
    assert result.exit_code == 1, result.output
    assert "Error: [Errno 28] No space left on device" in result.output
    assert "Usage" not in result.output


def test_a_checked_folder_is_left_as_it_was(tmp_path):
    refused(call("demo", "--steps", 55, "--out", tmp_path / "out"), "multiple of 10")
    assert not list(tmp_path.iterdir())


def test_data_is_the_folder_and_dataset_the_set(tmp_path):
    for words in (DIGITS, ["reproduce", "continual", "mnist_r"], ["ablate", "--dataset", "digits"]):
        refused(
            call(*words, "--data", tmp_path / "digits", "--out", tmp_path / "out"), "not a folder", "--dataset the set"
        )
    refused(call("train", "--dataset", "mnist", "--data", tmp_path, "--out", tmp_path / "out"), "MNIST is not in",
            "--data", "--dataset")  # fmt: skip
    refused(call("reproduce", "continual", "mnist_r", "--data", tmp_path, "--out", tmp_path / "out"), "MNIST is not in")
    refused(call("reproduce", "classification", "cifar10_grid", "--data", tmp_path, "--out", tmp_path / "out"),
            "CIFAR-10 is not in")  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", ["resnet18", "torchvision/resnet18"])
def test_a_download_without_a_network_fails_at_once(model, tmp_path, monkeypatch):
    def unreachable(url, timeout):
        assert timeout <= 5
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    words = [*DIGITS[:3], "--model", model, "--channels", 3, "--size", 32, "--pretrained", "download"]
    result = call(*words, "--epochs", 1, "--device", "cpu", "--out", tmp_path / "out")
    refused(result, f"weights of {model} cannot be downloaded .*Name or service not known.*give a weights file")
    assert not (tmp_path / "out").exists()
    if model == "resnet18":  # saliency networks say so before they look at the data
        words = ["saliency", "train", tmp_path, "--pretrained", "download", "--backbone", model, "--device", "cpu"]
        refused(call(*words, "--out", tmp_path / "out"), "weights of resnet18 cannot be downloaded")
    else:  # and so do studies, rather than in each of their runs
        words = ["reproduce", "tuned", "tiny_resnet50", "--data", tmp_path, "--device", "cpu"]
        refused(call(*words, "--out", tmp_path / "out"), "weights of torchvision/resnet50 cannot be downloaded")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    "words",
    [
        ["reproduce", "tuned", "cifar10_resnet9", "--dataset", "digits", "--model", "mlp"],
        ["reproduce", "classification", "cifar10_grid", "--dataset", "digits", "--model", "mlp"],
        ["reproduce", "continual", "mnist_r", "--dataset", "digits"],
        ["reproduce", "saliency", "osie", "--data", "."],
        ["saliency", "osie", "."],
        ["ablate", "--dataset", "digits", "--model", "mlp"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_study_needs_its_device(words, tmp_path):
    result = call(*words, "--device", "cuda", "--out", tmp_path / "out")
    refused(result, "PyTorch cannot use 'cuda' here")
    assert not (tmp_path / "out").exists()


def test_a_server_that_answers_is_asked(monkeypatch):
    def answers(url, timeout):
        raise urllib.error.HTTPError(url, 404, "Not Found", {}, io.BytesIO())

    monkeypatch.setattr(urllib.request, "urlopen", answers)
    pretrained.check_reachable("resnet18", "https://example.org")


def test_resuming_with_other_settings_names_what_changed(tmp_path):
    words = [*DIGITS, "--epochs", 1, "--method", "dcl", "--window", 3, "--out", tmp_path / "run"]
    assert call(*words).exit_code == 0
    words[words.index("--window") + 1] = 4
    result = call(*words, "--resume")
    refused(result, r"method\.window was 3 and is 4")
    assert "{" not in result.output
    result = call(*words, "--resume", "--momentum", 0.5)
    refused(result, r"momentum was 0\.9 and is 0\.5")
    assert "{" not in result.output


def test_a_diverged_run_says_when(tmp_path):
    result = call(*DIGITS, "--epochs", 2, "--lr", "1e30", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert re.search(r"the run has diverged: the loss is not finite from step \d+ on", said(result))


def test_ctrl_c_names_a_checkpoint_only_where_there_is_one(tmp_path, monkeypatch):
    from congruency.training.run import TrainingRun

    taken = TrainingRun.take_step

    def stopped(self, batches):
        if self.step == 3:
            raise KeyboardInterrupt
        return taken(self, batches)

    monkeypatch.setattr(TrainingRun, "take_step", stopped)
    result = call(*DIGITS, "--epochs", 2, "--out", tmp_path / "first")
    assert result.exit_code == 130
    assert "--resume starts again: there is no checkpoint yet" in said(result)
    result = call(*DIGITS, "--epochs", 2, "--checkpoint-steps", 2, "--out", tmp_path / "later")
    assert result.exit_code == 130
    assert "--resume continues from the last checkpoint" in said(result)
    assert "starts again" in interrupted(tmp_path / "nothing", "the same command")


def help_texts(command, words=()):
    yield words, call(*words, "--help").output
    for name, inner in getattr(command, "commands", {}).items():
        yield from help_texts(inner, (*words, name))


def test_help_is_in_groups_and_flags_have_no_type():
    found = dict(help_texts(typer.main.get_command(cli.build())))
    assert len(found) > 15
    for words, text in found.items():
        assert "<bool>" not in text, words
        assert "BOOLEAN" not in text, words
        panels = re.split(r"^╭─", text, flags=re.MULTILINE)
        assert max(panel.count("\n") for panel in panels) < 80, words


def test_every_command_that_takes_data_means_the_same_by_it():
    hints = [typing.get_type_hints(function, include_extras=True) for function in functions(cli.build())]
    taken = [hint["data"].__metadata__[0] for hint in hints if "data" in hint]
    assert len({id(option) for option in taken if isinstance(option, OptionInfo)}) == 1


def functions(app):
    for command in app.registered_commands:
        yield command.callback
    for group in app.registered_groups:
        yield from functions(group.typer_instance)
