"""Reference points in weight space and their effective window: the constraints of Direction Concentration Learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from congruency._validate import (
    check_choice,
    check_flag,
    check_floor,
    check_margin,
    check_parts,
    check_whole,
    differs,
    is_count,
    warn,
)  # fmt: skip
from congruency.backends.base import Basis
from congruency.constraints.base import ConstraintSource, ascent_sign
from congruency.distributed import is_sharded, like, local

if TYPE_CHECKING:
    from congruency.backends.triton import Clock

__all__ = ["DEFAULT_FLOOR", "Accumulate", "Mode", "References"]

Mode = Literal["concentrate", "anchor"]
Accumulate = Literal["weights", "gradients"]

DEFAULT_FLOOR = 0.3  # with `returning`, stable and harmless in all experiments: see docs/stability.md

_MOST_REFERENCES = 64


class References(ConstraintSource):
    """Constraints from the displacement since N reference points (``eqn:constraints`` and ``eqn:adapt_win``).

    With reference points ``r_1..r_N`` and ``d_i = w - r_i`` the accumulated gradient since ``r_i`` is ``-d_i``, up to
    the step size. The constraints are ``c_i = -d_i`` in mode ``"concentrate"`` (the paper's equations) and
    ``c_i = +d_i`` in mode ``"anchor"`` (the paper's published code).

    Time: t counts steps from 0. Recording starts at every t with ``t mod window == offset``, or only once, at
    ``t == offset``, without a window. The weights before each of the next N steps become ``r_1..r_N``. These steps are
    not corrected; the following ones are, until recording starts again.

    Memory: N tensors per parameter. With ``accumulate="weights"`` they are the r_i, exact copies in the dtype of the
    parameter. With ``accumulate="gradients"`` tensor k is the sum of the gradients used from r_k up to r_{k+1} (up to
    the current step for the last), in float32 at least. In both cases the accumulated gradients are suffix sums of N
    segments.

    Args:
        count: Number of reference points, N.
        window, offset, mode, margin, floor, returning, accumulate, capturable: See :class:`congruency.DCL`.

    Examples:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> references = congruency.References(window=10, floor=None)
        >>> corrector = congruency.Corrector(optimizer, constraints=[references])
        >>> for gradient in ([1.0, 0.0], [-1.0, 1.0]):  # the second turns back against the first step
        ...     weight.grad = torch.tensor(gradient)
        ...     optimizer.step()
        >>> weight.grad
        tensor([0., 1.])
        >>> references.step
        2
    """

    def __init__(
        self,
        count: int = 1,
        *,
        window: int | None = None,
        offset: int = 0,
        mode: Mode = "concentrate",
        margin: float = 0.0,
        floor: float | None = DEFAULT_FLOOR,
        returning: bool = True,
        accumulate: Accumulate = "weights",
        capturable: bool = False,
    ) -> None:
        self.count = check_whole("references", count, "a positive whole number", least=1)
        if count > _MOST_REFERENCES:
            raise ValueError(f"references must be at most {_MOST_REFERENCES}, got {count}")
        if window is not None:
            check_whole("window", window, "a positive whole number of steps or None", least=1)
        self.window = window
        self.offset = check_whole("offset", offset, "a non-negative number of steps", least=0)
        if self.window is not None and self.offset >= self.window:
            raise ValueError(f"offset must be below the window ({window}), got {offset}")
        self.mode: Mode = check_choice("mode", mode, get_args(Mode))
        self.accumulate: Accumulate = check_choice("accumulate", accumulate, get_args(Accumulate))
        self.margin = check_margin(margin)
        self.floor = check_floor(floor)
        if mode == "anchor":
            self._refuse_floor("mode 'anchor' has none; leave floor out, or use mode='concentrate'")
            self.floor = None
        self.returning = check_flag("returning", returning) and self.floor is not None
        self.concentrates, self.period = mode == "concentrate" and not margin, window
        self.sign = 1.0 if mode == "concentrate" else -1.0
        if self.window is not None and self.window <= count:
            warn(
                f"a window of {window} steps with {count} reference(s) never corrects anything: the first {count} "
                "steps of every window only record references; choose window > references"
            )
        suffix_sums = torch.ones(count, count, dtype=torch.float64).triu()
        # segments of weights are displacements, which point against the gradient; the others are sums of gradients
        self._combination = -suffix_sums if accumulate == "weights" else suffix_sums
        self.capturable = check_flag("capturable", capturable)
        self._slots: dict[Tensor, list[Tensor]] = {}
        self._bases: dict[Tensor, Basis] = {}
        self._complete: Sequence[Tensor] | None = None  # a list of parameters that all have slots
        self._layout = self._recorded = 0
        self._clock: Clock | None = None  # the step counter on the device, for CUDA graphs
        self.step = 0
        self._active = False

    @property
    def phase(self) -> int:
        """Number of steps since recording last started; negative before it first starts."""
        since = self.step - self.offset
        return since if self.window is None or since < 0 else since % self.window

    @property
    def capacity(self) -> int:
        return self.count

    @property
    def active(self) -> int:
        return self.count if self._active else 0

    @property
    def layout(self) -> tuple[int, int]:
        return id(self), self._layout

    @property
    def recorded(self) -> tuple[int, int] | None:
        return None if self.capturable else (id(self), self._recorded)  # only the device knows when it records

    def combination(self) -> Tensor:
        return self._ascent * self._combination

    def begin(self, parameters: Sequence[Tensor]) -> None:
        if self.phase == 0 and not self.capturable:
            self._drop_misfits(parameters)
        self._hold(parameters)
        if self.capturable:
            self._begin_on_device()
            return
        self._active = self.phase >= self.count
        if 0 <= self.phase < self.count:
            self._record(self.phase)

    def check_use(self, correct: str, blocks: str, optimizer: torch.optim.Optimizer) -> None:
        if self.capturable and blocks in ("row", "element"):
            raise ValueError(f"capturable=True has no blocks={blocks!r}; use 'joint', 'group' or 'tensor'")
        # if the optimizer maximizes, a step and a gradient have opposite signs
        mixed = (correct == "gradient") == (self.accumulate == "weights")
        self._ascent = ascent_sign(self, optimizer) if mixed else 1.0
        if blocks == "element":
            self._refuse_floor("the cosine of one element is 1 or -1; leave floor out, or use other blocks")
        if self.mode == "concentrate" and self.floor is None and correct == "gradient" and _has_momentum(optimizer):
            warn(
                "floor=None is the paper's form, which can diverge with momentum: the gradient that would bring the "
                "weights back is removed, while the momentum carries them further away; use the default floor, or an "
                "optimizer without momentum (docs/stability.md)"
            )

    def _refuse_floor(self, reason: str) -> None:
        """Raise ValueError if a floor other than the default was given; neither has an effect here."""
        if self.floor not in (None, DEFAULT_FLOOR):
            raise ValueError(f"floor={self.floor} has no effect: {reason}")

    def basis(self, parameter: Tensor) -> Basis:
        basis = self._bases.get(parameter)
        if basis is None:
            held = [local(slot) for slot in self._slots[parameter]]
            fixed = 0 if self.capturable else self.count - 1  # only the last segment changes in corrected steps
            weights = self.accumulate == "weights"
            basis = Basis([*held, local(parameter)], True, fixed) if weights else Basis(held, fixed=fixed)
            if not is_sharded(parameter):  # the local part of a sharded one is a new tensor each time
                self._bases[parameter] = basis
        return basis

    def finish(self, parameters: Sequence[Tensor], scale: Tensor | None, finite: Tensor | bool) -> None:
        if self.capturable:
            self._finish_on_device(parameters, scale, finite)
            return
        if self.accumulate == "gradients" and self.phase >= 0:
            segment = min(self.phase, self.count - 1)
            for parameter in parameters:
                _add_gradient(local(self._slots[parameter][segment]), parameter, scale, finite)
        self.step += 1

    def _begin_on_device(self) -> None:
        """Like :meth:`begin`, with the step counter on the device, where every replay of a CUDA graph reads it."""
        if self._clock is None:
            device, *others = {local(parameter).device: None for parameter in self._slots}
            if device.type != "cuda" or others:
                places = ", ".join(map(str, (device, *others)))
                raise RuntimeError(f"capturable=True is for parameters on one CUDA device, these are on {places}")
            from congruency.backends.triton import Clock

            self._clock = Clock.at(self.step, self.offset, self.window, self.count, device)
            self.gate = self._clock.gate
        self._active = True
        if self.accumulate == "weights":
            held = [[local(slot) for slot in slots] for slots in self._slots.values()]
            self._clock.tick([local(parameter) for parameter in self._slots], held)
        else:
            self._clock.tick()

    def _finish_on_device(self, parameters: Sequence[Tensor], scale: Tensor | None, finite: Tensor | bool) -> None:
        if self.accumulate == "gradients" and parameters:
            from congruency.backends import triton

            assert isinstance(finite, Tensor)
            assert self._clock is not None
            gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
            held = [[local(slot) for slot in self._slots[parameter]] for parameter in parameters]
            triton.accumulate(gradients, held, self._clock.phase, finite, scale)

    def _progress(self) -> str:
        return f"step {self.step if self._clock is None else int(self._clock.steps[0])}"

    def reset(self) -> None:
        """Forget the references and restart the step count at 0."""
        self._set_step(0)

    def _set_step(self, step: int) -> None:
        self.step = step
        self._active = False
        if self._clock is not None:
            self._clock.steps[0].fill_(step)  # in place, since captured CUDA graphs read this tensor

    def _record(self, i: int) -> None:
        self._recorded += 1
        held = [local(slots[i]) for slots in self._slots.values()]
        if not held:
            return
        if self.accumulate == "weights":
            torch._foreach_copy_(held, [local(parameter) for parameter in self._slots])
        else:
            torch._foreach_zero_(held)

    def _drop_misfits(self, parameters: Sequence[Tensor]) -> None:
        """Drop parameters that are gone, or whose dtype, device or shape has changed (``model.to``)."""
        there = set(parameters)
        for parameter, (first, *_) in list(self._slots.items()):
            alike = first.dtype is self._slot_dtype(parameter) and first.device == parameter.device
            if parameter not in there or not alike or first.shape != parameter.shape:  # _hold allocates new slots
                del self._slots[parameter]
                self._bases.pop(parameter, None)
                self._complete = None
                self._layout += 1

    def _hold(self, parameters: Sequence[Tensor]) -> None:
        """Allocate slots for parameters that train and have none.

        A parameter that joins late (``add_param_group``, or frozen until now) has not been moved by this optimizer, so
        all its references are its current weights.
        """
        if parameters is self._complete:
            return
        for parameter in parameters:
            if parameter not in self._slots and (parameter.requires_grad or parameter.grad is not None):
                self._slots[parameter] = self._room(parameter)
                self._layout += 1
                self._recorded += 1
        self._complete = parameters if all(parameter in self._slots for parameter in parameters) else None

    def _room(self, parameter: Tensor) -> list[Tensor]:
        if self.accumulate == "weights":
            return [parameter.detach().clone() for _ in range(self.count)]
        return [torch.zeros_like(parameter, dtype=self._slot_dtype(parameter)) for _ in range(self.count)]

    def _slot_dtype(self, parameter: Tensor) -> torch.dtype:
        if self.accumulate == "weights":
            return parameter.dtype
        return torch.promote_types(parameter.dtype, torch.float32)

    def settings(self) -> dict[str, Any]:
        return {
            "source": "references",
            "references": self.count,
            "window": self.window,
            "offset": self.offset,
            "mode": self.mode,
            "margin": self.margin,
            "floor": self.floor,
            "returning": self.returning,
            "accumulate": self.accumulate,
        }

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, Any]:
        # Allocate slots now: distributed checkpoints need the same structure at any time.
        self._hold(parameters)
        held = {str(i): list(self._slots[p]) for i, p in enumerate(parameters) if p in self._slots}
        step = self.step if self._clock is None else int(self._clock.steps[0])
        return {"step": step, "parameters": len(parameters), "slots": held}

    def check_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        parts = {"step": object, "parameters": object, "slots": Mapping}
        check_parts(state, parts, "a state of references")
        if not is_count(state["step"]):
            raise ValueError(f"the state's step must be a number of steps, got {state['step']!r:.60}")
        if differs(state["parameters"], len(parameters)):
            raise ValueError(
                f"the state is of {state['parameters']} parameters, here there are {len(parameters)}; "
                "build the corrector over the same parameters in the same order"
            )
        for i, saved in state["slots"].items():
            if i not in {str(place) for place in range(len(parameters))}:
                raise ValueError(f"the state holds references of parameter {i!r:.60}, there are {len(parameters)}")
            parameter = parameters[int(i)]
            expected_dtype = self._slot_dtype(parameter)
            if not isinstance(saved, list | tuple) or not all(isinstance(tensor, Tensor) for tensor in saved):
                raise ValueError(f"the state's references of parameter {i} must be a list of tensors")
            if len(saved) != self.count:
                raise ValueError(f"the state holds {len(saved)} references of parameter {i}, expected {self.count}")
            for tensor in saved:
                if tensor.shape != parameter.shape:
                    raise ValueError(
                        f"the state holds a reference of shape {tuple(tensor.shape)} "
                        f"for parameter {i}, which has shape {tuple(parameter.shape)}"
                    )
                if tensor.dtype != expected_dtype:
                    raise ValueError(
                        f"the state holds a reference in {tensor.dtype} for parameter {i}, expected {expected_dtype}"
                    )

    def load_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        self._slots.clear()
        self._bases.clear()
        self._complete = None
        self._layout += 1
        self._recorded += 1
        for i, tensors in state["slots"].items():
            slots = self._slots[parameters[int(i)]] = self._room(parameters[int(i)])
            for slot, tensor in zip(slots, tensors, strict=True):
                local(slot).copy_(local(like(tensor, slot)))
        self._set_step(int(state["step"]))


def _has_momentum(optimizer: torch.optim.Optimizer) -> bool:
    return any(group.get("momentum") or group.get("betas", (0.0,))[0] for group in optimizer.param_groups)


def _add_gradient(total: Tensor, parameter: Tensor, scale: Tensor | None, finite: Tensor | bool) -> None:
    assert parameter.grad is not None
    gradient = local(parameter.grad)
    if isinstance(finite, bool):
        if finite:
            total.add_(gradient, alpha=1.0 if scale is None else 1.0 / scale.item())
        return
    gradient = gradient.to(total.dtype)
    if scale is not None:
        gradient = gradient / scale.to(gradient.device)
    total.add_(torch.where(finite.to(gradient.device), gradient, 0.0))
