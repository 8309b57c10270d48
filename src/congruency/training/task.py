"""What the loop asks of whoever wants something trained; it knows nothing of images, labels or maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from congruency.training.config import Precision

__all__ = ["Build", "Place", "Task", "TrainingData"]


@dataclass(frozen=True)
class Place:
    """Where this process stands: its device, its number among the processes that train together, their precision."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    precision: Precision = "32"

    def sum(self, values: Tensor) -> Tensor:
        """``values`` summed over all processes, on every one of them; for evaluations that share the work."""
        if self.world_size == 1:
            return values
        total = values.to(self.device, copy=True)
        torch.distributed.all_reduce(total)
        return total


@runtime_checkable
class TrainingData(Protocol):
    """Training batches, the same ones whenever the same place in the same epoch is asked for.

    A batch is a pair ``(inputs, targets)``: tensors, or lists, tuples and dicts of them, whose first dimension counts
    samples; on the device or not.

    A run that was interrupted after ``start`` batches asks for ``train_batches(epoch, start)`` and must get what it
    would have got. So order and augmentation depend on a seed, the epoch and the position alone; what draws from
    torch's own random state while a batch is made is reproduced too, as long as no batch is made ahead of its turn. A
    source with more to remember may have ``state_dict()`` and ``load_state_dict(state)``; both travel in checkpoints.
    """

    def __len__(self) -> int:
        """Batches in an epoch, the same number on every process."""
        ...

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """The batches of an epoch (counted from 0) from number ``start`` on: this process's share of each."""
        ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that is particular about a training.

    Attributes:
        model: The network, on any device, its initial weights in place.
        optimizer: Makes the optimizer from the network, once its parameters are final (on the device, sharded).
        loss: ``loss(outputs, targets)``, the mean over a batch.
        data: The training batches of this process.
        schedule: Makes the learning-rate schedule from the optimizer.
        schedule_every: Whether the schedule moves every ``"epoch"`` or every ``"step"``.
        figures: ``figures(outputs, targets)``: further means over a batch to record, such as ``{"error": ...}``; 0-d
            tensors that stay on the device. Called without gradients.
        evaluate: ``evaluate(model)``: figures of the network on held-out data, equal on all processes (see
            :meth:`Place.sum`); called in evaluation mode without gradients. With FSDP every process must call ``model``
            equally often.
        head_loss: ``loss`` as a function of the last layer's output, where something follows that layer; GEM needs it.
        description: What the record says about the task; JSON must be able to hold it.
    """

    model: nn.Module
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Callable[[Any, Any], Tensor]
    data: TrainingData
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    schedule_every: Literal["epoch", "step"] = "epoch"
    figures: Callable[[Any, Any], Mapping[str, Tensor]] | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    head_loss: Callable[[Any, Any], Tensor] | None = None
    description: Mapping[str, Any] = field(default_factory=dict)


Build = Callable[[Place], Task]
"""Makes the task of one process; called once, after the seeds are set and the processes know each other."""
