"""Slow, obvious solvers of the cone problem, to compare the fast one with."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np
import quadprog
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]


def solve_dual_by_quadprog(gram: Array, products: Array, margin: Array) -> Array:
    """The paper's own solver (Goldfarb and Idnani); it needs a positive definite Gram matrix."""
    return quadprog.solve_qp(gram, -products, np.eye(len(products)), margin)[0]


def project_by_nnls(gradient: Array, constraints: Array, margin: Array) -> Array:
    """Lawson and Hanson's method on the rows themselves, as SciPy has it; any rows will do."""
    start = gradient + margin @ constraints
    size = np.linalg.norm(start) or 1.0
    norms = np.linalg.norm(constraints, axis=1)
    rows = constraints / np.where(norms > 0, norms, 1)[:, None]
    u, _ = nnls(rows.T, -start / size, maxiter=1000 * len(rows))
    return start + size * (u @ rows)


def project_exactly(gradient: Sequence[float], constraints: Sequence[Sequence[float]], margin: float = 0.0) -> Array:
    """Every set of active rows in turn, in rational arithmetic: without any rounding, however close the rows are."""
    rows = [[Fraction(value) for value in row] for row in constraints]
    start = [
        Fraction(g) + Fraction(margin) * sum(column)
        for g, column in zip(gradient, zip(*rows, strict=True), strict=True)
    ]
    gram = [[_dot(a, b) for b in rows] for a in rows]
    slope = [_dot(row, start) for row in rows]
    for size in range(len(rows) + 1):
        for free in combinations(range(len(rows)), size):
            u = _solve([[gram[i][j] for j in free] for i in free], [-slope[i] for i in free])
            if u is None or min(u, default=0) < 0:
                continue
            x = [s + sum(v * rows[j][k] for v, j in zip(u, free, strict=True)) for k, s in enumerate(start)]
            if all(_dot(row, x) >= 0 for row in rows):
                return np.array([float(value) for value in x])
    raise AssertionError("some set of independent rows always solves the problem")


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def _solve(matrix: list[list[Fraction]], target: list[Fraction]) -> list[Fraction] | None:
    """Gauss-Jordan elimination; None for a singular matrix."""
    rows = [[*row, value] for row, value in zip(matrix, target, strict=True)]
    for i in range(len(rows)):
        pivot = next((r for r in range(i, len(rows)) if rows[r][i] != 0), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(len(rows)):
            if r != i and rows[r][i] != 0:
                rows[r] = [a - rows[r][i] * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]
