"""Where a run comes from, in the first line of its record; as a real command, and through the tables."""

import subprocess
import sys

import pytest
from training_toy import build

from congruency.classification.augmentation import AUGMENTATIONS
from congruency.classification.task import Setup
from congruency.studies.classification.jobs import Data, ImageJob
from congruency.studies.classification.runner import ClassificationRunner
from congruency.studies.console import typed
from congruency.studies.executor import Place, execute
from congruency.studies.network_runs import Machine
from congruency.studies.plan import Row, Study
from congruency.studies.store import Store
from congruency.training import Correction, Origin, TrainingConfig, read_record, train

WORDS = [
    "--dataset",
    "digits",
    "--model",
    "mlp",
    "--per-class",
    "4",
    "--epochs",
    "1",
    "--device",
    "cpu",
    "--no-progress",
]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/usr/bin/congruency", "train", "--data", "my images"], "train --data 'my images'"),
        (["/lib/congruency/__main__.py", "demo"], "demo"),
        (["/lib/pytest/__main__.py", "-q"], None),
        (["-c"], None),
        ([""], None),
    ],
)
def test_what_was_typed(monkeypatch, argv, expected):
    monkeypatch.setattr(sys, "argv", argv)
    assert typed() == expected


def test_a_run_from_python_has_no_command(tmp_path):
    train(build, TrainingConfig(epochs=1, accelerator="cpu"), tmp_path)
    first = read_record(tmp_path).run
    assert [first[name] for name in ("command", "data", "table", "row")] == [None] * 4


def test_a_resumed_run_keeps_the_first_command(tmp_path):
    config = TrainingConfig(epochs=2, accelerator="cpu", checkpoint_steps=2)
    broken = []

    def fails(place):
        made = build(place)
        batches = made.data.train_batches

        def some(epoch, start=0):
            for i, batch in enumerate(batches(epoch, start), start):
                if (epoch, i) == (1, 2) and not broken:
                    broken.append(True)
                    raise InterruptedError
                yield batch

        made.data.train_batches = some
        return made

    with pytest.raises(InterruptedError):
        train(fails, config, tmp_path, origin=Origin(command="train --first", data="moons"))
    train(fails, config, tmp_path, resume=True, origin=Origin(command="train --second", data="other"))
    record = read_record(tmp_path)
    assert (record.run["command"], record.run["data"], len(record.epochs)) == ("train --first", "moons", 2)


def test_a_real_command_is_in_the_record_as_it_was_typed(tmp_path):
    out = tmp_path / "a run"
    subprocess.run(
        [sys.executable, "-m", "congruency", "train", *WORDS, "--out", str(out)], check=True, capture_output=True
    )
    first = read_record(out).run
    assert first["command"] == f"train {' '.join(WORDS)} --out '{out}'"
    assert (first["data"], first["table"], first["row"]) == ("digits", None, None)


def test_the_runs_of_a_study_name_it_and_their_row(tmp_path):
    setup = Setup(model="mlp", augmentation=AUGMENTATIONS["digits"].normalised_as((0.3,) * 3, (0.4,) * 3), epochs=1)
    job = ImageJob(
        setup=setup, method=Correction(), data=Data(name="digits", per_class=4), columns={"CIFAR-10": "error"}
    )
    rows = (Row(name="ResNeXt-29 SGD", jobs=(job,)),)
    study = Study(name="cifar", title="", lead="", rows=rows, columns=())
    runner = ClassificationRunner(
        folder=tmp_path, machine=Machine(), study="cifar", command="reproduce cifar", record_steps=1
    )
    assert len(list(execute(study.runs([0]), runner, Place(), Store(tmp_path)))) == 1
    (path,) = tmp_path.rglob("record.jsonl")
    record = read_record(path)
    origin = [record.run[name] for name in ("command", "data", "table", "row")]
    assert origin == ["reproduce cifar", "digits", "cifar", "ResNeXt-29 SGD"]
    assert record.steps, "for the curves within epochs"
