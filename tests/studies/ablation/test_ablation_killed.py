"""The grid on a real Ray and in processes of this machine, one of which is killed in the middle of a run."""

import json
import os
import signal
import threading
import time
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from congruency import cli
from congruency.studies.store import Store
from congruency.training import read_record, without_times
from congruency.training.record import RECORD_NAME

EPOCHS = 60
WORDS = ["--dataset", "digits", "--model", "mlp", "--per-class", 20, "--batch-size", 20, "--epochs", EPOCHS,
         "--window", 3, "none", "--references", 1, "--seeds", 1, "--device", "cpu"]  # fmt: skip
BLOCKED, LAST = "DCL-3-1, concentrate, margin 0, head", "DCL-inf-1, concentrate, margin 0, head"


ELSEWHERE = {"RAY_ADDRESS": "127.0.0.1:1"}  # another cluster that Ray knows of, which must not be joined unasked


def call(*words, **env):
    shown = {"COLUMNS": "160", "TERM": "dumb"}
    return CliRunner().invoke(cli.build(), [str(word) for word in words], env=shown | env)


def attempts(out, row):
    """Which processes have worked on a row, the latest last."""
    lines = map(json.loads, (out / "attempts.jsonl").read_text().splitlines())
    return [line["pid"] for line in lines if line["row"] == row]


class Killer(threading.Thread):
    """Kills the first worker process whose run has an epoch behind it and others before it."""

    def __init__(self, out, folders):
        super().__init__(daemon=True)
        self.out, self.folders, self.killed, self.over = out, folders, None, threading.Event()

    def run(self):
        while self.killed is None and not self.over.is_set():
            for row, folder in self.folders.items():
                with suppress(OSError, ValueError, IndexError):  # a process just over, a file just being made
                    self.look(row, folder)
            time.sleep(0.002)

    def look(self, row, folder):
        """Stopped first: what the record then says cannot change before the kill."""
        if self.killed is not None or not 0 < self.epochs(folder) < EPOCHS:
            return
        pid = attempts(self.out, row)[-1]
        os.kill(pid, signal.SIGSTOP)
        try:
            if self.epochs(folder) < EPOCHS:
                self.killed = row, pid
        finally:
            os.kill(pid, signal.SIGCONT if self.killed is None else signal.SIGKILL)

    @staticmethod
    def epochs(folder):
        (run,) = folder.parent.glob(f"{folder.name}-seed-0-*")
        return len(read_record(run / RECORD_NAME).epochs)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    made = tmp_path_factory.mktemp("local")
    result = call("ablate", *WORDS, "--out", made)
    assert result.exit_code == 0, result.output
    return made


@pytest.fixture(scope="module", params=["ray", "processes"])
def both(request, local, tmp_path_factory):
    """The grid elsewhere with a worker killed and a cell that cannot be run: a file stands in its way."""
    place = ["--processes", 2]
    if request.param == "ray":
        pytest.importorskip("ray", reason="ray is not installed: it comes with congruency[cluster]")
        place = ["--ray", "local", *place]
    made = tmp_path_factory.mktemp(request.param)
    runs = made / "runs"
    runs.mkdir(parents=True)
    (cell,) = (local / "runs").glob("DCL-3-1_concentrate_margin_0_head-seed-0-*")
    (runs / cell.name).touch()
    folders = {"baseline": "baseline", LAST: "DCL-inf-1_concentrate_margin_0_head"}
    killer = Killer(made, {row: runs / name for row, name in folders.items()})
    killer.start()
    result = call("ablate", *WORDS, *place, "--out", made, **ELSEWHERE)
    killer.over.set()
    killer.join()
    if "Ray could not be started" in result.output:
        pytest.skip(f"Ray does not start on this machine: {result.output[-300:]}")
    return made, result, killer


def test_a_run_whose_worker_was_killed_is_resumed_to_the_same_results(local, both):
    made, result, killer = both
    assert killer.killed is not None, result.output
    row, pid = killer.killed
    first, second = attempts(made, row)
    assert first == pid != second
    here, there = (json.loads((folder / "results.json").read_text()) for folder in (local, made))
    assert list(there) == ["baseline", LAST]
    for row in there:
        for metric in set(here[row]) - {"seconds", "images_per_second"}:
            assert here[row][metric] == there[row][metric], (row, metric)
    assert Store(made).repeated_attempts() == 1
    assert "1 time(s) a run was resumed from its checkpoint" in (made / "table.md").read_text()


def test_records_are_those_of_the_grid_here_line_by_line(local, both):
    for name in ("baseline", "DCL-inf-1_concentrate_margin_0_head"):
        here, there = (read_record(*(folder / "runs").glob(f"{name}-seed-0-*")) for folder in (local, both[0]))
        assert len(there.epochs) == EPOCHS
        assert without_times(here.epochs) == without_times(there.epochs)


def test_a_run_that_failed_in_a_worker_is_reported_and_the_others_are_done(both):
    made, result, _ = both
    assert result.exit_code == 1, result.output
    kept = json.loads((made / "failed.json").read_text())
    assert [(entry["row"], entry["seed"]) for entry in kept] == [(BLOCKED, 0)]
    assert "NotADirectoryError" in kept[0]["reason"][-1]
    assert f"| {BLOCKED} | 0, 1 failed |" in (made / "table.md").read_text()


def test_ray_is_gone_after_the_command(both):
    ray = pytest.importorskip("ray")
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
