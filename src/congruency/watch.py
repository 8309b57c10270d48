"""A watch over a correction: one warning when it changes nearly every step."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

__all__ = ["Watch"]

_SHARE = 0.9
_WINDOWS = 4
_FEWEST_STEPS = 100


class Watch:
    """Warns once if at least 90 % of the steps that could be corrected were, over several windows.

    On an accelerator the counter is copied without waiting for it, and looked at when a later window ends.

    Args:
        window: Steps between restarts of the references, or None.
    """

    def __init__(self, window: int | None) -> None:
        self._every = max(_FEWEST_STEPS, _WINDOWS * (window or _FEWEST_STEPS))
        self._steps = 0  # that could be corrected since the last look
        self._last = 0  # what the counter said at the last look
        self._pending: tuple[Tensor, torch.cuda.Event, int] | None = None
        self._warned = False

    def note(self, corrected: int | Tensor) -> None:
        """Take note of a step that could be corrected, and of how many have been since the start."""
        if self._warned:
            return
        self._steps += 1
        if self._pending is not None and self._pending[1].query():
            copy, _, steps = self._pending
            self._pending = None
            self._look(int(copy), steps)
        if self._steps < self._every:
            return
        steps, self._steps = self._steps, 0
        if not isinstance(corrected, Tensor):
            self._look(corrected, steps)
        elif corrected.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            copy = torch.empty((), dtype=corrected.dtype, pin_memory=True).copy_(corrected, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._pending = (copy, event, steps)

    def _look(self, corrected: int, steps: int) -> None:
        share, self._last = (corrected - self._last) / steps, corrected
        if share < _SHARE:
            return
        self._warned = True
        warnings.warn(
            f"DCL changed {share:.0%} of the last {steps} gradients: nearly all of them point back along the "
            "displacement of the weights, so that the force which brings the weights back is being removed, not "
            "noise. Training may get worse or diverge. Use the default floor with returning=True, a shorter window, a "
            "lower learning rate, or congruency.Cautious (docs/stability.md)",
            stacklevel=2,
        )
