"""What the corrector asks of a source of constraint rows, and the simplest source: directions given by hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from congruency.kernels.rows import Strand
from congruency.sharding import local

__all__ = ["Directions", "Source", "check_parts", "differs", "is_count"]


class Source(ABC):
    """Rows ``c_1..c_n`` of constraints ``<c_i, x> >= 0`` over the parameters of a corrector.

    A source holds, for every parameter, m basis vectors (:meth:`strand`). Its *accumulated gradients* are
    ``a = combination @ b``, what congruency is measured against, and its rows are ``c_i = sign * a_i``.

    A step goes: :meth:`begin` (before the gradient is corrected), then, if :attr:`rows` is positive, :meth:`strand`
    for every parameter with a gradient, then :meth:`finish`.
    """

    margin: float = 0.0
    sign: float = 1.0
    gate: Tensor | None = None
    """() bool on the device: whether the rows count in this step, where only the device knows (CUDA graphs)."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """How many rows there are when all of them are there."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows constrain the step that has begun: all (:attr:`capacity`) or none (0)."""

    @abstractmethod
    def combination(self) -> Tensor:
        """(rows, m) in float64 on the CPU: accumulated gradients from basis vectors."""

    @abstractmethod
    def strand(self, parameter: Tensor) -> Strand:
        """The basis vectors of one parameter: m of them, each of the parameter's local shape."""

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Take note that a step over ``parameters`` begins; the weights are those before the step."""

    def finish(self, parameters: Sequence[Tensor], scale: Tensor | None, finite: Tensor | bool) -> None:
        """Take note of the gradients the optimizer is about to use.

        Args:
            parameters: Those that have a gradient.
            scale: What the gradients are still multiplied by (``GradScaler``), or None.
            finite: Whether this step's gradient is finite; a tensor on an accelerator.
        """

    def reset(self) -> None:
        """Forget what was gathered, as if newly made."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What a saved state must agree on."""

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, Any]:
        """What is needed to go on later; tensors are not copied."""
        return {}

    def check_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        """Raise ValueError if :meth:`load_state_dict` could not take ``state``; change nothing."""

    def load_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        """Go on from ``state``, which has been checked."""


class Directions(Source):
    """Directions the update must not turn against, given by hand: other tasks' gradients, for example.

    Rows are ``c_i = directions[i]``, so the corrected gradient has ``<c_i, x> >= 0``: GEM's constraint when each
    direction is the gradient of a past task's loss (the paper's section 4.6).

        directions = congruency.Directions(margin=0.5)
        corrector = congruency.Corrector(optimizer, constraints=[directions])
        ...
        directions.set([torch.autograd.grad(past_loss, params) for past_loss in past_losses], params)
        loss.backward(); optimizer.step()
    """

    def __init__(self, margin: float = 0.0) -> None:
        self.margin = check_margin(margin)
        self._count = 0
        self._directions: dict[Tensor, tuple[Tensor, ...]] = {}

    def set(self, directions: Sequence[Sequence[Tensor | None]], parameters: Sequence[Tensor]) -> None:
        """Constrain the steps from now on by these directions; an empty sequence lifts all constraints.

        Args:
            directions: One sequence of tensors for each direction, in the order of ``parameters``; None stands for
                zeros (``torch.autograd.grad(..., allow_unused=True)``).
            parameters: The parameters the directions belong to. Others of the corrector's count as zero.
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

    @property
    def capacity(self) -> int:
        return self._count

    @property
    def rows(self) -> int:
        return self._count

    def combination(self) -> Tensor:
        return torch.eye(self._count, dtype=torch.float64)

    def strand(self, parameter: Tensor) -> Strand:
        if parameter not in self._directions:
            zeros = torch.zeros_like(local(parameter))
            return Strand([zeros] * self._count, chained=False)
        return Strand([local(direction) for direction in self._directions[parameter]], chained=False)

    def reset(self) -> None:
        self._count, self._directions = 0, {}

    def settings(self) -> dict[str, Any]:
        return {"source": "directions", "margin": self.margin}


def check_parts(state: Any, parts: Mapping[str, type | tuple[type, ...]], what: str) -> None:
    """Raise ValueError unless a saved state is a dict that has these parts, of these types."""
    if not isinstance(state, Mapping):
        raise ValueError(f"this is not {what}: it must be a dict, got a {type(state).__name__}")
    missing = [name for name in parts if name not in state]
    if missing:
        raise ValueError(f"this is not {what}: it has no {', '.join(sorted(missing))}")
    for name, kinds in parts.items():
        if not isinstance(state[name], kinds):
            raise ValueError(f"this is not {what}: its {name} cannot be a {type(state[name]).__name__}")


def is_count(value: Any) -> bool:
    """Whether a saved value is a number of steps: whole, not negative, and within 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def differs(saved: Any, here: Any) -> bool:
    """Whether a saved setting is another one than that here; a tensor, which is no setting, has no one truth value."""
    return isinstance(saved, Tensor) or bool(saved != here)


def check_margin(margin: float) -> float:
    """A margin, if it is one."""
    if isinstance(margin, bool) or not isinstance(margin, (int, float)):
        raise TypeError(f"margin must be a number, got {margin!r}")
    if not 0.0 <= margin < float("inf"):
        raise ValueError(f"margin must be finite and at least 0, got {margin}")
    return float(margin)
