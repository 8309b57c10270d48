"""Congruency and magnitude of every step, before and after the correction, without waiting for the device.

:class:`congruency.CongruencyMeter` answers with the means of one reference; a run wants each step's figures from two of
them, of two gradients. All are functions of the inner products of four vectors, and those are all that is computed
while training, in a handful of kernels: the host makes figures of them when it reads them, many steps at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from congruency.sharding import full, like, local, reduction_groups

__all__ = ["GAUGED", "Gauge"]

GAUGED = (
    "congruency",
    "corrected_congruency",
    "congruency_previous",
    "corrected_congruency_previous",
    "magnitude",
    "magnitude_previous",
    "corrected",
)
"""The figures of a step. Without a suffix from the start of the run; "previous": from the step before."""

# Elements worked on at a time: bounds the float64 copies, and on the CPU keeps them in a core's cache.
_HOST_PIECE = 1 << 16
_DEVICE_PIECE = 1 << 22
_SLICE = 1 << 12  # elements of one product: many short ones keep a whole GPU busy, a single long one does not


class _Piece:
    """Parameters measured together: where they were at the start and at the step before, and their gradient."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.params = list(params)
        self.held = self.weights().repeat(2, 1)
        self.before: Tensor | None = None

    def weights(self) -> Tensor:
        return torch.cat([local(param.detach()).flatten() for param in self.params])

    def gradient(self) -> Tensor:
        parts = [
            torch.zeros_like(local(param)) if param.grad is None else local(param.grad).to(param.dtype)
            for param in self.params
        ]
        return torch.cat([part.flatten() for part in parts])

    def measure(self, keep: Tensor | None) -> Tensor:
        """(4, 4) float64 inner products of g, its correction, the ways come from the start and from the step before.

        ``keep``: () bool, whether the weights now are those of a step; None for yes.
        """
        before, after = self.before, self.gradient()
        weights = self.weights()
        count = len(weights)
        rows = torch.zeros(4, -(-count // _SLICE) * _SLICE, dtype=torch.float64, device=weights.device)
        rows[0, :count] = after if before is None else before
        if before is not None:
            torch.sub(after, rows[0, :count], out=rows[1, :count])  # exactly zero where nothing was corrected
        torch.sub(weights.to(torch.float64), self.held, out=rows[2:, :count])
        if keep is None:
            self.held[1] = weights
        else:
            self.held[1] = torch.where(keep, weights, self.held[1])
        self.before = None
        slices = rows.view(4, -1, _SLICE).transpose(0, 1)
        return torch.bmm(slices, slices.transpose(1, 2)).sum(dim=0)


class Gauge:
    """Measures parameters at every optimizer step, through the optimizer's hooks.

    Make it, call :meth:`watch_before`, attach what corrects gradients, call :meth:`watch_after`: hooks run in the order
    of their making. The measures are those of :class:`congruency.CongruencyMeter`, except that a parameter without a
    gradient counts as having a gradient of zero.

    Args:
        params: The parameters to measure.
        guarded: A gradient scaler is at work: a step with a gradient that is not finite is no step.
    """

    def __init__(self, params: Iterable[Tensor], *, guarded: bool = False) -> None:
        places: dict[tuple[Any, ...], list[Tensor]] = {}
        for param in params:
            places.setdefault((local(param).device, param.dtype, reduction_groups(param)), []).append(param)
        self._groups = [place[2] for place in places]
        self._pieces = [_pieces(members) for members in places.values()]
        self._device = next(iter(places))[0]
        self._guarded = guarded
        self._corrects = False
        self._steps = 0
        self._current: Tensor | None = None

    def watch_before(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure gradients as they come to ``optimizer.step()``."""
        optimizer.register_step_pre_hook(lambda *_: self._before())

    def watch_after(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure them again as the hooks so far have left them."""
        optimizer.register_step_pre_hook(lambda *_: self._measure())
        self._corrects = True

    @torch.no_grad()
    def _before(self) -> None:
        if not self._corrects:
            self._measure()
            return
        for piece in self._all_pieces():
            piece.before = piece.gradient()

    @torch.no_grad()
    def _measure(self) -> None:
        keep = self._finite() if self._guarded else None
        sums = []
        for pieces in self._pieces:
            total = pieces[0].measure(keep)
            for piece in pieces[1:]:
                total += piece.measure(keep)
            sums.append(total.to(self._device))
        products = sums[0].unsqueeze(0) if len(sums) == 1 else torch.stack(sums)
        if self._steps == 0:  # there is no step before the first
            products[:, 3, :] = products[:, :, 3] = math.nan
        self._current = products
        self._steps += 1

    def _finite(self) -> Tensor:
        """() bool: whether this process's gradients are all finite."""
        gradients = (piece.gradient() if piece.before is None else piece.before for piece in self._all_pieces())
        return torch.stack([gradient.isfinite().all().to(self._device) for gradient in gradients]).all()

    def _all_pieces(self) -> list[_Piece]:
        return [piece for pieces in self._pieces for piece in pieces]

    def take(self) -> Tensor:
        """(places, 4, 4): the products of the step just made, nan where the optimizer made none."""
        taken, self._current = self._current, None
        if taken is None:
            return torch.full((len(self._groups), 4, 4), math.nan, dtype=torch.float64, device=self._device)
        return taken

    def gather(self, taken: Sequence[Tensor]) -> Tensor:
        """(steps, 4, 4): the products of the steps that were taken, over all processes; still on the device."""
        products = torch.stack(list(taken))
        for i, groups in enumerate(self._groups):
            for group in groups:
                part = products[:, i].contiguous()
                torch.distributed.all_reduce(part, group=group)
                products[:, i] = part
        return products.sum(dim=1)

    @staticmethod
    def figures(products: Tensor) -> list[dict[str, float]]:
        """What :meth:`gather` gave, once it is on the host, as the figures of each step."""
        return [_figures(step) for step in products.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Where the parameters were at the start and at the step before, as whole tensors."""
        held = [
            {"start": full(start), "previous": full(previous)}
            for piece in self._all_pieces()
            for start, previous in zip(*(_shaped(flat, piece) for flat in piece.held), strict=True)
        ]
        return {"steps": self._steps, "weights": held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        members = self._all_pieces()
        count = sum(len(piece.params) for piece in members)
        if len(state["weights"]) != count:
            raise ValueError(f"the state measures {len(state['weights'])} parameters, here there are {count}")
        saved = iter(state["weights"])
        for piece in members:
            entries = [next(saved) for _ in piece.params]
            for name, flat in zip(("start", "previous"), piece.held, strict=True):
                parts = [local(like(entry[name], param)) for entry, param in zip(entries, piece.params, strict=True)]
                flat.copy_(torch.cat([part.flatten() for part in parts]))
        self._steps = int(state["steps"])


def _pieces(params: Sequence[Tensor]) -> list[_Piece]:
    """Parameters of one place, small ones together, in pieces of bounded size (one tensor is never cut)."""
    size = _HOST_PIECE if local(params[0]).device.type == "cpu" else _DEVICE_PIECE
    pieces: list[list[Tensor]] = [[]]
    room = size
    for param in params:
        count = local(param).numel()
        if pieces[-1] and count > room:
            pieces.append([])
            room = size
        pieces[-1].append(param)
        room -= count
    return [_Piece(members) for members in pieces]


def _shaped(flat: Tensor, piece: _Piece) -> list[Tensor]:
    """A flat vector as tensors that look like the parameters, sharded where those are."""
    parts = flat.split([local(param).numel() for param in piece.params])
    shaped = []
    for part, param in zip(parts, piece.params, strict=True):
        tensor = param.detach().clone()
        local(tensor).copy_(part.view(local(param).shape))
        shaped.append(tensor)
    return shaped


def _figures(products: Sequence[Sequence[float]]) -> dict[str, float]:
    (gg, gd, gs, gp), (_, dd, ds, dp), (*_, ss, _), (*_, pp) = products
    finite = math.isfinite(gg)
    cc, cs, cp = gg + 2 * gd + dd, gs + ds, gp + dp  # of the corrected gradient, g + d
    values = (
        _cosine(gs, gg, ss),
        _cosine(cs, cc, ss),
        _cosine(gp, gg, pp),
        _cosine(cp, cc, pp),
        math.sqrt(ss) if finite else math.nan,
        math.sqrt(pp) if finite and math.isfinite(pp) else math.nan,
        float(dd != 0) if finite else math.nan,
    )
    return dict(zip(GAUGED, values, strict=True))


def _cosine(product: float, squared_gradient: float, squared_way: float) -> float:
    """cos(g, -d): the way come is against the gradients that made it."""
    norms = math.sqrt(squared_gradient) * math.sqrt(squared_way) if squared_gradient > 0 and squared_way > 0 else 0.0
    if not 0.0 < norms < math.inf:
        return math.nan
    return min(1.0, max(-1.0, -product / norms))
