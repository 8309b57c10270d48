"""From the inner products of a step to its correction: the small algebra between the two passes over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from congruency.cone import solve_dual

__all__ = ["Rows", "Solution", "row_stats", "solve", "solve_one_row"]


@dataclass(frozen=True)
class Rows:
    """The rows of a step from its basis vectors: accumulated gradients ``a = combination @ b``, rows ``sign * a``."""

    combination: Tensor  # (n, m)
    signs: Tensor  # (n,)
    margins: Tensor  # (n,)
    only_violated: bool  # leave the gradient alone unless some <c_i, g> < 0
    fused: bool = False  # solve by one Triton kernel
    gate: Tensor | None = None  # (n,) bool: which rows count, where only the device knows


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
class OneRowSolution:
    """The solution for a single row in Python numbers, one of each a block."""

    gradient_norm2: list[float]
    products: list[float]
    norm2: list[float]
    sign: float
    multipliers: list[float]
    coefficients: list[list[float] | None]
    """One coefficient a block, None where the gradient is left alone."""

    def as_tensors(self) -> Solution:
        """The same, for whoever wants to look at it."""

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)

        return Solution(
            finite=torch.tensor(True),
            gradient_norm2=torch.tensor(self.gradient_norm2, dtype=torch.float64),
            products=column(self.products),
            gram=column(self.norm2).unsqueeze(-1),
            signs=torch.tensor([self.sign], dtype=torch.float64),
            multipliers=column(self.multipliers),
            applied=torch.tensor([a is not None for a in self.coefficients]),
            coefficients=column([a[0] if a else 0.0 for a in self.coefficients]),
        )


def solve_one_row(
    sums: Sequence[Sequence[float]], direction: float, sign: float, margin: float, only_violated: bool, factor: float
) -> OneRowSolution:
    """:func:`solve` for one row ``c = sign * direction * b`` in closed form, on plain numbers.

    Args:
        sums: ``[<g, g>, <g, b>, <b, g>, <b, b>]`` of every block, finite.
        direction: The only entry of the combination.
        sign: Of the row.
        margin: Lower bound of the multiplier.
        only_violated: Leave gradients alone that do not violate the constraint.
        factor: What the gradients are multiplied by.
    """
    products = [direction * gb / factor for _, gb, *_ in sums]
    multipliers: list[float] = []
    coefficients: list[list[float] | None] = []
    for product, row in zip(products, sums, strict=True):
        norm2 = row[-1]
        along = sign * product
        v = margin
        if only_violated and not (along < 0 and norm2 > 0):
            v = 0.0
        elif norm2 > 0:
            v = max(margin, -along / norm2)
        multipliers.append(v)
        coefficients.append([v * sign * direction * factor] if v != 0 and norm2 > 0 else None)
    norms = [row[0] / factor**2 for row in sums]
    return OneRowSolution(norms, products, [row[-1] for row in sums], sign, multipliers, coefficients)


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
