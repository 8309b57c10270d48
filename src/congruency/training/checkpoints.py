"""Checkpoints that are there whole or not at all: written aside, synced, renamed; the last two are kept."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["CheckpointError", "Checkpoints", "load_checkpoint"]

_NAME = re.compile(r"checkpoint-(\d+)\.pt")
_ASIDE = ".writing"


class CheckpointError(RuntimeError):
    """No checkpoint could be read, or it is not one of this run."""


class Checkpoints:
    """The checkpoints of one run, named by the step they were made at.

    Args:
        folder: Where they are; made where it is missing.
        keep: How many of the latest stay.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)

    def paths(self) -> list[Path]:
        """Those that are there, the latest last."""
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def save(self, state: Mapping[str, Any], step: int) -> Path | None:
        """Write a checkpoint; where that fails, warn, leave the earlier ones as they are, and give None."""
        path = self.folder / f"checkpoint-{step:010d}.pt"
        aside = path.with_name(path.name + _ASIDE)
        try:
            _write(state, aside)
            os.replace(aside, path)
            _sync_folder(self.folder)
        except (OSError, RuntimeError) as reason:
            aside.unlink(missing_ok=True)
            told = _why(reason)
            if told is None:
                raise
            earlier = self.paths()
            stays = f"{earlier[-1].name} stays usable" if earlier else "there is no earlier one"
            warnings.warn(
                f"the checkpoint of step {step} could not be written to {self.folder} ({told}); {stays}", stacklevel=2
            )
            return None
        for old in self.paths()[: -self._keep]:
            old.unlink(missing_ok=True)
        return path

    def clean(self) -> None:
        """Take away what a killed process left half written; only for the one process that writes here."""
        for left in self.folder.glob(f"*{_ASIDE}"):
            left.unlink(missing_ok=True)

    def load(self) -> tuple[Path, dict[str, Any]] | None:
        """The latest that can be read, in the memory of the CPU; None where there is none.

        One that cannot be read is put aside with a warning, and the one before it is taken.
        """
        unreadable: list[tuple[Path, CheckpointError]] = []
        for path in reversed(self.paths()):
            try:
                state = load_checkpoint(path)
            except CheckpointError as reason:
                unreadable.append((path, reason))
                continue
            for damaged, told in unreadable:
                os.replace(damaged, damaged.with_name(damaged.name + ".unreadable"))
                warnings.warn(f"{told}; going back to {path.name}", stacklevel=2)
            return path, state
        if unreadable:
            reasons = "; ".join(str(told) for _, told in unreadable)
            raise CheckpointError(f"no checkpoint in {self.folder} can be read; start a new run ({reasons})")
        return None


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read one checkpoint into the memory of the CPU; nothing in it is executed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as reason:  # torch raises RuntimeError, EOFError, pickle's and zipfile's errors for damaged files
        told = (str(reason) or type(reason).__name__).splitlines()[0]
        raise CheckpointError(f"the checkpoint {path} cannot be read ({told})") from reason
    if not isinstance(state, dict) or "step" not in state or "model" not in state:
        raise CheckpointError(f"{path} is not a checkpoint of a run: it has no step or no model")
    return state


def _why(error: BaseException) -> str | None:
    """What kept a file from being written; None where that is not what went wrong."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, OSError):
            return str(reason)
        reason = reason.__cause__ or reason.__context__
    # torch's way to say that a write fell short: it keeps the reason of the system to itself
    return "the disk took only a part of it; is it full?" if "inline_container" in str(error) else None


def _write(state: Mapping[str, Any], path: Path) -> None:
    with open(path, "wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
