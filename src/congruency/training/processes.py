"""This process: its place among those that ``torchrun`` started, and SIGTERM as a request to stop after a step."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

STOPPED_EXIT_CODE = 75
"""Exit code of a command that SIGTERM made checkpoint and stop: EX_TEMPFAIL, "try again" (resume)."""

_SECONDS_OF_ONE_REQUEST = 5.0


def process_count() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_process() -> bool:
    """Whether this is the process that writes files and prints."""
    return int(os.environ.get("RANK", "0")) == 0


class StopSignal:
    """While entered, SIGTERM only sets :attr:`asked`; one that comes later than some seconds after ends the process.

    Those in between are the same request: sent to all processes of a command, and passed on by the first of them.
    """

    def __init__(self) -> None:
        self.asked = False
        self._at = math.inf
        self._before: Any = None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
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
