"""The terminal: progress of long work, plain warnings, the command that was typed."""

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
"""Called with what was done last or is being done, how much is done, and how much there is in all."""

_SECONDS_BETWEEN_LINES = 20.0


@contextmanager
def progress(console: Console, unit: str | None = None) -> Iterator[Notify]:
    """Show what is reported, with the time left; counted in ``unit``, or as a share where None."""
    if not console.is_terminal:
        yield _Log(console, unit)
        return
    counted: list[ProgressColumn] = [MofNCompleteColumn(), TextColumn(f"{unit},")] if unit else [TaskProgressColumn()]
    columns = (
        BarColumn(10), *counted, TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"),
        TextColumn("[dim]{task.description}", table_column=Column(ratio=1, overflow="fold")),  # whole, in lines
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("reading the data", total=None)

        yield lambda label, done, total: bar.update(task, description=label, completed=done, total=total)


class _Log:
    """Progress as a line now and then, where there is no terminal."""

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
    """Return the command that is running, quoted for a shell."""
    return shlex.join(["congruency", *sys.argv[1:]])


def typed() -> str | None:
    """What was typed after ``congruency``, quoted for a shell; None where this is not that command."""
    program = Path(sys.argv[0])
    ours = program.stem == "congruency" or program.parts[-2:] == ("congruency", "__main__.py")
    return shlex.join(sys.argv[1:]) if ours else None


@contextmanager
def plain_warnings(shown: bool = True) -> Iterator[None]:
    """Our own warnings as one line each, said once, without the place in the code; those of libraries not at all."""

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
