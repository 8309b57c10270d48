"""The run record: one file per run, one JSON object per line, readable during the run.

The first line (``"kind": "run"``) describes the run: ``config``, ``task``, ``seed``, ``versions`` etc., and its origin
(:class:`Origin`): ``command``, ``data``, ``table`` and ``row``. A resumed run keeps the original first line.
Lines of steps (``"kind": "step"``) and of epochs (``"kind": "epoch"``) follow, both counted from 0. They contain

- ``loss`` and the task's own figures, such as ``error``: means over samples;
- ``congruency`` and ``magnitude``, relative to the start of the run, and ``congruency_previous`` and
  ``magnitude_previous``, relative to the previous step; ``corrected_congruency`` and
  ``corrected_congruency_previous``, of the corrected gradient. An epoch's values are means over the steps where they
  are defined (``eqn:cong`` and ``eqn:mag``);
- ``corrected``, 1 or 0, of a step, and ``corrected_share`` of an epoch; ``kept``, the share of elements that Cautious
  kept;
- ``lr``, ``samples``, ``seconds``, ``data_seconds`` (how long the host waited for batches), and of an epoch
  ``samples_per_second``, ``evaluation`` (a dict of figures, or null) and ``evaluation_seconds``.

Undefined and non-finite numbers are null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from congruency.files import finite, lock

RECORD_NAME = "record.jsonl"

_TIMES = frozenset({"started", "seconds", "data_seconds", "evaluation_seconds", "samples_per_second"})


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The provenance of a run; None if unknown, such as the command of a run started from Python."""

    command: str | None = None  # arguments of the command ``congruency``, quoted for a shell
    data: str | None = None  # the data set
    table: str | None = None  # the table or grid, by its name on the command line
    row: str | None = None


class RecordError(OSError):
    """Raised if the record cannot be opened or written."""


class RecordWriter:
    """Appends lines to a record and tracks its length, so that a resumed run can truncate later lines."""

    def __init__(self, path: Path, length: int = 0) -> None:
        """Open the record, truncated to ``length`` bytes; 0 starts a new one."""
        self.path = path
        self._waiting: list[str] = []
        if length and not path.exists():
            raise RecordError(f"the run record {path} is missing; without it the run cannot be resumed")
        self._file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)  # noqa: SIM115
        if lock(self._file.fileno()) is False:
            raise RecordError(f"another process is writing {path}: wait for it, or choose another folder")
        held = os.fstat(self._file.fileno()).st_size
        if held < length:
            raise RecordError(f"the run record {path} has {held} bytes, fewer than the {length} of the checkpoint")
        self._file.truncate(length)
        self._file.seek(length)
        self._length = length

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; it is in the file after the next :meth:`flush`."""
        try:
            text = json.dumps(line, allow_nan=False)
        except ValueError:  # rare, so lines are searched for non-finite values only here
            text = json.dumps(finite(line), allow_nan=False)
        self._waiting.append(text + "\n")

    def flush(self) -> None:
        """Write the appended lines."""
        if not self._waiting:
            return
        data = "".join(self._waiting).encode()
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as reason:
            self._waiting.clear()
            with suppress(OSError):
                self._file.truncate(self._length)  # leave no partial line
            raise RecordError(
                reason.errno,
                f"the run record {self.path} could not be written ({reason.strerror}); "
                "make room and resume the run from its last checkpoint",
            ) from reason
        self._length += len(data)
        self._waiting.clear()

    def sync(self) -> int:
        """Sync the record to disk; return its length in bytes."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._length

    def close(self) -> None:
        """Write the appended lines and close the file."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()


@dataclass(frozen=True)
class RunRecord:
    """A record: its first line, the lines of steps, and the lines of epochs."""

    run: dict[str, Any]
    steps: list[dict[str, Any]]
    epochs: list[dict[str, Any]]


def read_record(path: str | Path) -> RunRecord:
    """Read a record file, or the record in a run's folder; an incomplete last line is ignored."""
    path = Path(path)
    path = path / RECORD_NAME if path.is_dir() else path
    *whole, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = []
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as reason:
            raise ValueError(f"line {number} of {path} is not JSON ({reason}); the record is damaged") from None
        if not isinstance(line, dict) or "kind" not in line:
            raise ValueError(f"line {number} of {path} is not a line of a record; the record is damaged")
        lines.append(line)
    if not lines or lines[0].get("kind") != "run":
        raise ValueError(f"{path} is not a run record: its first line is not that of a run")
    return RunRecord(
        run=lines[0],
        steps=[line for line in lines if line["kind"] == "step"],
        epochs=[line for line in lines if line["kind"] == "epoch"],
    )


def without_times(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines without times, so that runs with equal results have equal lines."""
    return [{name: value for name, value in line.items() if name not in _TIMES} for line in lines]
