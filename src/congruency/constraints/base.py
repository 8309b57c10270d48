"""The base class of constraint sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from congruency.backends.base import Basis

__all__ = ["ConstraintSource", "ascent_sign", "check_sources"]


class ConstraintSource(ABC):
    """Constraints ``<c_i, x> >= 0``, i = 1..n, on the corrected gradient x of a corrector's parameters.

    A source holds n basis vectors for every parameter (:meth:`basis`). Its *accumulated gradients*, which congruency is
    measured against, are ``a = combination @ b``, and its constraints are ``c_i = sign * a_i``.

    A step calls :meth:`begin` (before the gradient is corrected), then, if :attr:`active` is positive, :meth:`basis`
    for every parameter with a gradient, then :meth:`finish`.

    Attributes:
        margin: Lower bound of the constraints' multipliers.
        sign: +1 or -1, see above.
        floor: Constraint i applies only in steps with ``cos(c_i, y) >= -floor``; None: in all steps.
        returning: Constraint i applies only if ``|a_i|`` did not grow in the previous step. If that is unknown (in the
            first step that it constrains, or after a step that was not finite or had other gradients) it does not
            apply. Only together with a floor.
        needs_update: Whether the source can only constrain updates.
        concentrates: Whether it removes what points back along the displacement of the weights. If so, a corrector that
            changes nearly every step gives a warning.
        period: Number of steps after which its constraints are renewed, or None.
        gate: A bool tensor of shape () on the device, whether the constraints apply in this step, if only the device
            knows (CUDA graphs); otherwise None.

    Examples:
        >>> class WeightDecay(congruency.ConstraintSource):  # no step may grow the weights
        ...     capacity = active = 1
        ...     def combination(self):
        ...         return torch.ones(1, 1, dtype=torch.float64)
        ...     def basis(self, parameter):
        ...         return congruency.Basis([parameter.detach()])
        ...     def settings(self):
        ...         return {"source": "weight decay"}
        >>> weight = torch.nn.Parameter(torch.tensor([2.0, 0.0]))
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> corrector = congruency.Corrector(optimizer, constraints=[WeightDecay()])
        >>> weight.grad = torch.tensor([-1.0, 1.0])
        >>> optimizer.step()
        >>> weight.tolist()
        [2.0, -0.5]
    """

    margin: float = 0.0
    sign: float = 1.0
    floor: float | None = None
    returning: bool = False
    needs_update: bool = False
    concentrates: bool = False
    period: int | None = None
    gate: Tensor | None = None
    _ascent = 1.0  # the result of ascent_sign, for sources that need it

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Maximum number of constraints."""

    @property
    @abstractmethod
    def active(self) -> int:
        """Number of constraints on the current step: all (:attr:`capacity`) or none (0)."""

    @property
    def layout(self) -> object | None:
        """A value that stays equal while basis tensors keep their addresses and :meth:`combination` its values.

        The gradient's address may change. Pointer tables and the like are reused while the value stays equal. None:
        unknown, reuse nothing.
        """
        return None

    @property
    def recorded(self) -> object | None:
        """A value that stays equal while the first :attr:`Basis.fixed` vectors of every basis do not change.

        Their inner products are computed only when it changes. None: unknown, no vector is fixed.
        """
        return None

    @abstractmethod
    def combination(self) -> Tensor:
        """The matrix from basis vectors to accumulated gradients, (active, active) float64 on the CPU."""

    @abstractmethod
    def basis(self, parameter: Tensor) -> Basis:
        """The basis vectors of one parameter, as many as :attr:`active`, each of the parameter's local shape."""

    def check_use(self, correct: str, blocks: str, optimizer: torch.optim.Optimizer) -> None:
        """Raise ValueError if the source cannot constrain what the corrector corrects."""
        if self.needs_update and correct != "update":
            raise ValueError(f"{type(self).__name__} constrains updates; pass correct='update'")

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Prepare a step over ``parameters``; called before the correction, with the weights before the step."""

    def finish(self, parameters: Sequence[Tensor], scale: Tensor | None, finite: Tensor | bool) -> None:
        """Process the gradients that the optimizer is about to use; called after the correction.

        Args:
            parameters: The parameters that have a gradient.
            scale: The loss scale that the gradients still carry (``GradScaler``), or None.
            finite: Whether this step's gradient is finite; a tensor on an accelerator.
        """

    def reset(self) -> None:
        """Return to the initial state."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that must equal those of a saved state."""

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, Any]:
        """The state needed to resume; tensors are not copied."""
        return {}

    def check_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        """Raise ValueError if :meth:`load_state_dict` cannot load ``state``; change nothing."""

    def load_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        """Resume from ``state``, which has been checked."""

    def __repr__(self) -> str:
        settings = {name: value for name, value in self.settings().items() if name != "source"}
        shown = [*(f"{name}={value!r}" for name, value in settings.items()), self._progress()]
        return f"{type(self).__name__}({', '.join(part for part in shown if part)})"

    def _progress(self) -> str:
        """What ``repr`` shows besides the settings."""
        return ""


def ascent_sign(source: ConstraintSource, optimizer: torch.optim.Optimizer) -> float:
    """Return -1 if the optimizer maximizes, so that updates have the opposite sign of the gradient; else 1."""
    maximize = {bool(group.get("maximize", False)) for group in optimizer.param_groups}
    if len(maximize) > 1:
        raise ValueError(
            f"{type(source).__name__} needs all parameter groups to minimize or all to maximize; use two optimizers"
        )
    return -1.0 if maximize == {True} else 1.0


def check_sources(constraints: Iterable[ConstraintSource]) -> list[ConstraintSource]:
    """Validate and return the sources of a corrector."""
    if isinstance(constraints, ConstraintSource):
        raise TypeError("constraints must be an iterable of constraint sources; pass [source]")
    sources = list(constraints)
    if not sources:
        raise ValueError("constraints is empty; pass at least one constraint source, e.g. congruency.References()")
    for source in sources:
        if not isinstance(source, ConstraintSource):
            raise TypeError(
                "constraints must hold congruency.ConstraintSource objects, such as congruency.References(), got "
                f"{source!r:.60}"
            )
    return sources
