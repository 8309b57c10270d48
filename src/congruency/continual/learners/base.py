"""What every continual learner does: take tasks one after the other, batch by batch, and answer for any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency.constraints.memory import Policy
from congruency.continual.methods import Method

__all__ = ["Learner", "Setting"]


@dataclass(frozen=True)
class Setting:
    """What all learners of one stream share.

    Attributes:
        make: a network from the share of the hidden units it may have; the same each time.
        tasks: how many there will be.
        seed: of whatever a learner draws.
        memory: samples kept of every task.
        policy: which of them.
        chunk: past tasks whose gradients are made at a time; None makes all at once.
    """

    make: Callable[[float], nn.Module]
    tasks: int
    seed: int = 0
    memory: int = 256
    policy: Policy = "first"
    chunk: int | None = None


class Learner:
    """One network learned by plain SGD; the others build on it.

    A task goes: :meth:`begin`, :meth:`observe` for every batch, :meth:`finish`.
    """

    def __init__(self, method: Method, setting: Setting) -> None:
        self.method, self.setting = method, setting
        self.model = self.build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=method.lr)
        self.task = 0
        self.mask: Tensor | None = None

    def build(self) -> nn.Module:
        """The network to learn."""
        return self.setting.make(1.0)

    def begin(self, task: int, mask: Tensor | None) -> None:
        """A task begins; ``mask`` (classes,) is added to outputs, -inf for classes it does not have."""
        self.task, self.mask = task, mask

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        """Learn a batch by one step."""
        self.model.train()
        self.optimizer.zero_grad()
        self.loss(inputs, labels).backward()
        self.optimizer.step()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """What a step reduces."""
        return functional.cross_entropy(masked(self.model(inputs), self.mask), labels)

    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        """The task is over; these are all of its samples."""

    @torch.no_grad()
    def answers(self, inputs: Tensor, task: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The class of every input, (n,), of those that ``task`` has, and the masked outputs, (n, classes).

        The first is what accuracy is counted by, the second what the loss is the cross entropy of.
        """
        self.model.eval()
        outputs = masked(self.outputs(inputs, task), mask)
        return outputs.argmax(-1), outputs

    def outputs(self, inputs: Tensor, task: int) -> Tensor:
        """What the network for ``task`` puts out."""
        outputs: Tensor = self.model(inputs)
        return outputs

    def agreement(self) -> Tensor | None:
        """Mean cosine of the last update with the memory's gradients, where there is a memory; on the device."""
        return None


def masked(outputs: Tensor, mask: Tensor | None) -> Tensor:
    """Outputs with other tasks' classes at -inf."""
    return outputs if mask is None else outputs + mask
