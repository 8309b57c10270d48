"""Finished runs on disk, one line per run in one file, so that no run is repeated."""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from congruency._validate import changes
from congruency.files import finite, lock, undefined, write_together
from congruency.studies.plan import Job, JobT, Run

_SETTINGS, _FINISHED, _FAILED, _ATTEMPTS = "settings.json", "finished.jsonl", "failed.json", "attempts.jsonl"


@dataclass(frozen=True)
class RunResult:
    """The stored result of a finished run.

    Attributes:
        figures: numbers by name; nan where undefined.
        arrays: nested lists of numbers, such as learning curves, that a page needs.
    """

    figures: Mapping[str, float]
    arrays: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A run that failed, with the last lines of its traceback."""

    reason: str

    @property
    def line(self) -> str:
        """The last line, which names the error."""
        return self.reason.splitlines()[-1]


class Store:
    """The runs of one folder; several processes may write to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> dict[tuple[str, int], RunResult]:
        """Return every finished run by key, ``(job digest, seed)``."""
        found = {}
        for number, line in enumerate(self._lines(_FINISHED), start=1):
            try:
                read = json.loads(line)
                figures = {name: float(value) for name, value in undefined(read["figures"]).items()}
                found[read["job"], int(read["seed"])] = RunResult(figures, undefined(read.get("arrays", {})))
            except (ValueError, KeyError, TypeError, AttributeError):
                path = self.folder / _FINISHED
                warnings.warn(f"line {number} of {path} is damaged; that run is repeated", stacklevel=2)
        return found

    def pending(self, runs: Sequence[Run[JobT]]) -> list[Run[JobT]]:
        """Return the runs that are not finished."""
        finished = self.load()
        return [run for run in runs if run.key not in finished]

    def add(self, run: Run[Any], outcome: RunResult | Failure) -> None:
        """Write a run's outcome to disk before returning. A failed run is repeated by the next command."""
        failed = {key: entry for key, entry in self._failed().items() if key != run.key}
        if isinstance(outcome, Failure):
            failed[run.key] = _described(run) | {"reason": outcome.reason.splitlines()}
        else:
            arrays = {"arrays": finite(outcome.arrays)} if outcome.arrays else {}
            self._append(_FINISHED, _described(run) | {"figures": finite(outcome.figures)} | arrays)
        if failed:
            write_together(self.folder, {_FAILED: json.dumps(list(failed.values()), indent=1) + "\n"})
        else:
            (self.folder / _FAILED).unlink(missing_ok=True)

    def failures(self) -> dict[tuple[str, int], Failure]:
        """Return the failed runs that have not succeeded since, by key."""
        return {key: Failure("\n".join(entry["reason"])) for key, entry in self._failed().items()}

    def note_attempt(self, run: Run[Any]) -> None:
        """Log which process starts or resumes a run."""
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._append(
            _ATTEMPTS, _described(run) | {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
        )

    def repeated_attempts(self) -> int:
        """Return how often a run was resumed or repeated after its process had ended."""
        counts: Counter[tuple[str, int]] = Counter()
        for line in self._lines(_ATTEMPTS):
            with suppress(ValueError, KeyError, TypeError):  # a line truncated by a killed process
                read = json.loads(line)
                counts[read["job"], read["seed"]] += 1
        return sum(count - 1 for count in counts.values())

    def settings(self) -> dict[str, Any] | None:
        """Return the settings shared by the folder's runs; None if there are none yet."""
        path = self.folder / _SETTINGS
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as reason:
            raise ValueError(f"{path} cannot be read ({reason}); choose another folder with --out") from None
        return found

    def check_settings(self, settings: Mapping[str, Any], remembered: Mapping[str, Any] | None = None) -> None:
        """Store the settings shared by the folder's runs, or raise ValueError if they differ from the stored ones.

        ``remembered`` is stored with them the first time and never compared.
        """
        held = self.settings()
        if held is None:
            content = json.dumps({**settings, **(remembered or {})}, indent=1)
            write_together(self.folder, {_SETTINGS: content + "\n"})
            return
        different = [name for name in settings if not _same(held.get(name), settings[name])]
        if different:
            listed = "; ".join(changes({n: held.get(n) for n in different}, {n: settings[n] for n in different}))
            raise ValueError(
                f"{self.folder} holds runs with other settings ({listed}); give the same options or another --out"
            )

    def _failed(self) -> dict[tuple[str, int], dict[str, Any]]:
        try:
            read = json.loads((self.folder / _FAILED).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return {(entry["job"], entry["seed"]): entry for entry in read} if isinstance(read, list) else {}

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def _append(self, name: str, content: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / name, "a+b") as file:
            lock(file.fileno(), wait=True)
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # an incomplete line, from a killed process
                    file.write(b"\n")
            file.write(json.dumps(content, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _described(run: Run[Job]) -> dict[str, Any]:
    return {"row": run.row, "label": run.job.label, "seed": run.seed, "job": run.job.digest()}


def _same(held: Any, wanted: Any) -> bool:
    """Whether settings agree; nested settings that the stored ones lack must be false, as in older releases."""
    if isinstance(held, dict) and isinstance(wanted, dict):
        return all(wanted.get(name) == value for name, value in held.items()) and not any(
            value for name, value in wanted.items() if name not in held
        )
    return bool(held == wanted)
