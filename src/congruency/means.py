"""Means over steps of what a correction measured, since they were last read; until then nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["RunningMeans"]

_NAMES = ("congruency", "corrected_congruency", "magnitude", "kept")


class RunningMeans:
    """Sums over steps, where steps are solved; the backends add to them (:attr:`congruency.backends.Problem.means`)."""

    def __init__(self) -> None:
        self._sums: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """(2, 4) float64 on the device, the same memory at every step: sums of the steps' means, and how many."""
        if device not in self._sums:
            self._sums[device] = torch.zeros(2, len(_NAMES), dtype=torch.float64, device=device)
        return self._sums[device]

    def read(self) -> dict[str, float]:
        """The means by name, without those that are undefined; they start over. Waits for the device."""
        totals, counts = sum((sums.cpu() for sums in self._sums.values()), torch.zeros(2, len(_NAMES))).tolist()
        self.reset()
        return {name: total / n for name, total, n in zip(_NAMES, totals, counts, strict=True) if n}

    def reset(self) -> None:
        """Start over, in place: a captured step adds to these very tensors."""
        for sums in self._sums.values():
            sums.zero_()
