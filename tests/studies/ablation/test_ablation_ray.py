"""The grid on a real Ray of two cores, one of whose workers is killed in the middle of a training."""

import json
import os
import signal
import threading
import time
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from congruency import cli
from congruency.studies.ablation.runs import attempts
from congruency.training import read_record, without_times
from congruency.training.record import RECORD_NAME

EPOCHS = 60
WORDS = ["--data", "digits", "--model", "mlp", "--per-class", 20, "--batch-size", 20, "--epochs", EPOCHS,
         "--window", 3, "none", "--references", 1, "--seeds", 1, "--device", "cpu"]  # fmt: skip
BLOCKED, LAST = "DCL-3-1, concentrate, margin 0, head", "DCL-inf-1, concentrate, margin 0, head"


ELSEWHERE = {"RAY_ADDRESS": "127.0.0.1:1"}  # another cluster that Ray knows of, which must not be joined unasked


def call(*words, **env):
    shown = {"COLUMNS": "160", "TERM": "dumb"}
    return CliRunner().invoke(cli.build(), [str(word) for word in words], env=shown | env)


class Killer(threading.Thread):
    """Kills the first worker process whose run has an epoch behind it and others before it."""

    def __init__(self, folders):
        super().__init__(daemon=True)
        self.folders, self.killed, self.over = folders, None, threading.Event()

    def run(self):
        while self.killed is None and not self.over.is_set():
            for folder in self.folders:
                with suppress(OSError, ValueError, IndexError):  # a process just over, a file just being made
                    self.look(folder)
            time.sleep(0.002)

    def look(self, folder):
        """Stopped first: what the record then says cannot change before the kill."""
        if self.killed is not None or not 0 < self.epochs(folder) < EPOCHS:
            return
        pid = attempts(folder)[-1]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            if self.epochs(folder) < EPOCHS:
                self.killed = folder, pid
        finally:
            os.kill(pid, signal.SIGCONT if self.killed is None else signal.SIGKILL)

    @staticmethod
    def epochs(folder):
        return len(read_record(folder / RECORD_NAME).epochs)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The grid here, and on Ray with a worker killed and a cell that cannot be run: a file stands in its way."""
    pytest.importorskip("ray", reason="ray is not installed: it comes with congruency[cluster]")
    made = tmp_path_factory.mktemp("both")
    local = call("ablate", *WORDS, "--out", made / "local")
    assert local.exit_code == 0, local.output
    runs = made / "ray" / "runs"
    runs.mkdir(parents=True)
    (runs / "DCL-3-1_concentrate_margin_0_head").touch()
    killer = Killer([runs / name / "seed-0" for name in ("baseline", "DCL-inf-1_concentrate_margin_0_head")])
    killer.start()
    cluster = call("ablate", *WORDS, "--on", "ray", "--processes", 2, "--out", made / "ray", **ELSEWHERE)
    killer.over.set()
    killer.join()
    if "Ray could not be started" in cluster.output:
        pytest.skip(f"Ray does not start on this machine: {cluster.output[-300:]}")
    return made, cluster, killer


def test_a_run_whose_worker_was_killed_goes_on_to_the_same_results(both):
    made, cluster, killer = both
    assert killer.killed is not None, cluster.output
    folder, pid = killer.killed
    first, second = attempts(folder)
    assert first["pid"] == pid != second["pid"]
    here, there = (json.loads((made / name / "results.json").read_text()) for name in ("local", "ray"))
    assert list(there) == ["baseline", LAST]
    for row in there:
        for metric in set(here[row]) - {"seconds", "images_per_second", "attempts"}:
            assert here[row][metric] == there[row][metric], (row, metric)
    assert sum(there[row]["attempts"][0] for row in there) == 3
    assert "1 time(s) a run was taken up again from its checkpoint" in (made / "ray" / "table.md").read_text()


def test_records_are_those_of_the_grid_here_line_by_line(both):
    made, _, _ = both
    for name in ("baseline", "DCL-inf-1_concentrate_margin_0_head"):
        here, there = (read_record(made / where / "runs" / name / "seed-0") for where in ("local", "ray"))
        assert len(there.epochs) == EPOCHS
        assert without_times(here.epochs) == without_times(there.epochs)


def test_a_cell_that_failed_in_a_worker_is_reported_and_the_others_are_done(both):
    made, cluster, _ = both
    assert cluster.exit_code == 1, cluster.output
    kept = json.loads((made / "ray" / "failed.json").read_text())
    assert "NotADirectoryError" in kept[BLOCKED]["seed 0"][-1]
    assert f"| {BLOCKED} | 0, 1 failed |" in (made / "ray" / "table.md").read_text()


def test_ray_is_gone_after_the_command(both):
    import ray

    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
