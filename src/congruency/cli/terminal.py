"""Shared parts of all commands: early checks, one-line errors, a clean exit on Ctrl-C."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congruency.report.tables import Table

INTERRUPTED = 130
"""The conventional exit code of a command ended by Ctrl-C."""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""Errors of the system that no other input would avoid."""


def given(context: Any, name: str) -> bool:
    """Whether an option was given on the command line rather than left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def interruptible(message: str | Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C print ``message``, calling it if it is a function, and exit."""
    import typer

    try:
        yield
    except KeyboardInterrupt:
        typer.echo(message if isinstance(message, str) else message(), err=True)
        raise typer.Exit(INTERRUPTED) from None


def interrupted(out: Path, again: str = "the same command with --resume") -> str:
    """Return the message for an interrupted run: whether there is a checkpoint to resume from."""
    saved = any((out / "checkpoints").glob("checkpoint-*.pt"))
    return f"interrupted; {again} " + (
        "continues from the last checkpoint" if saved else "starts again: there is no checkpoint yet"
    )


def check_folder(folder: Path, option: str) -> None:
    """Raise BadParameter, before any work, if a folder cannot be written to."""
    import typer

    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise typer.BadParameter(f"{existing} is a file, a folder is needed", param_hint=option)
    try:
        TemporaryDirectory(dir=existing).cleanup()  # permissions are not enough: root cannot write to /proc
    except OSError as reason:
        raise typer.BadParameter(f"{existing} cannot be written to ({reason.strerror})", param_hint=option) from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Context of a command that writes one page at its end: check the folder first, handle Ctrl-C and errors."""
    check_folder(out, "--out")
    with interruptible("stopped; nothing was written"), plain_errors():
        yield


def check_device(name: str, option: str) -> None:
    """Raise BadParameter, before any work, if PyTorch cannot use a device."""
    import typer

    from congruency.training.devices import why_unusable

    reason = why_unusable(name)
    if reason is not None:
        raise typer.BadParameter(f"PyTorch cannot use {name!r} here: {reason}", param_hint=option)


def check_accelerator(name: str) -> None:
    """Like :func:`check_device`, but ``"auto"`` is always accepted."""
    if name != "auto":
        check_device(name, "--device")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Report errors in the input as one line, with exit code 2, and those of the disk with exit code 1."""
    import typer

    from congruency.training.checkpoints import CheckpointError

    try:
        yield
    except (ValueError, TypeError, OSError, CheckpointError) as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from None
        raise typer.BadParameter(str(error)) from None


def show(table: Table, findings: Sequence[str], page: Path) -> None:
    """Print a table, the findings, and where the page is."""
    from rich.console import Console

    from congruency.studies import summary

    summary.show(table, findings, f"The page: {page}", Console(highlight=False))
