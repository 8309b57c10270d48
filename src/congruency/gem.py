"""The GEM corrector: Gradient Episodic Memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from congruency.constraints.memory import EpisodicMemory, Loss, Policy
from congruency.corrector import Corrector, Trigger

__all__ = ["GEM"]


class GEM(Corrector):
    """Gradient Episodic Memory (Lopez-Paz and Ranzato, NeurIPS 2017) inside every ``optimizer.step()``.

    To first order, no step raises the loss on the stored samples of past tasks. For GEM together with DCL (the paper's
    ``eqn:constraints_conn``) pass both sources to one :class:`~congruency.Corrector`.

    Args:
        optimizer: Any ``torch.optim`` optimizer except LBFGS and SparseAdam.
        params: The parameters to correct. Default: all parameters of the optimizer.
        model: The model being trained.
        loss: ``loss(outputs, targets)``, a scalar. Default: the mean cross entropy.
        size: Number of samples kept per task.
        policy: Which samples to keep: the last seen (``"ring"``) or the ``"first"``.
        margin: Lower bound of the multipliers, GEM's memory strength; GEM's authors used 0.5. A corrected step adds at
            least ``margin`` times the sum of all memory gradients, so large margins overshoot after many tasks.
        trigger: ``"violated"``, as in GEM, to change a gradient only if a memory gradient disagrees with it; or
            ``"always"``.
        chunk: Number of past tasks per batched call; use it if the gradients of all tasks at once need too much memory.
        attach: If False, call :meth:`correct` yourself before each ``optimizer.step()``.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> gem = congruency.GEM(optimizer, model=model, size=50)
        >>> losses = []
        >>> for task in range(2):
        ...     for step in range(30):
        ...         inputs = torch.randn(32, 8)
        ...         targets = (inputs[:, task] > 0).long()
        ...         gem.observe(inputs, targets, task)
        ...         loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        ...         optimizer.zero_grad()
        ...         loss.backward()
        ...         optimizer.step()
        ...         losses.append(loss.item())
        >>> losses[29] < losses[0] and losses[59] < losses[30]  # both tasks are learned
        True
        >>> gem.memory.past
        [0]
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Iterable[Tensor] | None = None,
        *,
        model: nn.Module,
        loss: Loss | None = None,
        size: int = 256,
        policy: Policy = "ring",
        margin: float = 0.5,
        trigger: Trigger = "violated",
        chunk: int | None = None,
        attach: bool = True,
    ) -> None:
        self.memory = EpisodicMemory(model, loss, size=size, policy=policy, margin=margin, chunk=chunk)
        super().__init__(optimizer, params, constraints=[self.memory], trigger=trigger, attach=attach)

    def observe(self, inputs: Tensor, targets: Tensor, task: int, mask: Tensor | None = None) -> None:
        """Store samples of the current task: see :meth:`EpisodicMemory.observe`."""
        self.memory.observe(inputs, targets, task, mask)

    def __repr__(self) -> str:
        m = self.memory
        past = f"{len(m.past)} past task{'' if len(m.past) == 1 else 's'}"
        return f"GEM(size={m.size}, policy={m.policy!r}, margin={m.margin}, {past}, {self._shown()})"
