"""Interrupted runs: killed, stopped, out of disk, with a damaged checkpoint; all end as if nothing had happened."""

import errno
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from training_interrupted import METHODS as METHODS_KILLED
from training_interrupted import adam, settings
from training_toy import Numbers, assert_same, build, everything

from congruency.training import (
    CheckpointError,
    Correction,
    RecordError,
    TrainingConfig,
    checkpoints,
    load_checkpoint,
    loop,
    processes,
    read_record,
    train,
)

HERE = Path(__file__).parent
METHODS = {
    "baseline": Correction(),
    "dcl": Correction(name="dcl", window=5, references=2),
    "gradients": Correction(name="dcl", scope="all", mode="anchor", margin=0.1, accumulate="gradients"),
    "gem": Correction(name="gem", memory=2),
    "gem all": Correction(name="gem", scope="all"),
    "floor": Correction(name="dcl", scope="all", window=5, floor=0.3),
    "row": Correction(name="dcl", scope="all", window=5, floor=0.9, returning=False, blocks="row"),
    "update": Correction(name="dcl", scope="all", window=5, correct="update", blocks="element"),
    "cautious": Correction(name="cautious", scope="all", mask_decay=True, max_rescale=3.0),
    "dcl and cautious": Correction(name="dcl", window=5, references=2, cautious=True),
    "l2sp": Correction(name="l2sp", scope="all", strength=0.1, head_strength=0.02),
}


class PowerFailure(Exception):
    """Stands for a power failure."""


class Interrupted(Numbers):
    """Data that runs a function, once each, before given batches of given epochs."""

    events: ClassVar[dict] = {}

    def train_batches(self, epoch, start=0):
        for i, batch in enumerate(super().train_batches(epoch, start), start=start):
            event = self.events.pop((epoch, i), None)
            if event:
                event()
            yield batch


def fail():
    raise PowerFailure


def interrupted(place, **changes):
    return build(place, dropout=0.2, data=Interrupted(place, noise=True), optimizer=adam, **changes)


def config(**changes):
    return TrainingConfig(**{"epochs": 4, "accelerator": "cpu", "flush_every": 4, "checkpoint_steps": 4, **changes})


