"""What a user watches during a run: the progress bar in the terminal, and TensorBoard's files."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from congruency._validate import installing

_SECONDS_BETWEEN_DRAWINGS = 0.2


class Progress:
    """A bar over the steps of a run, redrawn a few times per second by :meth:`advance`, without a thread of its own.

    ``total`` steps and ``epochs`` are those of the whole run, ``done`` the steps taken before it was resumed.
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
        """Count one step."""
        if self._bar is None:
            return
        self._epoch = epoch
        self._waiting += 1
        self._samples += samples
        now = time.perf_counter()
        if now - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self._draw(now)

    def report(self, loss: float) -> None:
        """Set the loss to show, the latest the host has read."""
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


class TensorBoardLog:
    """Scalars of a run for TensorBoard; the run continues without them if its files cannot be written.

    ``step`` is the first: a resumed run purges what it writes again.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as reason:
            raise ImportError(f"tensorboard is missing; leave it off, or {installing('experiments')}") from reason
        self._folder = folder
        self._writer: Any = None
        with self._surviving():
            self._writer = SummaryWriter(folder, purge_step=step or None)

    def log(self, kind: str, line: dict[str, Any], step: int) -> None:
        """Write the floats of a record line."""
        if self._writer is None:
            return
        with self._surviving():
            for name, value in line.items():
                if isinstance(value, float):
                    self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Write what is buffered."""
        if self._writer is not None:
            with self._surviving():
                self._writer.close()

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except OSError as reason:
            self._writer = None
            warnings.warn(
                f"TensorBoard's files in {self._folder} cannot be written ({reason}); the run continues without them",
                stacklevel=4,
            )
