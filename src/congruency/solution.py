"""From the inner products of a step to its correction: the small algebra between the two passes over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from congruency.cone import solve_dual
from congruency.kernels import compiled

__all__ = ["HostSolution", "Rows", "Solution", "row_stats", "solve", "solve_on_host"]


@dataclass(frozen=True)
class Rows:
    """The rows of a step from its basis vectors: accumulated gradients ``a = combination @ b``, rows ``sign * a``."""

    combination: Tensor  # (n, m)
    signs: Tensor  # (n,)
    margins: Tensor  # (n,)
    only_violated: bool  # leave the gradient alone unless some <c_i, g> < 0
    fused: bool = False  # solve by one Triton kernel
    gate: Tensor | None = None  # (n,) bool: which rows count, where only the device knows

    @cached_property
    def numbers(self) -> tuple[list[float], list[float], list[float]]:
        """Combination, signs and margins as plain numbers."""
        return self.combination.flatten().tolist(), self.signs.tolist(), self.margins.tolist()


@dataclass(frozen=True)
class Solution:
    """What was found for each block; the corrected gradient is ``g + sum_k coefficients_k b_k``."""

    finite: Tensor  # () whether the step's numbers were finite; if not, nothing is applied
    gradient_norm2: Tensor  # (blocks,)
    products: Tensor  # (blocks, n) <a_i, g>
    gram: Tensor  # (blocks, n, n) <a_i, a_j>
    signs: Tensor  # (n,)
    multipliers: Tensor  # (blocks, n)
    applied: Tensor  # (blocks,) bool
    coefficients: Tensor  # (blocks, m)
    gate: Tensor | None = None  # (n,) bool: which rows counted


def solve(sums: Tensor, rows: Rows, scale: Tensor | None = None) -> Solution:
    """Solve all blocks at once, without a branch on what is in the tensors.

    Args:
        sums: (blocks, 1 + m, 1 + m) inner products of ``[g, b_1..b_m]`` in float64.
        rows: What the rows are made of.
        scale: What the gradients are multiplied by, if anything: with a margin the problem is not homogeneous, so it
            is solved for the true gradient and the correction is scaled.
    """
    if rows.fused and rows.signs.shape[0] == 1:
        return _solve_one_row_fused(sums, rows, scale)
    combination = rows.combination if rows.gate is None else rows.combination * rows.gate.unsqueeze(-1)
    finite = torch.isfinite(sums).all()
    sums = torch.where(finite, sums, 0.0)
    factor = torch.ones((), dtype=torch.float64, device=sums.device) if scale is None else scale.to(sums)
    products = sums[:, 0, 1:] @ combination.mT / factor
    gram = combination @ sums[:, 1:, 1:] @ combination.mT
    multipliers = _solve_dual(rows)(gram * torch.outer(rows.signs, rows.signs), products * rows.signs, rows.margins)
    there = gram.diagonal(dim1=-2, dim2=-1) > 0
    if rows.only_violated:
        violated = ((products * rows.signs < 0) & there).any(-1, keepdim=True)
        multipliers = torch.where(violated, multipliers, 0.0)
    multipliers = torch.where(finite, multipliers, 0.0)
    return Solution(
        finite=finite,
        gradient_norm2=sums[:, 0, 0] / factor**2,
        products=products,
        gram=gram,
        signs=rows.signs,
        multipliers=multipliers,
        applied=((multipliers != 0) & there).any(-1),
        coefficients=(multipliers * rows.signs) @ combination * factor,
        gate=rows.gate,
    )


def _solve_dual(rows: Rows) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    if not rows.fused:
        return solve_dual
    from congruency.kernels import triton

    return triton.solve_dual if rows.signs.shape[0] <= triton.MOST_ROWS else solve_dual


def _solve_one_row_fused(sums: Tensor, rows: Rows, scale: Tensor | None) -> Solution:
    from congruency.kernels import triton

    finite, gradient_norm2, product, norm2, multiplier, applied, coefficient = triton.solve_one_row(
        sums, rows.combination, rows.signs, rows.margins, rows.only_violated, scale, rows.gate
    )
    return Solution(
        finite=finite,
        gradient_norm2=gradient_norm2,
        products=product.unsqueeze(-1),
        gram=norm2.view(-1, 1, 1),
        signs=rows.signs,
        multipliers=multiplier.unsqueeze(-1),
        applied=applied,
        coefficients=coefficient.unsqueeze(-1),
        gate=rows.gate,
    )


@dataclass(frozen=True)
class HostSolution:
    """The solution in Python numbers, one of each a block; of n rows, n or n^2 numbers, row by row."""

    gradient_norm2: list[float]
    products: list[list[float]]
    gram: list[list[float]]
    signs: list[float]
    multipliers: list[list[float]]
    coefficients: list[list[float] | None]
    """None where the gradient is left alone."""

    def as_tensors(self) -> Solution:
        """The same, for whoever wants to look at it."""
        n = len(self.signs)
        unchanged = [0.0] * n
        return Solution(
            finite=torch.tensor(True),
            gradient_norm2=torch.tensor(self.gradient_norm2, dtype=torch.float64),
            products=torch.tensor(self.products, dtype=torch.float64),
            gram=torch.tensor(self.gram, dtype=torch.float64).view(-1, n, n),
            signs=torch.tensor(self.signs, dtype=torch.float64),
            multipliers=torch.tensor(self.multipliers, dtype=torch.float64),
            applied=torch.tensor([a is not None for a in self.coefficients]),
            coefficients=torch.tensor([a or unchanged for a in self.coefficients], dtype=torch.float64),
        )


def solve_on_host(sums: Sequence[Sequence[float]], rows: Rows, factor: float) -> HostSolution:
    """:func:`solve` on plain numbers: one row in closed form, more by compiled code.

    Args:
        sums: ``[<g, g>, <g, b_1>, ...]``, the (1 + n)^2 inner products of every block, row by row, all finite.
        rows: What the rows are made of; all of them count.
        factor: What the gradients are multiplied by.
    """
    combination, signs, margins = rows.numbers
    if len(signs) == 1:
        answers = [_one_row(row, combination[0], signs[0], margins[0], rows.only_violated, factor) for row in sums]
    else:
        native = compiled()
        assert native is not None, "see the corrector: without compiled code tensors do this"
        answers = native.solve(sums, combination, signs, margins, rows.only_violated, factor)
    products, gram, multipliers, coefficients = (list(part) for part in zip(*answers, strict=True))
    norms = [row[0] / factor**2 for row in sums]
    return HostSolution(norms, products, gram, signs, multipliers, coefficients)


def _one_row(
    sums: Sequence[float], direction: float, sign: float, margin: float, only_violated: bool, factor: float
) -> tuple[list[float], list[float], list[float], list[float] | None]:
    """The row ``c = sign * direction * b`` from ``[<g, g>, <g, b>, <b, g>, <b, b>]``, in closed form."""
    _, product, _, norm2 = sums
    product *= direction / factor
    norm2 *= direction * direction
    v = margin
    if only_violated and not (sign * product < 0 and norm2 > 0):
        v = 0.0
    elif norm2 > 0:
        v = max(margin, -sign * product / norm2)
    coefficients = [v * sign * direction * factor] if v != 0 and norm2 > 0 else None
    return [product], [norm2], [v], coefficients


def row_stats(solution: Solution) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Congruency before and after, magnitude and multipliers, each (blocks, n), from inner products alone."""
    signed = solution.multipliers * solution.signs
    magnitude = solution.gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    shift = (solution.gram @ signed.unsqueeze(-1)).squeeze(-1)  # <a_i, x - g>
    norm2 = solution.gradient_norm2 + (signed * (2 * solution.products + shift)).sum(-1)
    before = _cosine(solution.products, solution.gradient_norm2, magnitude)
    after = _cosine(solution.products + shift, norm2, magnitude)
    after = torch.where(solution.applied.unsqueeze(-1), after, before)
    known = solution.finite if solution.gate is None else solution.finite & solution.gate
    before, after, magnitude, multipliers = (
        torch.where(known, values, math.nan) for values in (before, after, magnitude, solution.multipliers)
    )
    return before, after, magnitude, multipliers


def _cosine(products: Tensor, norm2: Tensor, magnitude: Tensor) -> Tensor:
    norms = norm2.clamp(min=0).sqrt().unsqueeze(-1) * magnitude
    return torch.where(norms > 0, (products / norms).clamp(-1, 1), math.nan)
