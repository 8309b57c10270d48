"""The congruency and the magnitude of a run, accumulated step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from congruency.sharding import like, local, reduce_sum, reduction_groups
from congruency.sources import differs

__all__ = ["CongruencyMeter", "Measurement"]

Reference = Literal["start", "previous"]

# Elements worked on at a time: on the CPU what stays in a core's cache, on an accelerator few kernel launches for about
# 100 MB of temporary memory.
_HOST_BATCH = 2**16
_DEVICE_BATCH = 2**22


@dataclass(frozen=True)
class Measurement:
    """What a :class:`CongruencyMeter` has found since its last reset.

    Attributes:
        congruency: The mean of the steps' congruency over those where it is defined (``eqn:cong``); nan if none.
        magnitude: The mean distance of the weights from the reference (``eqn:mag``); nan if no step was measured.
        steps: The number of steps measured, those of the magnitude's mean.
    """

    congruency: float
    magnitude: float
    steps: int


class CongruencyMeter:
    """Measures how far each gradient agrees with the way come, and how far the weights have come.

    At step i, with weights ``w_i``, gradient ``g_i`` and ``d_i = w_i - r`` the way come since the reference r:

    - congruency ``nu_i = cos(g_i, -d_i)``, averaged over the steps (``eqn:cong`` in the paper);
    - magnitude ``|d_i|``, averaged over the steps (``eqn:mag``).

    With ``reference="start"`` r is ``w_1``, the weights at the first update; with ``"previous"`` it is ``w_{i-1}``, the
    weights at the update before.

        meter = congruency.CongruencyMeter(model.parameters())
        for epoch in range(epochs):
            for x, y in data:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                meter.update()
                optimizer.step()
            print(meter.compute())
            meter.reset()

    Which steps count: at the first update there is no way come yet. From the start, ``|w_1 - w_1| = 0`` is a term of
    the magnitude's mean (its sum begins at i = 1) while nu_1 is undefined and left out. Against the previous update,
    there is no ``w_0``, so the first update measures nothing. A step with a gradient that is not finite is as if
    ``update`` had not been called: a ``GradScaler`` takes no step then either. Steps where a norm is 0 have no
    congruency but do have a magnitude. A parameter without a gradient is left out of that step's g and d.

    The gradients are taken as they are at ``update()``. DCL corrects them inside ``optimizer.step()``, so the usual
    place measures them before the correction.

    Held in memory is one copy of the parameters, exact, in their own dtype. Differences and sums are in float64, over
    a bounded number of elements at a time, and stay on the device: only :meth:`compute` waits for it. Sharded
    parameters (DTensor) are measured in place; three numbers travel, and every process finds the same values, provided
    all of them call ``update()``.

    Args:
        params: The parameters to measure, in an order that a saved state can rely on.
        reference: ``"start"`` or ``"previous"``.
    """

    def __init__(self, params: Iterable[Tensor], reference: Reference = "start") -> None:
        if reference not in get_args(Reference):
            raise ValueError(f"reference must be 'start' or 'previous', got {reference!r}")
        self._params = _checked(params)
        self._kind: Reference = reference
        self._reference: list[Tensor] | None = None
        self._totals = self._no_totals()

    @torch.no_grad()
    def update(self) -> None:
        """Measure one step: call it after ``backward()`` and before ``optimizer.step()``."""
        if all(param.grad is None for param in self._params):
            raise RuntimeError("no parameter has a gradient: call update() after backward() and before step()")
        if self._reference is None:
            self._reference = [param.detach().clone() for param in self._params]
            if self._kind == "previous":
                return
        product, squared_gradient, squared_distance = self._sums(self._reference).unbind()
        finite = squared_gradient.isfinite() & squared_distance.isfinite()
        distance = squared_distance.sqrt()
        congruency = (-product / (squared_gradient.sqrt() * distance)).clamp(-1.0, 1.0)
        defined = finite & congruency.isfinite()
        step = [congruency.where(defined, 0.0), defined, distance.where(finite, 0.0), finite]
        self._totals = self._totals.to(product.device) + torch.stack([x.to(torch.float64) for x in step])
        if self._kind == "previous":
            for param, reference in zip(self._params, self._reference, strict=True):
                held = local(reference)
                torch.where(finite.to(held.device), local(param), held, out=held)

    def compute(self) -> Measurement:
        """The means over the steps since the last :meth:`reset`. Waits for the device; changes nothing."""
        congruency, defined, distance, steps = self._totals.tolist()
        return Measurement(
            congruency=congruency / defined if defined else math.nan,
            magnitude=distance / steps if steps else math.nan,
            steps=int(steps),
        )

    def reset(self, *, reference: bool = False) -> None:
        """Start the means over, as at the end of an epoch.

        The reference stays: the start of training remains the start, as ``w_1`` does in the paper's curves over
        epochs, and the previous update remains the previous one. With ``reference=True`` it is forgotten too, and the
        next update is the first again (at a task boundary, say).
        """
        self._totals = self._no_totals()
        if reference:
            self._reference = None

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on later, for ``torch.save``; as with optimizers, the tensors are not copied."""
        return {
            "reference": self._kind,
            "weights": None if self._reference is None else list(self._reference),
            "totals": self._totals,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`; a state that does not fit raises ValueError and changes nothing."""
        self._check_state(state)
        weights = state["weights"]
        if weights is None:
            self._reference = None
        else:
            self._reference = [_placed(saved, param) for saved, param in zip(weights, self._params, strict=True)]
        self._totals = self._no_totals().copy_(state["totals"])

    def _no_totals(self) -> Tensor:
        """Sum of congruencies, how many; sum of distances, how many."""
        return torch.zeros(4, dtype=torch.float64, device=local(self._params[0]).device)

    def _sums(self, references: list[Tensor]) -> Tensor:
        """<g, d>, |g|^2 and |d|^2 over all parameters that have a gradient, and over all processes."""
        alike: dict[tuple[Any, ...], list[tuple[Tensor, Tensor, Tensor]]] = {}
        for param, reference in zip(self._params, references, strict=True):
            if param.grad is not None:
                triple = (_local_gradient(param), local(param), local(reference))
                alike.setdefault((triple[0].device, reduction_groups(param)), []).append(triple)
        total = torch.zeros(3, dtype=torch.float64, device=local(self._params[0]).device)
        for (device, groups), triples in alike.items():
            sums = torch.zeros(3, dtype=torch.float64, device=device)
            for batch in _batches(triples, _HOST_BATCH if device.type == "cpu" else _DEVICE_BATCH):
                sums += _products(batch)
            total += reduce_sum(sums, groups).to(total.device)
        return total

    def _check_state(self, state: Mapping[str, Any]) -> None:
        expected = {"reference", "weights", "totals"}
        if not isinstance(state, Mapping):
            raise ValueError(f"the state of a meter must be a dict, got a {type(state).__name__}")
        if set(state) != expected:
            raise ValueError(f"the state must hold {sorted(expected)}, got {sorted(map(str, state))}")
        if differs(state["reference"], self._kind):
            raise ValueError(f"the state was measured from {state['reference']!r}, this meter measures {self._kind!r}")
        totals = state["totals"]
        if not isinstance(totals, Tensor) or totals.shape != self._totals.shape or totals.dtype != torch.float64:
            raise ValueError(f"the state's totals must be {len(self._totals)} numbers in a float64 tensor")
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
    """A copy of ``saved`` on the device, and in the shards, of ``param``."""
    copy = param.detach().clone()
    local(copy).copy_(local(like(saved, param)))
    return copy


def _local_gradient(param: Tensor) -> Tensor:
    assert param.grad is not None
    reduction_groups(param.grad)  # refuses a gradient that is still to be summed over processes
    gradient = local(param.grad)
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if gradient.shape != local(param).shape:
        raise ValueError(
            f"a parameter's shard has shape {tuple(local(param).shape)} and its gradient's {tuple(gradient.shape)}; "
            "both must be sharded alike"
        )
    return gradient


def _batches(triples: Iterable[tuple[Tensor, Tensor, Tensor]], size: int) -> Iterator[list[tuple[Tensor, ...]]]:
    """The tensors' elements in lists of pieces of at most ``size`` elements together.

    Large tensors are cut and small ones put together: bounded memory and few kernel launches, whatever the model.
    """
    batch: list[tuple[Tensor, ...]] = []
    room = size
    for triple in triples:
        for pieces in zip(*(torch.split(tensor.flatten(), size) for tensor in triple), strict=True):
            if pieces[0].numel() > room:
                yield batch
                batch, room = [], size
            batch.append(pieces)
            room -= pieces[0].numel()
    yield batch


def _products(batch: list[tuple[Tensor, ...]]) -> Tensor:
    """<g, d>, |g|^2 and |d|^2 of one batch of pieces (g, w, r), in float64; float32 squares stay in its range."""
    g, w, r = (torch.cat(pieces) for pieces in zip(*batch, strict=True))
    g = g.to(torch.float64)
    d = w.to(torch.float64).sub_(r)
    return torch.stack([g.dot(d), g.dot(g), d.dot(d)])
