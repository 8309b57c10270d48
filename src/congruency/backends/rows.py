"""The two passes for blocks of one row: one problem per output unit, batched over the rows of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from congruency.backends.base import ParameterSlice, Problem, Solution
from congruency.backends.torch import TorchBackend, working_dtype

__all__ = ["RowPasses", "rows_of"]

_CHUNK = 1 << 20  # elements of all vectors in memory at a time


def rows_of(parameter: Tensor) -> int:
    """Return the number of rows of a parameter: the size of its first dimension."""
    return parameter.shape[0] if parameter.ndim else 1


class RowPasses:
    """Like :class:`congruency.backends.Passes`, with one block per row of every slice, in order.

    Args:
        slices: The parameter slices; every process must hold whole rows.
        size: Number of basis vectors of every slice.
        blocks: Total number of rows; rows without a slice have no constraint.
    """

    fixed = False  # all inner products are computed at every step

    def __init__(self, slices: Sequence[ParameterSlice], size: int, blocks: int) -> None:
        self._slices, self._size, self._blocks = list(slices), size, blocks

    def point(self, gradients: tuple[int, ...]) -> bool:
        """Return False: the passes need the tensors, not only their addresses."""
        return False

    def program(self, problem: Problem, scale: Tensor | None, known: Sequence[Tensor] | None) -> None:
        """Return None, no program: see :meth:`congruency.backends.Backend.program`."""

    def gram(self, *, known: Sequence[Tensor] | None = None) -> Tensor:
        """Return the inner products, (rows, 1 + size, 1 + size) float64."""
        shape = (self._blocks, 1 + self._size, 1 + self._size)
        total = torch.zeros(shape, dtype=torch.float64, device=self._slices[0].target.device)
        for item in self._slices:
            for here, _, vectors in self._chunks(item):
                total[here] = torch.einsum("irc,jrc->rij", vectors, vectors).to(total.device)
        return total

    def solve(self, gram: Tensor, problem: Problem, scale: Tensor | None) -> Solution:
        from congruency.backends import backend_for

        backend = backend_for(gram.device.type) if self._blocks else TorchBackend  # a shard may have no rows
        return backend.solve(gram, problem, scale)

    def apply(self, solution: Solution) -> None:
        """Write the corrected rows."""
        for item in self._slices:
            dtype, device = working_dtype(item.target), item.target.device
            for here, target, vectors in self._chunks(item):
                coefficients = solution.coefficients[here].to(device)
                shift = torch.einsum("rk,krc->rc", coefficients, vectors[1:]).to(dtype).view_as(target)
                applied = solution.applied[here].to(device).view(-1, *(1,) * (target.ndim - 1))
                target.copy_(torch.where(applied, (target.to(dtype) + shift).to(target.dtype), target))

    def _chunks(self, item: ParameterSlice) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield chunks of rows: their blocks, the target, and all vectors, (1 + size, rows, columns) float64."""
        target = item.target if item.target.ndim else item.target.view(1)
        rows = max(1, _CHUNK * target.shape[0] // max(1, target.numel() * (1 + self._size)))
        for start in range(0, target.shape[0], rows):
            vectors = [target[start : start + rows].double()]
            for basis in item.bases:
                parts = [t.reshape(target.shape)[start : start + rows].double() for t in basis.tensors]
                vectors += [b - a for a, b in pairwise(parts)] if basis.chained else parts
            count = vectors[0].shape[0]
            here = slice(item.block + start, item.block + start + count)
            yield here, target[start : start + rows], torch.stack([vector.reshape(count, -1) for vector in vectors])
