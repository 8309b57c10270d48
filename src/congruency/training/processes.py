"""This process: its rank among the processes of ``torchrun``, and SIGTERM as a request to stop after a step."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

STOPPED_EXIT_CODE = 75
"""Exit code of a command that stopped on SIGTERM and can be resumed: EX_TEMPFAIL, "try again"."""

_SECONDS_OF_ONE_REQUEST = 5.0


def process_count() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_process() -> bool:
    """Whether this is the process that writes files and prints."""
    return int(os.environ.get("RANK", "0")) == 0


class StopSignal:
    """Context manager in which SIGTERM only sets :attr:`asked`; a second SIGTERM some seconds later ends the process.

    Signals in between count as the same request, which may arrive directly and again from the launcher.
    """

    def __init__(self) -> None:
        self.asked = False
        self._at = math.inf
        self._before: Any = None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # Python only allows handlers there
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._at > _SECONDS_OF_ONE_REQUEST:
            self._restore()
            signal.raise_signal(number)
        self._at = now if not self.asked else self._at
        self.asked = True

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None
