"""One run of a cell in a folder of its own: its record, its attempts, and what it came to."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from congruency.files import write_together
from congruency.studies.classification.running import Run, Sets, Stopped, Work, origin_of, train_in

__all__ = ["ATTEMPTS", "Failure", "Failures", "Outcome", "attempt", "attempts", "run_folder", "tidy"]

ATTEMPTS = "attempts.jsonl"
_LAST_LINES = 8
_FAILED = "failed.json"


@dataclass(frozen=True)
class Failure:
    """Why a run came to nothing: the last lines of its error."""

    reason: str

    @property
    def line(self) -> str:
        """The last of them, which names the error."""
        return self.reason.splitlines()[-1]


Outcome = dict[str, float] | Failure


def run_folder(out: Path, run: Run) -> Path:
    """Named by the cell, the set where a cell has several, and the seed."""
    parts = [part for part in (run.row, run.job.label) if part]
    return out.joinpath("runs", *(_plain(part) for part in parts), f"seed-{run.seed}")


def attempt(run: Run, images: Sets, work: Work, *, threads: int) -> tuple[Outcome, bool]:
    """Train, or go on from the last checkpoint; what came out, and whether SIGTERM came at the end.

    An error is an outcome too, so that the other cells go on; a wish to stop is not.
    """
    folder = run_folder(work.folder, run)
    try:
        with _threads(threads):
            lives = _note_attempt(folder)
            figures, asked_to_stop = train_in(folder, run.job, run.seed, images, work, origin_of(run, work))
        return {**figures, "attempts": float(lives)}, asked_to_stop
    except Stopped:
        raise
    except Exception:
        return Failure("\n".join(traceback.format_exc().strip().splitlines()[-_LAST_LINES:])), False


def attempts(folder: Path) -> list[dict[str, str | int]]:
    """Which processes have worked on a run, the latest last."""
    try:
        return [json.loads(line) for line in (folder / ATTEMPTS).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []


def tidy(out: Path, run: Run) -> None:
    """Once its result is kept, a run needs no checkpoint; its record stays."""
    shutil.rmtree(run_folder(out, run) / "checkpoints", ignore_errors=True)


class Failures:
    """The runs of a folder that failed, in a file beside their results; none where a later attempt went well."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def load(self) -> dict[str, dict[str, Failure]]:
        """By cell, and by what tells its runs apart, such as ``"seed 3"``."""
        try:
            read = json.loads((self._out / _FAILED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return {
            cell: {which: Failure("\n".join(lines)) for which, lines in runs.items()} for cell, runs in read.items()
        }

    def note(self, run: Run, failure: Failure | None) -> None:
        """Keep why a run failed; None says that it has not."""
        held = self.load()
        runs, which = held.setdefault(run.row, {}), run.title.removeprefix(f"{run.row}, ")
        if failure is not None:
            runs[which] = failure
        elif runs.pop(which, None) is None:
            return
        self._write({cell: runs for cell, runs in held.items() if runs})

    def _write(self, held: dict[str, dict[str, Failure]]) -> None:
        plain = {
            cell: {which: failure.reason.splitlines() for which, failure in runs.items()} for cell, runs in held.items()
        }
        if plain:
            write_together(self._out, {_FAILED: json.dumps(plain, indent=1) + "\n"})
        else:
            (self._out / _FAILED).unlink(missing_ok=True)


def _note_attempt(folder: Path) -> int:
    """Say in the run's folder who works on it; how many have."""
    folder.mkdir(parents=True, exist_ok=True)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with open(folder / ATTEMPTS, "a", encoding="utf-8") as file:
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "started": started}) + "\n")
    return len(attempts(folder))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The number of threads changes how sums are rounded: the same everywhere, the results are the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plain(name: str) -> str:
    return re.sub("[^A-Za-z0-9.-]+", "_", name)
