"""The congruency and the magnitude of a run, accumulated step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from congruency._validate import are_strided, check_choice, differs
from congruency.backends import Basis, ParameterSlice, Passes, Problem, backend_for, kinds_of
from congruency.distributed import Groups, is_sharded, like, local, reduction_groups

__all__ = ["CongruencyMeter", "Measurement", "Reference"]

Reference = Literal["start", "previous"]


class SharedPass(Protocol):
    """The interface of a corrector whose pass a meter shares; see :class:`congruency.Corrector`."""

    def differs_from_start(self, params: Sequence[Tensor]) -> str | None: ...

    def measured(self) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclass(frozen=True)
class Measurement:
    """The measurement of a :class:`CongruencyMeter` since its last reset.

    Attributes:
        congruency: Mean congruency over the steps where it is defined (``eqn:cong``); nan if there are none.
        magnitude: Mean distance of the weights from the reference (``eqn:mag``); nan if no step was measured.
        steps: Number of measured steps, over which the magnitude is averaged.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> meter = congruency.CongruencyMeter([weight])
        >>> for _ in range(2):
        ...     weight.grad = torch.ones(1)
        ...     meter.update()
        ...     torch.optim.SGD([weight], lr=0.5).step()
        >>> meter.compute()
        Measurement(congruency=1.0, magnitude=0.25, steps=2)
    """

    congruency: float
    magnitude: float
    steps: int


class CongruencyMeter:
    """Measures how well gradients agree with the accumulated gradient, and how far the weights have moved.

    At step i, with weights ``w_i``, gradient ``g_i`` and ``d_i = w_i - r`` the displacement from the reference r:

    - congruency ``nu_i = cos(g_i, -d_i)``, averaged over the steps (``eqn:cong`` in the paper);
    - magnitude ``|d_i|``, averaged over the steps (``eqn:mag``).

    With ``reference="start"`` r is ``w_1``, the weights at the first update; with ``"previous"`` it is ``w_{i-1}``, the
    weights at the previous update.

    At the first update the weights have not moved. With ``reference="start"``, ``|w_1 - w_1| = 0`` counts in the mean
    magnitude, while nu_1 is undefined and excluded. With ``"previous"`` there is no ``w_0``, so nothing is measured. A
    step whose gradient is not finite is ignored, since a ``GradScaler`` skips that step too. A step in which a norm is
    0 has a magnitude but no congruency. A parameter without a gradient is excluded from g and d of that step.

    The meter does not know the optimizer: with ``maximize=True`` congruency has the opposite sign, except with
    ``beside``.

    The gradients are used as they are at ``update()``. DCL corrects them inside ``optimizer.step()``, so they are
    usually measured before the correction.

    A :class:`~congruency.DCL` on the same parameters computes the same numbers if its only reference is the start of
    training (``window=None``). With ``beside=dcl`` the meter takes them from DCL, accurate to about 1e-6, without
    reading parameters or holding a copy of them. In that case call ``update()`` after ``optimizer.step()``.

    Memory: one exact copy of the parameters, in their dtype. Differences and sums are computed in float64 (the gram
    pass of :mod:`congruency.backends`) and stay on the device; only :meth:`compute` waits for it.
    Sharded parameters (DTensor) are measured in place. Only four numbers are communicated, and every process gets the
    same values, provided that all of them call ``update()``.

    Args:
        params: The parameters to measure; keep their order to load a saved state.
        reference: ``"start"`` or ``"previous"``.
        beside: A corrector whose pass is shared, see above.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> meter = congruency.CongruencyMeter(model.parameters())
        >>> losses = []
        >>> for step in range(50):
        ...     inputs = torch.randn(32, 8)
        ...     loss = (model(inputs) - inputs[:, :2]).square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     meter.update()  # after backward(), before step()
        ...     optimizer.step()
        ...     losses.append(loss.item())
        >>> losses[-1] < losses[0]
        True
        >>> meter.compute().congruency > 0  # gradients mostly point where the weights have gone
        True
        >>> meter
        CongruencyMeter(2 parameters, reference='start', 50 steps)
    """

    def __init__(
        self, params: Iterable[Tensor], reference: Reference = "start", *, beside: SharedPass | None = None
    ) -> None:
        self._kind: Reference = check_choice("reference", reference, get_args(Reference))
        self._params = _checked(params)
        self._sharded = any(map(is_sharded, self._params))
        self._beside = beside
        if beside is not None:
            self._check_beside(beside)
        self._reference: list[Tensor] | None = None
        self._held: tuple[tuple[object, ...], Passes] | None = None
        self._gram: Tensor | None = None
        self._problems: dict[torch.device, Problem] = {}
        self._reuse: dict[object, object] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Measure one step: call it after ``backward()`` and before ``optimizer.step()`` (after, with ``beside``).

        If gradients are accumulated over several backward passes, call it once, after the last one.
        """
        if self._beside is not None:
            norm2, product, length2 = self._beside.measured()
            if self._gram is None or self._gram.device != norm2.device:
                self._gram = norm2.new_empty(4)
            self._add(torch.stack([norm2, -product, -product, length2], out=self._gram).view(1, 2, 2))
            return
        used = [param for param in self._params if param.grad is not None]
        if not used:
            raise RuntimeError("no parameter has a gradient: call update() after backward() and before step()")
        if self._reference is None:
            self._reference = [param.detach().clone() for param in self._params]
            if self._kind == "previous":
                return
        finite = self._add(self._passes(used, self._reference).gram(wide=True))
        if self._kind == "previous":
            for param, reference in zip(self._params, self._reference, strict=True):
                held = local(reference)
                torch.where(finite.to(held.device), local(param), held, out=held)

    def _add(self, gram: Tensor) -> Tensor:
        """Add one step from the inner products of gradient and displacement, (1, 2, 2); return whether they are finite.

        The backend's solve accumulates the measures, so a problem is solved whose correction is not applied.
        """
        problem = self._problem(gram.device)
        return backend_for(gram.device.type).solve(gram, problem, None, self._reuse).finite

    def _problem(self, device: torch.device) -> Problem:
        """Return a problem with one constraint, the accumulated gradient, that sums congruency and magnitude."""
        if device not in self._problems:
            one = torch.ones(1, dtype=torch.float64, device=device)
            sums = torch.zeros(2, 4, dtype=torch.float64, device=device)
            self._problems[device] = Problem(-one.view(1, 1), one, 0 * one, only_violated=False, means=sums)
        return self._problems[device]

    @property
    def _totals(self) -> Tensor:
        """Sum and number of congruencies, sum and number of distances, (4,)."""
        device = local(self._params[0]).device
        found = [problem.means.to(device) for problem in self._problems.values() if problem.means is not None]
        sums = torch.stack(found).sum(0) if found else torch.zeros(2, 4, dtype=torch.float64, device=device)
        return sums[:, ::2].T.reshape(4)

    def compute(self) -> Measurement:
        """Return the means over the steps since the last :meth:`reset`. Waits for the device; changes no state."""
        congruency, defined, distance, steps = self._totals.tolist()
        return Measurement(
            congruency=congruency / defined if defined else math.nan,
            magnitude=distance / steps if steps else math.nan,
            steps=int(steps),
        )

    def reset(self, *, reference: bool = False) -> None:
        """Restart the means, for example at the end of an epoch.

        The reference is kept: the start of training remains the start, as ``w_1`` in the paper's curves over epochs,
        and the previous update remains the previous one. With ``reference=True`` it is dropped too, and the next update
        is a first update, for example when a new task begins.
        """
        self._problems.clear()
        if reference:
            self._reference = self._held = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume, for ``torch.save``. As with optimizers, tensors are not copied."""
        return {
            "reference": self._kind,
            "weights": None if self._reference is None else list(self._reference),
            "totals": self._totals,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`. A state that does not match raises ValueError without changes."""
        self._check_state(state)
        self._held = None
        weights = state["weights"]
        if weights is None:
            self._reference = None
        else:
            self._reference = [_placed(saved, param) for saved, param in zip(weights, self._params, strict=True)]
        self._problems.clear()
        sums = self._problem(local(self._params[0]).device).means
        assert sums is not None
        sums[:, ::2] = state["totals"].view(2, 2).T

    def __repr__(self) -> str:
        steps = int(self._totals[3])  # waits for the device
        return f"CongruencyMeter({len(self._params)} parameters, reference={self._kind!r}, {steps} steps)"

    def _passes(self, used: list[Tensor], references: list[Tensor]) -> Passes:
        """Return the backend passes over gradients and weights; reused if their memory layout has not changed."""
        gradients, weights = [gradient for param in used if (gradient := param.grad) is not None], used
        if self._sharded:
            gradients, weights = [local(gradient) for gradient in gradients], [local(param) for param in used]
        if not are_strided(gradients):
            return Passes(self._slices(references), 1)
        key = (
            id(references), torch.get_num_threads(), *map(Tensor.data_ptr, weights), *kinds_of(gradients, weights),
            *(() if len(used) == len(self._params) else map(id, used)),
        )  # fmt: skip
        held = self._held
        if held is not None and held[0] == key and held[1].point(tuple(map(Tensor.data_ptr, gradients))):
            return held[1]
        passes = Passes(self._slices(references), 1)
        if passes.reusable:
            passes.release()
            self._held = (key, passes)
        return passes

    def _check_beside(self, corrector: SharedPass) -> None:
        if self._kind != "start":
            raise ValueError(f"beside= shares the pass of reference='start', this meter's is {self._kind!r}")
        reason = corrector.differs_from_start(self._params)
        if reason:
            raise ValueError(
                "beside= needs a DCL with one reference, window=None and offset=0 on the gradients of the meter's "
                f"parameters: {reason}; omit beside= to let the meter make its own pass"
            )

    def _slices(self, references: list[Tensor]) -> Iterator[tuple[ParameterSlice, Groups]]:
        """Yield every gradient with its parameter's displacement as basis vector."""
        for param, reference in zip(self._params, references, strict=True):
            if param.grad is not None:
                displacement = Basis([local(reference), local(param)], chained=True)
                yield ParameterSlice(_local_gradient(param), [displacement], 0), reduction_groups(param)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        expected = {"reference", "weights", "totals"}
        if not isinstance(state, Mapping):
            raise ValueError(f"the state of a meter must be a dict, got a {type(state).__name__}")
        if set(state) != expected:
            raise ValueError(f"the state must hold {sorted(expected)}, got {sorted(map(str, state))}")
        if differs(state["reference"], self._kind):
            raise ValueError(f"the state was measured from {state['reference']!r}, this meter measures {self._kind!r}")
        totals = state["totals"]
        if not isinstance(totals, Tensor) or totals.shape != (4,) or totals.dtype != torch.float64:
            raise ValueError("the state's totals must be 4 numbers in a float64 tensor")
        weights = state["weights"]
        if weights is None:
            return
        if not isinstance(weights, list | tuple) or not all(isinstance(saved, Tensor) for saved in weights):
            raise ValueError("the state's weights must be a list of tensors, or None")
        if len(weights) != len(self._params):
            raise ValueError(
                f"the state holds {len(weights)} parameters, here there are {len(self._params)}; "
                "build the meter over the same parameters in the same order"
            )
        for i, (saved, param) in enumerate(zip(weights, self._params, strict=True)):
            if saved.shape != param.shape or saved.dtype != param.dtype:
                raise ValueError(
                    f"the state holds {saved.dtype} of shape {tuple(saved.shape)} "
                    f"for parameter {i}, {param.dtype} of shape {tuple(param.shape)}"
                )


