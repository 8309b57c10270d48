"""The progress bar: how far, how fast, how long still."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

__all__ = ["Progress"]

_SECONDS_BETWEEN_DRAWINGS = 0.2


class Progress:
    """A bar over the steps of a run, drawn a few times a second by whoever advances it: no thread of its own.

    Args:
        shown: With False nothing is ever drawn.
        total: Steps of the whole run.
        done: Steps already made, in a run that is resumed.
        epochs: Epochs of the whole run.
    """

    def __init__(self, shown: bool, total: int, done: int, epochs: int) -> None:
        self._epochs = epochs
        self._drawn = 0.0
        self._waiting = self._samples = 0
        self._loss = float("nan")
        self._bar: Any = None
        if shown:
            self._bar = _bar()
            self._task = self._bar.add_task("", total=total, completed=done, rate="", loss="")
            self._since = time.perf_counter()

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._draw(time.perf_counter())
            self._bar.stop()

    def advance(self, epoch: int, samples: int) -> None:
        """One step more."""
        if self._bar is None:
            return
        self._epoch = epoch
        self._waiting += 1
        self._samples += samples
        now = time.perf_counter()
        if now - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self._draw(now)

    def report(self, loss: float) -> None:
        """The latest loss the host has seen."""
        self._loss = loss

    def _draw(self, now: float) -> None:
        if self._waiting:
            rate = self._samples / max(now - self._since, 1e-9)
            self._bar.update(
                self._task,
                advance=self._waiting,
                description=f"epoch {self._epoch + 1}/{self._epochs}",
                rate=f"{rate:,.0f} samples/s",
                loss=f"loss {self._loss:.4g}",
            )
            self._waiting, self._samples, self._since = 0, 0, now
        self._drawn = now
        self._bar.refresh()


def _bar() -> Any:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[loss]}"),
        console=Console(stderr=True),
        auto_refresh=False,
    )
