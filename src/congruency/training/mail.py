"""Numbers on their way from the device to the host, read one sending late so that nobody waits for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Mail"]


class Mail:
    """Tensors sent to the host, in order.

    On a GPU a copy starts when it is sent, behind the work that makes its values, and is looked at when the next one is
    sent: by then it has arrived, and the GPU was never without work. All processes receive the same sendings at the
    same time. On a CPU there is nothing to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        self._late = _is_late(device)
        self._sent: deque[tuple[Any, list[Tensor], torch.cuda.Event | None]] = deque()

    def __len__(self) -> int:
        """Sendings that were not received."""
        return len(self._sent)

    def send(self, label: Any, tensors: Sequence[Tensor]) -> None:
        """Have the values that ``tensors`` will have copied to the host."""
        if not tensors or tensors[0].device.type != "cuda":
            self._sent.append((label, list(tensors), None))
            return
        copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
        arrival = torch.cuda.Event()
        arrival.record()
        self._sent.append((label, copies, arrival))

    def receive(self, *, everything: bool) -> Iterator[tuple[Any, list[Tensor]]]:
        """What was sent before the last sending; with ``everything`` the last one too, waiting for the device."""
        while len(self._sent) > (0 if everything or not self._late else 1):
            label, tensors, arrival = self._sent.popleft()
            if arrival is not None:
                arrival.synchronize()
            yield label, tensors


def _is_late(device: torch.device) -> bool:
    return device.type == "cuda"
