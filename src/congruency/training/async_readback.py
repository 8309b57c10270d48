"""Asynchronous readback of training steps' values from the device, step times, and means per epoch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class AsyncReadback:
    """A queue of tensors copied to the host without waiting for the device.

    On a GPU a copy starts when it is sent, queued behind the kernels that compute its values, and is received once the
    next one has been sent: by then it has usually arrived, so the GPU is not idle. All processes receive the same items
    at the same time. On a CPU items are received at once.

    Args:
        delayed: Whether an item is received only once the next one has been sent.
    """

    def __init__(self, *, delayed: bool) -> None:
        self._delayed = delayed
        self._sent: deque[tuple[Any, list[Tensor], torch.cuda.Event | None]] = deque()

    def __len__(self) -> int:
        """The number of items sent and not yet received."""
        return len(self._sent)

    def send(self, label: Any, tensors: Sequence[Tensor]) -> None:
        """Start copying ``tensors`` to the host."""
        if not tensors or tensors[0].device.type != "cuda":
            self._sent.append((label, list(tensors), None))
            return
        copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
        arrival = torch.cuda.Event()
        arrival.record()
        self._sent.append((label, copies, arrival))

    def receive(self, *, everything: bool) -> Iterator[tuple[Any, list[Tensor]]]:
        """Yield all items but the last one sent; with ``everything`` the last one too, which waits for the device."""
        while len(self._sent) > (1 if self._delayed and not everything else 0):
            label, tensors, arrival = self._sent.popleft()
            if arrival is not None:
                arrival.synchronize()
            yield label, tensors


class StepClock:
    """Times each step from the last :meth:`restart` or :meth:`tick` to its own tick, by CUDA events on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._marks: list[tuple[Any, Any]] = []
        self.restart()

    def restart(self) -> None:
        """Exclude the time since the last tick."""
        self._last = self._now()

    def tick(self) -> None:
        """End a step."""
        now = self._now()
        self._marks.append((self._last, now))
        self._last = now

    def take(self) -> list[tuple[Any, Any]]:
        """Return the marks of all steps since the last call; read them with :func:`seconds` once the device is done."""
        marks, self._marks = self._marks, []
        return marks

    def _now(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def seconds(mark: tuple[Any, Any]) -> float:
    """Return the duration of a step from its marks."""
    start, end = mark
    return end - start if isinstance(start, float) else float(start.elapsed_time(end)) / 1000


@dataclass(frozen=True)
class PendingStep:
    """A step whose values are still on the device."""

    step: int
    epoch: int
    lr: float
    samples: int
    data_seconds: float
    values: Tensor
    """(figures,): the loss and the task's own figures."""
    measures: Tensor | None
    """The measurements of congruency and magnitude."""
    kept: Tensor | None = None
    """(): the share of elements that Cautious kept."""


@dataclass
class EpochMeans:
    """Means over the steps of an epoch.

    Sums are accumulated step by step on the host, so they do not depend on when the steps were read back.
    ``data_seconds`` is the part of ``seconds`` that the host waited for batches.
    """

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)

    def add(
        self, step: PendingStep, figures: Mapping[str, float], measures: Mapping[str, float], seconds: float
    ) -> None:
        """Add one step.

        ``figures`` are weighted by the number of samples, and a nan makes the epoch's mean nan; undefined ``measures``
        are left out of the means.
        """
        self.steps += 1
        self.samples += step.samples
        self.seconds += seconds
        self.data_seconds += step.data_seconds
        for name, value in figures.items():
            self._count(name, value, step.samples)
        for name, value in measures.items():
            self._count(name, value if math.isfinite(value) else 0.0, int(math.isfinite(value)))

    def _count(self, name: str, value: float, weight: int) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value * weight
        self.weights[name] = self.weights.get(name, 0) + weight

    def means(self) -> dict[str, float]:
        """Return the mean of every figure; nan if no step had it."""
        return {
            name: total / self.weights[name] if self.weights[name] else math.nan for name, total in self.sums.items()
        }
