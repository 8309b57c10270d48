"""Constraints set by the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from congruency._validate import check_margin
from congruency.backends.base import Basis
from congruency.constraints.base import ConstraintSource, ascent_sign
from congruency.distributed import local

__all__ = ["Directions"]


class Directions(ConstraintSource):
    """Directions that you set and that the corrected gradient must not oppose, such as the gradients of other tasks.

    Constraints are ``c_i = directions[i]``, so the corrected gradient has ``<c_i, x> >= 0``. This is GEM's constraint
    if each direction is the gradient of a past task's loss (the paper's section 4.6). If updates of an optimizer with
    ``maximize=True`` are corrected, the sign of the directions is reversed, like that of the updates.

    Args:
        margin: Lower bound of the multipliers.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> directions = congruency.Directions()
        >>> corrector = congruency.Corrector(optimizer, constraints=[directions])
        >>> directions.set([[torch.tensor([1.0, 0.0])]], [weight])  # the gradient of another loss, say
        >>> weight.grad = torch.tensor([-3.0, 1.0])
        >>> optimizer.step()
        >>> weight.grad
        tensor([0., 1.])
        >>> directions
        Directions(margin=0.0, 1 direction)
    """

    def __init__(self, margin: float = 0.0) -> None:
        self.margin = check_margin(margin)
        self._count = 0
        self._directions: dict[Tensor, tuple[Tensor, ...]] = {}

    def set(self, directions: Sequence[Sequence[Tensor | None]], parameters: Sequence[Tensor]) -> None:
        """Set the directions that constrain all following steps; an empty sequence removes the constraints.

        Args:
            directions: One sequence of tensors per direction, in the order of ``parameters``; None stands for
                zeros (``torch.autograd.grad(..., allow_unused=True)``).
            parameters: The parameters of the directions. For other parameters of the corrector directions are 0.
        """
        parameters = list(parameters)
        for i, direction in enumerate(directions):
            if len(direction) != len(parameters):
                raise ValueError(
                    f"direction {i} has {len(direction)} tensors for {len(parameters)} parameters; give one for each"
                )
            for part, parameter in zip(direction, parameters, strict=True):
                if part is not None and part.shape != parameter.shape:
                    raise ValueError(
                        f"direction {i} has a tensor of shape {tuple(part.shape)} "
                        f"for a parameter of shape {tuple(parameter.shape)}"
                    )
        self._count = len(directions)
        self._directions = {
            parameter: tuple(
                torch.zeros_like(parameter) if direction[j] is None else direction[j].detach()  # type: ignore[union-attr]
                for direction in directions
            )
            for j, parameter in enumerate(parameters)
        }

    def check_use(self, correct: str, blocks: str, optimizer: torch.optim.Optimizer) -> None:
        # if the optimizer maximizes, updates have the opposite sign of the gradient
        self._ascent = ascent_sign(self, optimizer) if correct == "update" else 1.0

    @property
    def capacity(self) -> int:
        return self._count

    @property
    def active(self) -> int:
        return self._count

    def combination(self) -> Tensor:
        return self._ascent * torch.eye(self._count, dtype=torch.float64)

    def basis(self, parameter: Tensor) -> Basis:
        if parameter not in self._directions:
            return Basis([torch.zeros_like(local(parameter))] * self._count)
        return Basis([local(direction) for direction in self._directions[parameter]])

    def reset(self) -> None:
        self._count, self._directions = 0, {}

    def settings(self) -> dict[str, Any]:
        return {"source": "directions", "margin": self.margin}

    def _progress(self) -> str:
        return f"{self._count} direction{'' if self._count == 1 else 's'}"
