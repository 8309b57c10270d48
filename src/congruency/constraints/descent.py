"""The current gradient as a constraint on updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from congruency._validate import warn
from congruency.backends.base import Basis
from congruency.constraints.base import ConstraintSource, ascent_sign
from congruency.distributed import local

__all__ = ["Descent"]


class Descent(ConstraintSource):
    """The constraint ``c = g`` on an update: what the optimizer subtracts must agree with the current gradient.

    Momentum and preconditioning can turn an update against the gradient of this step's own loss. With one-element
    blocks the projection keeps the elements that agree, as Cautious optimizers do: see :class:`congruency.Cautious`.

    Only for ``correct="update"``: a gradient always agrees with itself.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
        >>> corrector = congruency.Corrector(
        ...     optimizer, constraints=[congruency.Descent()], correct="update", blocks="element"
        ... )
        >>> for gradient in ([4.0, 1.0], [-1.0, 1.0]):  # momentum 4 * 0.5 outweighs -1 in the second step
        ...     weight.grad = torch.tensor(gradient)
        ...     optimizer.step()
        >>> weight.tolist()  # the first element stays where it was, the second moves by 1.5
        [-4.0, -2.5]
    """

    needs_update = True
    capacity = active = 1
    layout = "the gradient"

    def check_use(self, correct: str, blocks: str, optimizer: torch.optim.Optimizer) -> None:
        if correct != "update":
            raise ValueError(
                "Descent() constrains updates by the present gradient, and a gradient always agrees with itself; pass "
                "correct='update'"
            )
        self._ascent = ascent_sign(self, optimizer)
        if all(_steps_along_the_gradient(optimizer, group) for group in optimizer.param_groups):
            warn(
                "SGD without momentum and weight decay steps along the gradient itself, so no part of an update "
                "disagrees with it and nothing will be corrected; use an optimizer with momentum, such as "
                "SGD(momentum=0.9) or AdamW"
            )

    def combination(self) -> Tensor:
        return torch.full((1, 1), self._ascent, dtype=torch.float64)

    def basis(self, parameter: Tensor) -> Basis:
        assert parameter.grad is not None
        return Basis([local(parameter.grad)])

    def settings(self) -> dict[str, Any]:
        return {"source": "descent"}


def _steps_along_the_gradient(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    return type(optimizer) is torch.optim.SGD and not group["momentum"] and not group["weight_decay"]
