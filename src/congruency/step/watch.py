"""Warnings about a correction that changes nearly every step or none, or whose steps are never finite."""

from __future__ import annotations

import torch
from torch import Tensor

from congruency._validate import warn

__all__ = ["Watch", "correction_watch", "finite_watch"]

_WINDOWS = 4
_FEWEST_STEPS = 100
_UNUSED_STEPS = 1000
_NONFINITE_STEPS = 20


class Watch:
    """Warns once if a counter increased in at least a given share of the steps between two checks.

    On an accelerator the counter is copied asynchronously and checked in a later step.

    Args:
        every: Number of steps between two checks.
        share: The smallest share of these steps that triggers the warning.
        message: The warning, with the fields ``{share}`` and ``{steps}``.
        unused: Another warning, with the field ``{steps}``, if the counter is still 0 after a thousand steps.
    """

    def __init__(self, every: int, share: float, message: str, unused: str = "") -> None:
        self._every, self._share, self._message, self._unused = every, share, message, unused
        self._total = 0  # steps checked
        self._steps = 0  # steps since the last check
        self._last = 0  # the counter at the last check
        self._room: tuple[Tensor, torch.cuda.Event] | None = None  # buffer and event for copies from a GPU
        self._pending: tuple[Tensor, torch.cuda.Event, int] | None = None  # a copy in flight, and its steps
        self._warned = False

    def start(self, counter: int) -> None:
        """Restart with the counter of a resumed run."""
        self._steps, self._last, self._pending = 0, counter, None

    def note(self, counter: int | Tensor) -> None:
        """Record a step and the counter after it."""
        if self._warned:
            return
        self._steps += 1
        if self._pending is not None:
            copy, event, steps = self._pending
            if _capturing() or not event.query():  # a query would invalidate a CUDA graph capture
                return
            self._pending = None
            self._look(int(copy), steps)
        if self._steps < self._every:
            return
        if not isinstance(counter, Tensor):
            steps, self._steps = self._steps, 0
            self._look(counter, steps)
        elif counter.device.type == "cuda" and not _capturing():
            if self._room is None:
                self._room = torch.empty((), dtype=counter.dtype, pin_memory=True), torch.cuda.Event()
            copy, event = self._room
            copy.copy_(counter, non_blocking=True)
            event.record()
            self._pending, self._steps = (copy, event, self._steps), 0

    def _look(self, counter: int, steps: int) -> None:
        share, self._last = (counter - self._last) / steps, counter
        self._total += steps
        if self._unused and not counter and self._total >= _UNUSED_STEPS:
            warn(self._unused.format(steps=self._total))
            self._unused = ""
        if share >= self._share:
            self._warned = True
            warn(self._message.format(share=f"{share:.0%}", steps=steps))


def _capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def correction_watch(window: int | None) -> Watch:
    """Return a watch for correctors: at least 90 % of the solved steps corrected over several windows, or none."""
    return Watch(
        max(_FEWEST_STEPS, _WINDOWS * (window or _FEWEST_STEPS)),
        0.9,
        "DCL changed {share} of the last {steps} gradients: nearly all of them point back along the "
        "displacement of the weights, so DCL is removing the force that brings the weights back, not noise. "
        "Training may get worse or diverge. Use the default floor with returning=True, a shorter window, a "
        "lower learning rate, or congruency.Cautious (docs/stability.md)",
        "DCL changed none of {steps} gradients, so it has had no effect so far. By default it corrects only weak "
        "disagreement, and only while the weights move back toward the reference, which is rare with momentum or "
        "Adam. Use congruency.Cautious there, or a shorter window (docs/stability.md)",
    )


def finite_watch() -> Watch:
    """Return a watch for many steps in a row that were not finite."""
    return Watch(
        _NONFINITE_STEPS,
        1.0,
        "the last {steps} steps all had a gradient or an update that is not finite (nan or inf) and cannot be "
        "corrected: the run has probably diverged. Check the loss. Lower the learning rate, clip gradients or, in "
        "float16, use a GradScaler (docs/troubleshooting.md)",
    )
