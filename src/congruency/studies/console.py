"""Terminal helpers: progress, plain warnings, the command line."""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

Notify = Callable[[str, float, float], None]
"""Progress callback, called with a label, the amount done and the total."""

_SECONDS_BETWEEN_LINES = 20.0


@contextmanager
def progress(console: Console, unit: str | None = None) -> Iterator[Notify]:
    """Show reported progress with the time left, counted in ``unit`` or, if None, as a percentage."""
    if not console.is_terminal:
        yield _Log(console, unit)
        return
    counted: list[ProgressColumn] = [MofNCompleteColumn(), TextColumn(f"{unit},")] if unit else [TaskProgressColumn()]
    columns = (
        BarColumn(10), *counted, TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"),
        TextColumn("[dim]{task.description}", table_column=Column(ratio=1, overflow="fold")),  # wrapped, not cut
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("reading the data", total=None)

        yield lambda label, done, total: bar.update(task, description=label, completed=done, total=total)


class _Log:
    """Progress as an occasional line, for output that is not a terminal."""

    def __init__(self, console: Console, unit: str | None) -> None:
        self._console, self._unit = console, unit
        self._began = perf_counter()
        self._last = -math.inf

    def __call__(self, label: str, done: float, total: float) -> None:
        now = perf_counter()
        if now - self._last >= _SECONDS_BETWEEN_LINES or (self._unit and done == 1):
            self._last = now
            far = f"{done:.3g} of {total:g} {self._unit}" if self._unit else f"{done / total:.0%}"
            line = f"{far}, {now - self._began:.0f} s: {label}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def command_line() -> str:
    """Return the running command, quoted for a shell."""
    return shlex.join(["congruency", *sys.argv[1:]])


def typed() -> str | None:
    """Return the arguments after ``congruency``, quoted for a shell; None if another program is running."""
    program = Path(sys.argv[0])
    ours = program.stem == "congruency" or program.parts[-2:] == ("congruency", "__main__.py")
    return shlex.join(sys.argv[1:]) if ours else None


@contextmanager
def plain_warnings(shown: bool = True) -> Iterator[None]:
    """Print each of our warnings once, on one line and without its code location; hide those of libraries."""

    said: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if shown and str(message) not in said:
            said.add(str(message))
            print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
            warnings.filterwarnings("default", module=r"congruency\.")
        yield
