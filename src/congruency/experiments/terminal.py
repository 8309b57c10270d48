"""What all commands share: checks before any work, plain warnings, a clean end on Ctrl-C."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["INTERRUPTED", "check_device", "check_folder", "interruptible", "plain_warnings"]

INTERRUPTED = 130
"""What a shell expects of a command ended by Ctrl-C."""


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C ends the command with a line that says so."""
    import typer

    try:
        yield
    except KeyboardInterrupt:
        typer.echo(message, err=True)
        raise typer.Exit(INTERRUPTED) from None


def check_folder(folder: Path, option: str) -> None:
    """Refuse, before any work, a folder that could not be written to after it."""
    import typer

    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise typer.BadParameter(f"{existing} is a file, a folder is needed", param_hint=option)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"{existing} cannot be written to", param_hint=option)


def check_device(name: str, option: str) -> None:
    """Refuse, before any work, a device that PyTorch cannot put a tensor on."""
    import torch
    import typer

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        reason = str(error).splitlines()[0]
        raise typer.BadParameter(f"PyTorch cannot use {name!r} here: {reason}", param_hint=option) from None


@contextmanager
def plain_warnings(shown: bool = True) -> Iterator[None]:
    """Our own warnings as one line each, said once, without the place in the code; those of libraries not at all."""

    def tell(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if shown:
            print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = tell
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
            warnings.filterwarnings("default", module=r"congruency\.")
        yield