def test_killed_at_random_moments(tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    result = subprocess.run(
        [sys.executable, str(HERE / "training_interrupted.py"), str(tmp_path / "killed"), str(seed)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
    )
    assert result.returncode == 0, f"seed {seed}: {result.stderr[-3000:]}"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for method in METHODS_KILLED:
        whole = tmp_path / "whole" / method
        train(partial(build, dropout=0.2, noise=True, optimizer=adam), settings(METHODS_KILLED[method]), whole)
        assert_same(everything(tmp_path / "killed" / method), everything(whole))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("changes", [{}, {"accumulate": 4, "clip": 0.5}, {"measure": "none"}])
@pytest.mark.parametrize("method", METHODS)
def test_interrupted_and_resumed(method, changes, tmp_path):
    settings = config(method=METHODS[method], **changes)
    train(interrupted, settings, tmp_path / "whole")
    for Interrupted.events in ({(0, 1): fail}, {(1, 5): fail}, {(3, 0): fail}):
        with pytest.raises(PowerFailure):
            train(interrupted, settings, tmp_path / "broken", resume=True)
    train(interrupted, settings, tmp_path / "broken", resume=True)
    assert_same(everything(tmp_path / "broken"), everything(tmp_path / "whole"))
    kept = [line.get("kept", 0.0) for line in read_record(tmp_path / "whole").steps]
    assert any(0 < share < 1 for share in kept) == ("cautious" in method)


def test_a_scaler_is_resumed(tmp_path):
    with torch.backends.mkldnn.flags(enabled=False):
        settings = config(precision="16", method=METHODS["dcl"])
        train(interrupted, settings, tmp_path / "whole")
        Interrupted.events = {(2, 3): fail}
        with pytest.raises(PowerFailure):
            train(interrupted, settings, tmp_path / "broken")
        train(interrupted, settings, tmp_path / "broken", resume=True)
    assert_same(everything(tmp_path / "broken"), everything(tmp_path / "whole"))


@pytest.mark.parametrize("batch", [2, 5])
def test_sigterm(batch, tmp_path):
    """Stops after the next step, which may be an epoch's last."""
    settings = config(method=METHODS["dcl"], checkpoint_steps=None)
    train(interrupted, settings, tmp_path / "whole")
    handler = signal.getsignal(signal.SIGTERM)
    Interrupted.events = {(1, batch): lambda: os.kill(os.getpid(), signal.SIGTERM)}
    result = train(interrupted, settings, tmp_path / "stopped")
    assert (result.finished, result.exit_code, result.steps) == (False, 75, 6 + batch + 1)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert load_checkpoint(result.checkpoint)["batch"] == batch + 1
    result = train(interrupted, settings, tmp_path / "stopped", resume=True)
    assert (result.finished, result.exit_code) == (True, 0)
    assert_same(everything(tmp_path / "stopped"), everything(tmp_path / "whole"))


def test_sigterm_during_the_evaluation(tmp_path):
    def stopping(place):
        task = interrupted(place)
        return interrupted(place, evaluate=lambda m: os.kill(os.getpid(), signal.SIGTERM) or task.evaluate(m))

    result = train(stopping, config(checkpoint_epochs=9), tmp_path)
    assert (result.finished, result.epochs) == (False, 1)
    assert load_checkpoint(result.checkpoint)["epoch"] == 1


def test_a_request_to_stop_may_arrive_twice(monkeypatch):
    """As `timeout` sends it to all processes of a command, and the command to its workers; later ones end it."""
    ended = []
    before = signal.signal(signal.SIGTERM, lambda *place: ended.append(place))
    try:
        with processes.StopSignal() as stop:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert stop.asked
            assert not ended
            monkeypatch.setattr(processes, "_SECONDS_OF_ONE_REQUEST", -1.0)
            signal.raise_signal(signal.SIGTERM)
            assert len(ended) == 1
    finally:
        signal.signal(signal.SIGTERM, before)


def test_checkpoints_by_the_clock(tmp_path, monkeypatch):
    """Of a run without a number of epochs: one a minute, none of a shorter run or at its end."""
    settings = config(method=METHODS["dcl"], checkpoint_epochs=0, checkpoint_steps=None)
    assert train(interrupted, settings, tmp_path / "short").checkpoint is None
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    Interrupted.events = {(3, 2): fail}
    with pytest.raises(PowerFailure):
        train(interrupted, settings, tmp_path / "long")
    names = [path.name for path in sorted((tmp_path / "long" / "checkpoints").iterdir())]
    assert names == ["checkpoint-0000000012.pt", "checkpoint-0000000018.pt"]
    result = train(interrupted, settings, tmp_path / "long", resume=True)
    assert result.checkpoint.name == "checkpoint-0000000018.pt", "none at the end"
    monkeypatch.undo()
    ends = [read_record(tmp_path / name).epochs[-1]["evaluation"] for name in ("short", "long")]
    assert ends[0] == ends[1]


def test_a_finished_run_is_not_continued(tmp_path):
    first = train(interrupted, config(), tmp_path)
    before = (tmp_path / "record.jsonl").read_bytes()
    again = train(interrupted, config(), tmp_path, resume=True)
    assert again == first
    assert (tmp_path / "record.jsonl").read_bytes() == before


def test_the_last_two_checkpoints_are_kept(tmp_path):
    train(interrupted, config(), tmp_path)
    names = [path.name for path in sorted((tmp_path / "checkpoints").iterdir())]
    assert names == ["checkpoint-0000000020.pt", "checkpoint-0000000024.pt"]


def full_disk(state, file):
    file.write(b"half of a check")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    settings = config(method=METHODS["dcl"])
    train(interrupted, settings, tmp_path / "whole")
    Interrupted.events = {(1, 3): lambda: monkeypatch.setattr(torch, "save", full_disk), (3, 0): fail}
    expected = r"step 12 could not be written .*No space left on device.*checkpoint-0000000008.pt stays usable"
    with pytest.warns(UserWarning, match=expected), pytest.raises(PowerFailure):
        train(interrupted, settings, tmp_path / "full")
    names = [path.name for path in sorted((tmp_path / "full" / "checkpoints").iterdir())]
    assert names == ["checkpoint-0000000006.pt", "checkpoint-0000000008.pt"]
    with pytest.warns(UserWarning, match="could not be"), pytest.raises(CheckpointError, match="make room and resume"):
        train(interrupted, settings, tmp_path / "full", resume=True)
    monkeypatch.undo()
    train(interrupted, settings, tmp_path / "full", resume=True)
    assert_same(everything(tmp_path / "full"), everything(tmp_path / "whole"))


def test_sigterm_on_a_full_disk_reports_where_a_resumed_run_starts(tmp_path, monkeypatch):
    def stop():
        monkeypatch.setattr(torch, "save", full_disk)
        os.kill(os.getpid(), signal.SIGTERM)

    Interrupted.events = {(1, 3): stop}
    with pytest.warns(UserWarning, match="step 10 could not be written"):
        result = train(interrupted, config(), tmp_path)
    assert (result.finished, result.steps, result.resumes_at) == (False, 10, 8)
    monkeypatch.undo()
    result = train(interrupted, config(), tmp_path, resume=True)
    assert (result.finished, result.resumes_at) == (True, 24)


def test_a_short_write_is_explained(tmp_path, monkeypatch):
    def short(state, file):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 98176 vs 98064")

    monkeypatch.setattr(torch, "save", short)
    with pytest.warns(UserWarning, match=r"\(the disk took only a part of it; is it full\?\); there is no earlier one"):
        assert checkpoints.Checkpoints(tmp_path).save({}, 1) is None


def test_a_full_disk_stops_tensorboard_but_not_the_run(tmp_path, monkeypatch):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter

    def full(self, name, value, step):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "add_scalar", full)
    with pytest.warns(UserWarning, match="TensorBoard's files in .* cannot be written .*No space left") as warned:
        result = train(interrupted, config(tensorboard=True), tmp_path)
    assert result.finished
    assert len(warned) == 1


def test_notice_is_called_after_every_step(tmp_path):
    seen = []
    train(interrupted, config(), tmp_path, notice=lambda step, steps: seen.append((step, steps)))
    assert seen == [(step, 24) for step in range(1, 25)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_torch_reports_a_full_disk():
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "wb") as file:
        torch.save({"weights": torch.zeros(10**6)}, file)


def test_a_full_disk_stops_the_record(tmp_path, monkeypatch):
    from congruency.training.record import RecordWriter

    writer = RecordWriter(tmp_path / "record.jsonl")
    writer.append({"kind": "run"})
    writer.sync()
    file = writer._file

    class Full:
        truncate = file.truncate

        def write(self, data):
            if len(data) < 8:
                raise OSError(errno.ENOSPC, "No space left on device")
            return file.write(data[:8])

    monkeypatch.setattr(writer, "_file", Full())
    writer.append({"kind": "step"})
    with pytest.raises(RecordError, match=r"could not be written \(No space left on device\); make room and resume"):
        writer.flush()
    assert (tmp_path / "record.jsonl").read_text() == '{"kind": "run"}\n'


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"nonsense" * 100])
def test_an_unreadable_checkpoint(damage, tmp_path):
    settings = config(method=METHODS["dcl"])
    train(interrupted, settings, tmp_path / "whole")
    Interrupted.events = {(3, 0): fail}
    with pytest.raises(PowerFailure):
        train(interrupted, settings, tmp_path / "damaged")
    newest = tmp_path / "damaged" / "checkpoints" / "checkpoint-0000000018.pt"
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(
        UserWarning, match=r"checkpoint-0000000018.pt cannot be read.*going back to checkpoint-0000000016.pt"
    ):
        train(interrupted, settings, tmp_path / "damaged", resume=True)
    assert_same(everything(tmp_path / "damaged"), everything(tmp_path / "whole"))


