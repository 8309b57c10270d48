"""Figures of steps, and what an epoch makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Means", "PendingStep"]


@dataclass(frozen=True)
class PendingStep:
    """A step whose figures are still on the device."""

    step: int
    epoch: int
    lr: float
    samples: int
    data_seconds: float
    values: Tensor
    """(figures,): the loss and the task's own."""
    gauged: Tensor | None
    """What the gauge took."""


class Means:
    """What an epoch makes of its steps.

    Sums are formed step by step on the host: when the steps were read from the device makes no difference.

    Attributes:
        steps: How many steps there were.
        samples: How many samples they saw.
        seconds: How long they took.
        data_seconds: How much of that the host waited for batches.
    """

    def __init__(self) -> None:
        self.steps = self.samples = 0
        self.seconds = self.data_seconds = 0.0
        self._sums: dict[str, float] = {}
        self._weights: dict[str, int] = {}

    def add(self, step: PendingStep, figures: Mapping[str, float], gauged: Mapping[str, float], seconds: float) -> None:
        """Take one step in.

        Args:
            step: The step.
            figures: Means over its samples, so that each sample counts alike; a loss of nan makes the epoch's nan.
            gauged: Figures of the step as such, which count where they are defined.
            seconds: How long it took.
        """
        self.steps += 1
        self.samples += step.samples
        self.seconds += seconds
        self.data_seconds += step.data_seconds
        for name, value in figures.items():
            self._count(name, value, step.samples)
        for name, value in gauged.items():
            self._count(name, value if math.isfinite(value) else 0.0, int(math.isfinite(value)))

    def _count(self, name: str, value: float, weight: int) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weights[name] = self._weights.get(name, 0) + weight

    def means(self) -> dict[str, float]:
        """The mean of every figure, nan where no step had it."""
        return {
            name: total / self._weights[name] if self._weights[name] else math.nan for name, total in self._sums.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on in the middle of an epoch."""
        counts = {"steps": self.steps, "samples": self.samples}
        times = {"seconds": self.seconds, "data_seconds": self.data_seconds}
        return {**counts, **times, "sums": dict(self._sums), "weights": dict(self._weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self.steps, self.samples = int(state["steps"]), int(state["samples"])
        self.seconds, self.data_seconds = float(state["seconds"]), float(state["data_seconds"])
        self._sums, self._weights = dict(state["sums"]), dict(state["weights"])
