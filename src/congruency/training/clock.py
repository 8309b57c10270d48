"""How long steps take, asked of the device's own clock where there is one, so that nothing has to wait for it."""

from __future__ import annotations

import time
from typing import Any

import torch

__all__ = ["StepClock", "seconds"]


class StepClock:
    """Seconds of each step: from the last :meth:`restart` or :meth:`tick` to its own tick."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._marks: list[tuple[Any, Any]] = []
        self.restart()

    def restart(self) -> None:
        """Leave what happened since the last tick out."""
        self._last = self._now()

    def tick(self) -> None:
        """A step ends here."""
        now = self._now()
        self._marks.append((self._last, now))
        self._last = now

    def take(self) -> list[tuple[Any, Any]]:
        """The marks of all steps since the last taking; :func:`seconds` reads them once the device has passed them."""
        marks, self._marks = self._marks, []
        return marks

    def _now(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def seconds(mark: tuple[Any, Any]) -> float:
    """How long a step took, by the clock that its marks are of."""
    start, end = mark
    return end - start if isinstance(start, float) else float(start.elapsed_time(end)) / 1000
