"""Congruency and magnitude of every step, before and after the correction, without waiting for the device.

:class:`congruency.CongruencyMeter` returns means for one reference; a run records each step's measures for two
references and two gradients. All of them are functions of the inner products of four vectors. During training only
these products are computed, by the backends' gram pass; the host derives the measures later, for many steps at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from congruency.backends import Basis, ParameterSlice, Passes
from congruency.distributed import Groups, full, like, local, reduction_groups


class StepMeter:
    """Measures congruency and magnitude at every optimizer step, through the optimizer's hooks.

    Hooks run in the order of registration: call :meth:`watch_before`, attach the correction, call :meth:`watch_after`.
    The measures are those of :class:`congruency.CongruencyMeter`, except that a parameter without a gradient counts as
    having a zero gradient.

    Args:
        params: The parameters to measure.
        guarded: Whether a gradient scaler is used, which skips steps with non-finite gradients.
    """

    def __init__(self, params: Iterable[Tensor], *, guarded: bool = False) -> None:
        places: dict[tuple[torch.device, torch.dtype, Groups], list[Tensor]] = {}
        for param in params:
            places.setdefault((local(param).device, param.dtype, reduction_groups(param)), []).append(param)
        self._params = [param for members in places.values() for param in members]  # also the order in saved states
        self._groups = [reduction_groups(param) for param in self._params]
        weights = self._weights()
        self._start, self._previous = ([weight.detach().clone() for weight in weights] for _ in range(2))
        self._before: list[Tensor] | None = None
        self._device = weights[0].device
        self._guarded = guarded
        self._steps = 0
        self._current: Tensor | None = None
        # one per pass, in the order of the passes
        self._places = list(dict.fromkeys((w.device, g) for w, g in zip(weights, self._groups, strict=True)))

    def watch_before(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients before any correction in ``optimizer.step()``."""
        optimizer.register_step_pre_hook(lambda *_: self._note_before())

    def watch_after(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients again, as changed by the hooks registered so far."""
        optimizer.register_step_pre_hook(lambda *_: self._measure())
        self._before = [torch.empty_like(weight) for weight in self._start]

    @torch.no_grad()
    def _note_before(self) -> None:
        if self._before is None:
            self._measure()
        else:
            torch._foreach_copy_(self._before, self._gradients())

    @torch.no_grad()
    def _measure(self) -> None:
        after = self._gradients()
        before = after if self._before is None else self._before
        parts = [part[0].to(self._device) for part in Passes(self._slices(before, after), 3).grams(wide=True)]
        products = parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)
        if self._steps == 0:  # the first step has no previous one
            products[:, 3, :] = products[:, :, 3] = math.nan
        self._current = products
        self._steps += 1
        if not self._guarded:
            torch._foreach_copy_(self._previous, self._weights())
            return
        finite = torch.stack([gradient.isfinite().all().to(self._device) for gradient in before]).all()
        for previous, weight in zip(self._previous, self._weights(), strict=True):
            torch.where(finite.to(weight.device), weight, previous, out=previous)

    def _weights(self) -> list[Tensor]:
        return [local(param) for param in self._params]

    def _gradients(self) -> list[Tensor]:
        return [
            torch.zeros_like(local(param)) if param.grad is None else local(param.grad).to(param.dtype)
            for param in self._params
        ]

    def _slices(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Iterator[tuple[ParameterSlice, Groups]]:
        """Yield the gradient with a basis: its correction, and the displacements since the start and the last step."""
        held = zip(before, after, self._start, self._previous, self._weights(), self._groups, strict=True)
        for g, corrected, start, previous, weight, groups in held:
            pairs = ((g, corrected), (start, weight), (previous, weight))
            yield ParameterSlice(g, [Basis(pair, chained=True) for pair in pairs], 0), groups

    def take(self) -> Tensor:
        """Return the inner products of the last step, (places, 4, 4); nan if the optimizer skipped it."""
        taken, self._current = self._current, None
        if taken is None:
            return torch.full((len(self._places), 4, 4), math.nan, dtype=torch.float64, device=self._device)
        return taken

    def gather(self, taken: Sequence[Tensor]) -> Tensor:
        """Sum the products of several steps over places and processes; (steps, 4, 4) on the device."""
        products = torch.stack(list(taken))
        for i, (_, groups) in enumerate(self._places):
            for group in groups:
                part = products[:, i].contiguous()
                torch.distributed.all_reduce(part, group=group)
                products[:, i] = part
        return products.sum(dim=1)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters at the start and at the previous step, as full tensors."""
        held = zip(self._start, self._previous, self._params, strict=True)
        weights = [
            {"start": full(_shaped(start, param)), "previous": full(_shaped(previous, param))}
            for start, previous, param in held
        ]
        return {"steps": self._steps, "weights": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        if len(state["weights"]) != len(self._params):
            raise ValueError(
                f"the state measures {len(state['weights'])} parameters, here there are {len(self._params)}"
            )
        held = zip(state["weights"], self._start, self._previous, self._params, strict=True)
        for saved, start, previous, param in held:
            start.copy_(local(like(saved["start"], param)))
            previous.copy_(local(like(saved["previous"], param)))
        self._steps = int(state["steps"])


def _shaped(part: Tensor, param: Tensor) -> Tensor:
    """Copy this process's shard into a tensor that is sharded like the parameter."""
    tensor = param.detach().clone()
    local(tensor).copy_(part)
    return tensor


def measures(products: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the measures of a step from its inner products, (4, 4), from :meth:`StepMeter.gather`.

    Names without a suffix are relative to the start of the run, "previous" to the previous step.
    """
    (gg, gd, gs, gp), (_, dd, ds, dp), (*_, ss, _), (*_, pp) = products
    finite = math.isfinite(gg)
    cc, cs, cp = gg + 2 * gd + dd, gs + ds, gp + dp  # products with the corrected gradient, g + d
    return {
        "congruency": _cosine(gs, gg, ss),
        "corrected_congruency": _cosine(cs, cc, ss),
        "congruency_previous": _cosine(gp, gg, pp),
        "corrected_congruency_previous": _cosine(cp, cc, pp),
        "magnitude": math.sqrt(ss) if finite else math.nan,
        "magnitude_previous": math.sqrt(pp) if finite and math.isfinite(pp) else math.nan,
        "corrected": float(dd != 0) if finite else math.nan,
    }


def _cosine(product: float, squared_gradient: float, squared_displacement: float) -> float:
    """Return cos(g, -d): the displacement is opposite to the accumulated gradient."""
    lengths = (squared_gradient, squared_displacement)
    norms = math.prod(map(math.sqrt, lengths)) if min(lengths) > 0 else 0.0
    if not 0.0 < norms < math.inf:
        return math.nan
    return min(1.0, max(-1.0, -product / norms))
