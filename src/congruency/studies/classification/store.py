"""Finished trainings on disk, a line each in one file, so that none is ever run again and all travel together."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from congruency.files import write_together
from congruency.studies.classification.jobs import Job

__all__ = ["Store", "check_settings", "read_settings"]

_SETTINGS = "settings.json"


class Store:
    """The finished trainings of a folder; several processes may add to it.

    Args:
        folder: Where ``finished.jsonl`` is, or will be.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "finished.jsonl"

    def load(self) -> dict[tuple[str, int], dict[str, float]]:
        """The figures of every training, by the digest of its job and its seed."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        found = {}
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                read = json.loads(line)
                figures = {name: math.nan if value is None else float(value) for name, value in read["figures"].items()}
                found[read["job"], int(read["seed"])] = figures
            except (ValueError, KeyError, TypeError, AttributeError):
                warnings.warn(f"line {number} of {self.path} is damaged; that training is run again", stacklevel=2)
        return found

    def add(self, row: str, job: Job, seed: int, figures: Mapping[str, float]) -> None:
        """Keep a training: its line is on the disk when this returns."""
        shown = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        line = {"row": row, "label": job.label, "seed": seed, "job": job.digest(), "figures": shown}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            _lock(file)
            file.seek(0, os.SEEK_END)
            if file.tell() and _last_byte(file) != b"\n":  # half a line, from a process that was killed
                file.write(b"\n")
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_settings(folder: Path) -> dict[str, Any] | None:
    """What the folder's trainings have in common, None where there are none."""
    path = folder / _SETTINGS
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as reason:
        raise ValueError(f"{path} cannot be read ({reason}); choose another folder with --out") from None
    return found


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write down what the folder's trainings have in common; refuse others, which would not compare."""
    held = read_settings(folder)
    if held is None:
        write_together(folder, {_SETTINGS: json.dumps(settings, indent=1) + "\n"})
        return
    different = [name for name in settings if not _same(held.get(name), settings[name])]
    if different:
        told = "; ".join(f"{name} was {held.get(name)!r} and is {settings[name]!r}" for name in different)
        raise ValueError(f"{folder} holds runs with other settings ({told}); give the same options or another --out")


def _same(held: Any, wanted: Any) -> bool:
    """Whether settings agree; a switch that an older release did not write down was off."""
    if isinstance(held, dict) and isinstance(wanted, dict):
        return all(wanted.get(name) == value for name, value in held.items()) and not any(
            value for name, value in wanted.items() if name not in held
        )
    return bool(held == wanted)


def _last_byte(file: IO[bytes]) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def _lock(file: IO[bytes]) -> None:
    with suppress(ImportError, OSError):  # Windows; a file system without locks
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
