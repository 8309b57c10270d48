"""Atomic checkpoint files: written to a temporary name, synced, renamed; the last two are kept."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from congruency.files import replacing

_NAME = re.compile(r"checkpoint-(\d+)\.pt")


class CheckpointError(RuntimeError):
    """Raised if no checkpoint could be read or written, or if it does not belong to this run."""


class Checkpoints:
    """The checkpoints of one run, named by step; the last two are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def paths(self) -> list[Path]:
        """Return the existing checkpoints, latest last."""
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def save(self, state: Mapping[str, Any], step: int) -> Path | None:
        """Write a checkpoint; if that fails, warn, keep the earlier ones, and return None."""
        path = self.folder / f"checkpoint-{step:010d}.pt"
        try:
            with replacing(path) as file:
                torch.save(dict(state), file)
        except (OSError, RuntimeError) as reason:
            cause = _disk_error(reason)
            if cause is None:
                raise
            earlier = self.paths()
            stays = f"{earlier[-1].name} stays usable" if earlier else "there is no earlier one"
            warnings.warn(
                f"the checkpoint of step {step} could not be written to {self.folder} ({cause}); {stays}", stacklevel=2
            )
            return None
        for old in self.paths()[:-2]:
            old.unlink(missing_ok=True)
        return path

    def load(self) -> tuple[Path, dict[str, Any]] | None:
        """Load the latest readable checkpoint onto the CPU; return its path and state, or None if there is none.

        Unreadable checkpoints are renamed with a warning, and the previous one is used.
        """
        unreadable: list[tuple[Path, CheckpointError]] = []
        for path in reversed(self.paths()):
            try:
                state = load_checkpoint(path)
            except CheckpointError as reason:
                unreadable.append((path, reason))
                continue
            for damaged, error in unreadable:
                os.replace(damaged, damaged.with_name(damaged.name + ".unreadable"))
                warnings.warn(f"{error}; going back to {path.name}", stacklevel=2)
            return path, state
        if unreadable:
            reasons = "; ".join(str(error) for _, error in unreadable)
            raise CheckpointError(f"no checkpoint in {self.folder} can be read; start a new run ({reasons})")
        return None


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read one checkpoint onto the CPU, with ``weights_only=True``."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as reason:  # torch raises RuntimeError, EOFError, pickle's and zipfile's errors for damaged files
        cause = (str(reason) or type(reason).__name__).splitlines()[0]
        raise CheckpointError(f"the checkpoint {path} cannot be read ({cause})") from reason
    if not isinstance(state, dict) or "step" not in state or "model" not in state:
        raise CheckpointError(f"{path} is not a checkpoint of a run: it has no step or no model")
    return state


def _disk_error(error: BaseException) -> str | None:
    """Return why a file could not be written; None if the error is of another kind."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, OSError):
            return str(reason)
        reason = reason.__cause__ or reason.__context__
    # torch reports an incomplete write without the system's error
    return "the disk took only a part of it; is it full?" if "inline_container" in str(error) else None
