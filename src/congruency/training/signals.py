"""SIGTERM, as a preempted job gets it: a wish to stop at the next step, not an end in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["STOPPED_EXIT_CODE", "StopSignal"]

STOPPED_EXIT_CODE = 75
"""What a command exits with after SIGTERM made it checkpoint and stop: EX_TEMPFAIL, "try again" (resume)."""


class StopSignal:
    """While entered, SIGTERM sets :attr:`asked` and does nothing else; a second one ends the process as usual."""

    def __init__(self) -> None:
        self.asked = False
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
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None
