"""L2-SP, a penalty for fine-tuning that pulls the weights toward their initial values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from congruency.distributed import full, like
from congruency.modules import head


class L2SP:
    """L2-SP (Li, Grandvalet and Davoine, 2018) inside every ``optimizer.step()``, instead of weight decay.

    The loss becomes ``loss + strength / 2 |w - w_0|^2 + head_strength / 2 |v|^2``, with w the weights below the last
    layer, w_0 their values at construction (the pretrained ones), and v the weights of the new last layer. The
    penalty's gradient is added before the step, so an adaptive optimizer scales it with the rest. DCL in mode
    ``"anchor"`` with a margin of ``strength`` and one reference at w_0 adds at least ``strength (w - w_0)``, and more
    if the gradient leads away from w_0.

    Args:
        model: The network, at its initial weights.
        optimizer: The optimizer; its weight decay is set to 0.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, strength: float, head_strength: float
    ) -> None:
        last = {id(parameter) for parameter in head(model).parameters()}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._head = [parameter for parameter in trained if id(parameter) in last]
        self._body = [parameter for parameter in trained if id(parameter) not in last]
        self._start = [parameter.detach().clone() for parameter in self._body]
        self._strength, self._head_strength = strength, head_strength
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        optimizer.register_step_pre_hook(lambda *_: self._add())

    @torch.no_grad()
    def _add(self) -> None:
        body = [(p.grad, p, start) for p, start in zip(self._body, self._start, strict=True) if p.grad is not None]
        if body:
            gradients, weights, starts = (list(column) for column in zip(*body, strict=True))
            torch._foreach_add_(gradients, torch._foreach_sub(weights, starts), alpha=self._strength)
        for parameter in self._head:
            if parameter.grad is not None:
                parameter.grad.add_(parameter, alpha=self._head_strength)

    def state_dict(self) -> dict[str, Any]:
        """Return the initial weights as full tensors (a collective call if they are sharded)."""
        return {"start": [full(start) for start in self._start]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        saved: list[Tensor] = state["start"]
        self._start = [like(start.to(own.device), own) for start, own in zip(saved, self._body, strict=True)]
