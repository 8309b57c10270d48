"""Counts of steps and means over steps. On an accelerator the solver adds to them without synchronization."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["COUNTED", "Counts", "RunningMeans"]

COUNTED = ("steps", "corrected", "nonfinite")
_NAMES = ("congruency", "corrected_congruency", "magnitude", "kept")


class Counts:
    """Number of steps, of corrected steps, and of steps not corrected because a value was not finite.

    The host counts on the CPU. On an accelerator the solver counts in :meth:`tally`, which the attributes then view.
    """

    def __init__(self) -> None:
        self.steps: int | Tensor = 0
        self.corrected: int | Tensor = 0
        self.nonfinite: int | Tensor = 0
        self._tally: Tensor | None = None  # Problem.counts

    def tally(self, device: torch.device) -> Tensor | None:
        """Return the tensor that the solver counts in; None on the CPU, where the host counts."""
        if device.type == "cpu":
            return None
        if self._tally is None:
            self._tally = torch.zeros(4, dtype=torch.int64, device=device)
            for place, count in ((0, self.corrected), (1, self.nonfinite)):
                self._tally[place].fill_(count)  # only changed in place from now on
            self.corrected, self.nonfinite = self._tally[0], self._tally[1]
        return self._tally

    def add_step(self, *, solved: bool, gated: bool) -> None:
        """Count a step, unless the device has counted it.

        From the first ``gated`` step on, the device counts the steps that it ``solved``, since the host does not see
        those replayed by a CUDA graph.
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
        """Return the counts as plain numbers; synchronizes with the device."""
        return {name: int(getattr(self, name)) for name in COUNTED}

    def load(self, counts: dict[str, int]) -> None:
        """Resume from :meth:`to_dict`; in place on a device, since captured CUDA graphs count in these tensors."""
        for name, count in counts.items():
            held = getattr(self, name)
            if isinstance(held, Tensor):
                held.fill_(count)
            else:
                setattr(self, name, int(count))


class RunningMeans:
    """Sums over steps, on each device that solves; backends add to them (:attr:`congruency.backends.Problem.means`)."""

    def __init__(self) -> None:
        self._sums: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """Return the sums and the numbers of steps in them, (2, 4) float64, always the same tensor per device."""
        if device not in self._sums:
            self._sums[device] = torch.zeros(2, len(_NAMES), dtype=torch.float64, device=device)
        return self._sums[device]

    def read(self) -> dict[str, float]:
        """Return the means by name, without undefined ones, and reset them; synchronizes with the device."""
        totals, counts = sum((sums.cpu() for sums in self._sums.values()), torch.zeros(2, len(_NAMES))).tolist()
        self.reset()
        return {name: total / n for name, total, n in zip(_NAMES, totals, counts, strict=True) if n}

    def reset(self) -> None:
        """Reset the sums to 0, in place, since captured CUDA graphs add to these tensors."""
        for sums in self._sums.values():
            sums.zero_()