def _checked(params: Iterable[Tensor]) -> list[Tensor]:
    if isinstance(params, torch.nn.Module):
        raise TypeError(f"params must be parameters, got the {type(params).__name__} itself; pass model.parameters()")
    if not hasattr(params, "__iter__"):
        raise TypeError(f"params must be parameters, as model.parameters() gives them, got {type(params).__name__}")
    listed = [params] if isinstance(params, Tensor) else list(params)
    for param in listed:
        if not isinstance(param, Tensor):
            raise TypeError(f"params must be parameters, as model.parameters() gives them, got {type(param).__name__}")
        if not param.is_floating_point():
            raise TypeError(f"params must be real floating-point tensors, got {param.dtype}")
    if not listed:
        raise ValueError("params is empty: give at least one parameter")
    return list(dict.fromkeys(listed))  # a tied parameter counts once


def _placed(saved: Tensor, param: Tensor) -> Tensor:
    """Copy ``saved`` to the device and the shards of ``param``."""
    copy = param.detach().clone()
    local(copy).copy_(local(like(saved, param)))
    return copy


def _local_gradient(param: Tensor) -> Tensor:
    assert param.grad is not None
    reduction_groups(param.grad)  # raises for a gradient that is not yet summed over processes
    gradient = local(param.grad)
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if gradient.shape != local(param).shape:
        raise ValueError(
            f"a parameter's shard has shape {tuple(local(param).shape)} and its gradient's {tuple(gradient.shape)}; "
            "both must be sharded alike"
        )
    return gradient
