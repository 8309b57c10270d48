"""Counts of steps and means over steps; on an accelerator the kernel that solves adds to them, and nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["COUNTED", "Counts", "RunningMeans"]

COUNTED = ("steps", "corrected", "nonfinite")
_NAMES = ("congruency", "corrected_congruency", "magnitude", "kept")


class Counts:
    """How many steps there were, and how many of them were corrected, or left alone for a number that is not finite.

    The host counts what it knows. Once there is a :meth:`tally`, solving counts there, and the counts are read from it.
    """

    def __init__(self) -> None:
        self.steps: int | Tensor = 0
        self.corrected: int | Tensor = 0
        self.nonfinite: int | Tensor = 0
        self._tally: Tensor | None = None  # Problem.counts

    def tally(self, device: torch.device) -> Tensor | None:
        """Where solving counts: None on the CPU, whose numbers the host can read without waiting."""
        if device.type == "cpu":
            return None
        if self._tally is None:
            self._tally = torch.zeros(4, dtype=torch.int64, device=device)
            for place, count in ((0, self.corrected), (1, self.nonfinite)):
                self._tally[place].fill_(count)  # in place from now on
            self.corrected, self.nonfinite = self._tally[0], self._tally[1]
        return self._tally

    def add_step(self, *, solved: bool, gated: bool) -> None:
        """Count a step, unless it was ``solved`` on a device that counts steps itself (a CUDA graph's replays).

        That counts from the first ``gated`` step on: until then the host knows of every step.
        """
        if isinstance(self.steps, Tensor):
            if not solved:
                self.steps += 1
        elif self._tally is not None and solved and gated:
            self._tally[3].fill_(self.steps + 1)
            self.steps = self._tally[3]
        else:
            self.steps += 1

    def to_dict(self) -> dict[str, int]:
        """Plain numbers; waits for the device."""
        return {name: int(getattr(self, name)) for name in COUNTED}

    def load(self, counts: dict[str, int]) -> None:
        """Continue from :meth:`to_dict`; in place on a device, where a captured step counts in these very tensors."""
        for name, count in counts.items():
            held = getattr(self, name)
            if isinstance(held, Tensor):
                held.fill_(count)
            else:
                setattr(self, name, int(count))


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
