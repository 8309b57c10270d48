"""Gradient Episodic Memory: the name users type."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from congruency.corrector import Corrector, Trigger
from congruency.memory import EpisodicMemory, Loss, Policy

__all__ = ["GEM"]


class GEM(Corrector):
    """Gradient Episodic Memory (Lopez-Paz and Ranzato, NeurIPS 2017) inside every ``optimizer.step()``.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gem = congruency.GEM(optimizer, model)
        for task, batches in enumerate(tasks):
            for inputs, targets in batches:
                gem.observe(inputs, targets, task)
                loss(model(inputs), targets).backward()
                optimizer.step()  # does not raise the loss on what is remembered of past tasks, to first order

    For GEM together with DCL (the paper's ``eqn:constraints_conn``) give both sources to one
    :class:`~congruency.Corrector`: ``Corrector(optimizer, None, [References(window=30), EpisodicMemory(model)])``.

    Args:
        optimizer: Any ``torch.optim`` optimizer but LBFGS.
        model: Makes outputs from inputs.
        loss: A scalar from outputs and targets; the mean cross entropy where None.
        params: The parameters to correct; None takes all of the optimizer's.
        size: Samples kept of every task.
        policy: Which: the last seen (``"ring"``) or the ``"first"``.
        margin: Lower bound of the multipliers, GEM's memory strength; 0.5 is what GEM's authors used.
        trigger: ``"violated"``, as GEM does: leave gradients alone that no memory disagrees with; or ``"always"``.
        chunk: Past tasks at a time, where the gradients of all at once would take too much memory.
        attach: With False, call :meth:`correct` yourself before each ``optimizer.step()``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        loss: Loss | None = None,
        params: Iterable[Tensor] | None = None,
        *,
        size: int = 256,
        policy: Policy = "ring",
        margin: float = 0.5,
        trigger: Trigger = "violated",
        chunk: int | None = None,
        attach: bool = True,
    ) -> None:
        self.memory = EpisodicMemory(model, loss, size=size, policy=policy, margin=margin, chunk=chunk)
        super().__init__(optimizer, params, [self.memory], trigger=trigger, attach=attach)

    def observe(self, inputs: Tensor, targets: Tensor, task: int, mask: Tensor | None = None) -> None:
        """Keep samples of the task that is being learned now: see :meth:`EpisodicMemory.observe`."""
        self.memory.observe(inputs, targets, task, mask)
