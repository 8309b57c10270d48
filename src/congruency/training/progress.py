"""Progress of a run: a progress bar in the terminal, and TensorBoard logs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from congruency._validate import installing

_SECONDS_BETWEEN_DRAWINGS = 0.2


Advance = Callable[[int, int, float], None]
"""Called after a step with its epoch, its number of samples and the latest loss read back."""


@contextmanager
def progress_bar(shown: bool, total: int, done: int, epochs: int) -> Iterator[Advance]:
    """Show a progress bar over the steps of a run; the yielded callback redraws it a few times per second.

    ``total`` steps and ``epochs`` are of the whole run, ``done`` the steps taken before it was resumed.
    """
    if not shown:
        yield lambda epoch, samples, loss: None
        return
    from rich import progress
    from rich.console import Console

    text = progress.TextColumn
    columns = (
        text("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(), text("{task.fields[rate]}"),
        progress.TimeRemainingColumn(), text("{task.fields[loss]}"),
    )  # fmt: skip
    since, drawn, waiting = time.perf_counter(), 0.0, 0  # draws the first step at once
    with progress.Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("", total=total, completed=done, rate="", loss="")

        def advance(epoch: int, samples: int, loss: float) -> None:
            nonlocal since, drawn, waiting
            bar.update(task, advance=1, description=f"epoch {epoch + 1}/{epochs}", loss=f"loss {loss:.4g}")
            waiting += samples
            now = time.perf_counter()
            if now - drawn >= _SECONDS_BETWEEN_DRAWINGS:
                bar.update(task, rate=f"{waiting / max(now - since, 1e-9):,.0f} samples/s")
                bar.refresh()
                since = drawn = now
                waiting = 0

        yield advance


class TensorBoardLog:
    """Writes a run's scalars for TensorBoard; the run continues without them if the files cannot be written.

    ``step`` is the first step: a resumed run purges the values that it writes again.
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
        """Write buffered values and close the files."""
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
