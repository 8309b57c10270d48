"""TensorBoard's files, beside the record: where they cannot be written, the run goes on without them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Board"]


class Board:
    """Scalars of a run for TensorBoard.

    Args:
        folder: For its files.
        step: Where the run begins: what a resumed run writes again is purged.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as reason:
            raise ImportError(
                "tensorboard is not installed; install congruency[experiments], or leave it off"
            ) from reason
        self._folder = folder
        self._writer: Any = None
        with self._surviving():
            self._writer = SummaryWriter(folder, purge_step=step or None)

    def log(self, kind: str, line: dict[str, Any], step: int) -> None:
        """The numbers of a line of the record."""
        if self._writer is None:
            return
        with self._surviving():
            for name, value in line.items():
                if isinstance(value, float):
                    self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Write what is waiting."""
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
                f"TensorBoard's files in {self._folder} cannot be written ({reason}); the run goes on without them",
                stacklevel=4,
            )