def test_no_readable_checkpoint(tmp_path):
    train(interrupted, config(), tmp_path)
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(b"")
    for _ in range(2):  # however often one tries
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read; start a new run"):
            train(interrupted, config(), tmp_path, resume=True)


def test_another_configuration_is_refused(tmp_path):
    train(interrupted, config(epochs=1), tmp_path)
    with pytest.raises(CheckpointError, match="epochs was 1 and is 2; precision was '32' and is 'bf16'"):
        train(interrupted, config(epochs=2, precision="bf16"), tmp_path, resume=True)
    train(interrupted, config(epochs=1, flush_every=9, checkpoint_epochs=2), tmp_path, resume=True)


def test_a_missing_or_locked_record_is_refused(tmp_path):
    from congruency.training.record import RecordWriter

    train(interrupted, config(epochs=1), tmp_path)
    writer = RecordWriter(tmp_path / "record.jsonl", 10)
    with pytest.raises(RecordError, match="another process is writing"):
        train(interrupted, config(epochs=1), tmp_path, resume=True)
    writer.close()
    with pytest.raises(RecordError, match="fewer than"):
        train(interrupted, config(epochs=1), tmp_path, resume=True)
    (tmp_path / "record.jsonl").unlink()
    with pytest.raises(RecordError, match="is missing"):
        train(interrupted, config(epochs=1), tmp_path, resume=True)


def test_data_with_a_state_of_its_own(tmp_path):
    class Remembers(Interrupted):
        given = 0

        def train_batches(self, epoch, start=0):
            for inputs, targets in super().train_batches(epoch, start):
                self.given += 1
                yield inputs * (1 + self.given / 100), targets

        def state_dict(self):
            return {"given": self.given}

        def load_state_dict(self, state):
            self.given = state["given"]

    remembering = lambda place: build(place, data=Remembers(place))  # noqa: E731
    train(remembering, config(), tmp_path / "whole")
    Interrupted.events = {(2, 4): fail}
    with pytest.raises(PowerFailure):
        train(remembering, config(), tmp_path / "broken")
    train(remembering, config(), tmp_path / "broken", resume=True)
    assert_same(everything(tmp_path / "broken"), everything(tmp_path / "whole"))


def test_an_incomplete_last_line_is_left_out(tmp_path):
    train(interrupted, config(epochs=1), tmp_path)
    path = tmp_path / "record.jsonl"
    whole = read_record(path)
    path.write_bytes(path.read_bytes() + b'{"kind": "step", "st')
    assert read_record(path) == whole
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ValueError, match=r"line 9 of .* is not JSON"):
        read_record(path)
