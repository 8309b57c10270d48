"""The interface between the training loop and a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from congruency.training.config import Precision


@dataclass(frozen=True)
class Place:
    """This process: its device, rank and world size, and the precision of the run."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    precision: Precision = "32"

    @property
    def fused_optimizer(self) -> bool:
        """Whether to use a fused optimizer: only on a single GPU, and not in precision 16.

        There it would unscale the gradients only after DCL has used them.
        """
        return self.device.type == "cuda" and self.world_size == 1 and self.precision != "16"

    def sum(self, values: Tensor) -> Tensor:
        """Sum ``values`` over all processes (all-reduce), for evaluations that share the work."""
        if self.world_size == 1:
            return values
        total = values.to(self.device, copy=True)
        torch.distributed.all_reduce(total)
        return total


@runtime_checkable
class TrainingData(Protocol):
    """Training batches, determined by the epoch and the position in it.

    A batch is a pair ``(inputs, targets)``: tensors, or lists, tuples and dicts of them, whose first dimension counts
    samples; on the device or not.

    A run resumed after ``start`` batches calls ``train_batches(epoch, start)`` and must get the batches of an
    uninterrupted run. So order and augmentation depend on a seed, the epoch and the position alone; draws from torch's
    global generator are reproduced too, as long as batches are not prepared ahead of time. Data with more state may
    define ``state_dict()`` and ``load_state_dict(state)``; both are saved in checkpoints.
    """

    def __len__(self) -> int:
        """Return the number of batches per epoch, the same on every process."""
        ...

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Return this process's share of the batches of an epoch (from 0), starting at batch ``start``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """The task of a run: model, data, loss, optimizer and evaluation.

    Attributes:
        model: The model being trained, on any device, with its initial weights.
        optimizer: Builds the optimizer from the model, once its parameters are final (on the device, sharded).
        loss: ``loss(outputs, targets)``, the mean over a batch.
        data: The training batches of this process.
        schedule: Builds the learning-rate schedule from the optimizer.
        schedule_every: Whether the schedule steps every ``"epoch"`` or every ``"step"``.
        figures: ``figures(outputs, targets)``: further means over a batch to record, such as ``{"error": ...}``, as 0-d
            tensors on the device. Called without gradients.
        evaluate: ``evaluate(model)``: metrics on held-out data, equal on all processes (see :meth:`Place.sum`); called
            in evaluation mode without gradients. With FSDP every process must call ``model`` equally often.
        head_loss: ``loss`` as a function of the last layer's output, if other operations follow that layer; for GEM.
        description: Description of the task for the record, JSON-serialisable.
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
"""Builds the task of one process; called once, after seeding and after the processes are connected."""
