"""The two passes over parameters in the CPU's memory by compiled code, and the quadratic program between them.

The compiled part (``native.c``) is built when the package is installed, if there is a C compiler; without it, importing
this module fails. The passes take pieces whose gradient and vectors are all float32, or all float64, and lie in memory
in one order without gaps. The others go to :mod:`congruency.kernels.rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from congruency.kernels import rows
from congruency.kernels.rows import Piece

__all__ = ["Sweep", "solve", "solve_dual"]

try:
    _native: Any = import_module("congruency.kernels._native")
except ImportError as reason:
    raise ImportError(
        f"the compiled kernels are not there ({reason}); install a C compiler and then the package once more"
    ) from reason


def _setup(library: str) -> None:
    """Introduce torch to the compiled part; its threads come with a library that was linked with torch's OpenMP."""
    _native.setup(library, Tensor, torch.nn.Parameter, torch.float32, torch.float64)


_setup(torch._C.__file__)


Answer = tuple[list[float], list[float], list[float], list[float] | None]


def solve(
    moments: Sequence[Sequence[float]], combination: Sequence[float], signs: Sequence[float],
    margins: Sequence[float], only_violated: bool, factor: float,
) -> list[Answer]:  # fmt: skip
    """:func:`congruency.solution.solve` on plain numbers, all finite.

    Args:
        moments: The (1 + n)^2 inner products of ``[g, b_1, ..., b_n]`` of every block, row by row.
        combination: The n^2 numbers that make rows of basis vectors, row by row.
        signs: Of the rows.
        margins: Lower bounds of the multipliers.
        only_violated: Leave gradients alone that violate no constraint.
        factor: What the gradients are multiplied by.

    Returns:
        For every block ``<a_i, g>``, ``<a_i, a_j>`` row by row, the multipliers, and the coefficients of the basis
        vectors, None where the gradient is left alone.
    """
    answers: list[Answer] = _native.solve(moments, combination, signs, margins, only_violated, factor)
    return answers


def solve_dual(gram: Tensor, products: Tensor, floor: Tensor, grain: float) -> Tensor:
    """:func:`congruency.solve_dual` of b problems: float64 (b, n, n), (b, n), (b, n) in the CPU's memory -> (b, n).

    ``grain`` is the rounding of the numbers given.
    """
    gram, products, floor = gram.contiguous(), products.contiguous(), floor.contiguous()
    v = torch.empty_like(products)
    _native.solve_dual(*(tensor.data_ptr() for tensor in (gram, products, floor, v)), *products.shape, grain)
    return v


class Sweep:
    """The two passes over the pieces of one step in the CPU's memory, with plain numbers in and out.

    The addresses are gathered once for both passes, so a sweep must not outlive its step.

    Args:
        pieces: The gradients and their basis vectors.
        size: How many basis vectors every piece has.
        blocks: How many blocks the pieces belong to.
    """

    def __init__(self, pieces: Sequence[Piece], size: int, blocks: int) -> None:
        self._pieces = pieces
        self._rest: rows.HostSweep | None = None
        job = _native.prepare(pieces, size, blocks, torch.get_num_threads(), False)
        if job is not None:
            self._jobs = [job]
            return
        groups, rest = _split(pieces)
        self._jobs = [_native.prepare(group, size, blocks, torch.get_num_threads(), True) for group in groups]
        if rest or not groups:
            self._rest = rows.HostSweep(rest, size, blocks)

    def moments(self) -> list[list[float]]:
        """Inner products of ``[g, b_1, ..., b_size]`` in every block: the (1 + size)^2 of them, row by row."""
        parts: list[list[list[float]]] = [_native.moments(job) for job in self._jobs]
        if self._rest is not None:
            parts.append(self._rest.moments())
        if len(parts) == 1:
            return parts[0]
        return [[sum(entry) for entry in zip(*block, strict=True)] for block in zip(*parts, strict=True)]

    def add_combination(self, coefficients: Sequence[Sequence[float] | None]) -> None:
        """Write ``g + sum_k a_k b_k`` into the gradients; one sequence for each block, None for those left alone."""
        if self._rest is not None:
            self._rest.add_combination(coefficients)
        for job in self._jobs:
            _native.add_combination(job, coefficients)
        # torch did not see the gradients change: a graph that has saved one of them must not be used any more
        torch.autograd.graph.increment_version(
            [gradient for gradient, _, block in self._pieces if coefficients[block] is not None]
        )


def _split(pieces: Sequence[Piece]) -> tuple[list[list[Piece]], list[Piece]]:
    """The pieces that the compiled part can take, those of one precision and structure together, and the others."""
    groups: dict[tuple[Any, ...], list[Piece]] = {}
    rest = []
    for piece in pieces:
        if _can_take(piece):
            structure = ((chained, len(tensors)) for tensors, chained in piece.strands)
            groups.setdefault((piece.gradient.dtype, *structure), []).append(piece)
        else:
            rest.append(piece)
    return list(groups.values()), rest


def _can_take(piece: Piece) -> bool:
    tensors = [piece.gradient, *(tensor for strand in piece.strands for tensor in strand.tensors)]
    size = sum(len(strand.tensors) - strand.chained for strand in piece.strands)
    dense = rows.same_layout(tensors)  # channels last, say, rather than contiguous
    return _native.prepare([piece._replace(block=0)], size, 1, 1, dense) is not None
