"""The present gradient as a constraint: an update must not go uphill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from congruency.backends.base import Basis
from congruency.constraints.base import ConstraintSource
from congruency.distributed import local

__all__ = ["Descent"]


class Descent(ConstraintSource):
    """The constraint ``c = g`` on an update: what the optimizer subtracts must agree with the present gradient.

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
    layout: str | None = "the gradient"

    def __init__(self) -> None:
        self._altered = False  # whether the optimizer's step writes to the gradients
        self._copies: dict[Tensor, tuple[Tensor, int, Tensor]] = {}  # gradient, its version, what it was

    def check_use(self, correct: str, blocks: str, optimizer: torch.optim.Optimizer) -> None:
        if correct != "update":
            raise ValueError(
                "Descent() constrains updates by the present gradient, and a gradient always agrees with itself; pass "
                "correct='update'"
            )
        maximize = {bool(group.get("maximize", False)) for group in optimizer.param_groups}
        if len(maximize) > 1:
            raise ValueError("Descent() needs all parameter groups to minimize or all to maximize; use two optimizers")
        self.sign = -1.0 if maximize == {True} else 1.0
        self._altered = any(map(_writes_to_gradients, optimizer.param_groups))
        if self._altered:
            self.layout = None  # the copies lie elsewhere at every step

    def begin(self, parameters: Sequence[Tensor]) -> None:
        if self._altered:
            given = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
            self._copies = {p: (gradient, gradient._version, local(gradient).clone()) for p, gradient in given}

    def combination(self) -> Tensor:
        return torch.ones(1, 1, dtype=torch.float64)

    def basis(self, parameter: Tensor) -> Basis:
        assert parameter.grad is not None
        if not self._altered:
            return Basis([local(parameter.grad)])
        gradient, version, copy = self._copies.get(parameter, (None, 0, None))
        if copy is None or gradient is not parameter.grad or parameter.grad._version > version + 1:
            raise RuntimeError(
                "SGD(nesterov=True) with foreach overwrites the gradients, and those of a closure are not known before "
                "that; pass foreach=False to the optimizer"
            )
        return Basis([copy])

    def finish(self, parameters: Sequence[Tensor], scale: Tensor | None, finite: Tensor | bool) -> None:
        self._copies = {}

    def settings(self) -> dict[str, Any]:
        return {"source": "descent"}


def _writes_to_gradients(group: dict[str, Any]) -> bool:
    """Whether torch's SGD adds Nesterov's momentum to the gradients in place: its foreach form does."""
    foreach = group.get("foreach")
    if foreach is None:  # torch's own choice
        foreach = any(parameter.device.type != "cpu" for parameter in group["params"])
    return bool(group.get("nesterov") and foreach and not group.get("fused"))
