"""Slow, obvious solvers of the cone problem, to compare the fast one with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]
Number = float | Fraction
EPS = float(np.finfo(np.float64).eps)


def solve_dual_by_quadprog(gram: Array, products: Array, margin: Array) -> Array:
    """The paper's own solver (Goldfarb and Idnani); it needs a positive definite Gram matrix."""
    quadprog = pytest.importorskip("quadprog", reason="quadprog is not installed")
    return quadprog.solve_qp(gram, -products, np.eye(len(products)), margin)[0]


def nnls(a: Array, b: Array) -> Array:
    """Lawson and Hanson's method: x >= 0 with the least ``|a x - b|``, for any a.

    Not SciPy's: that of 1.15, the newest for Python 3.10, stops early where columns of a depend on each other.
    """
    x, free = np.zeros(a.shape[1]), np.zeros(a.shape[1], dtype=bool)
    least = 10 * max(a.shape) * EPS * np.linalg.norm(a) * np.linalg.norm(b)
    refused: set[int] = set()  # what would enter by rounding alone
    while True:
        slope = np.where(free, -np.inf, a.T @ (b - a @ x))
        slope[list(refused)] = -np.inf
        entering = int(slope.argmax())
        if slope[entering] <= least:
            return x
        free[entering] = True
        first = True
        while True:
            best = np.zeros_like(x)
            best[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            if first and best[entering] <= 0:
                free[entering] = False
                refused.add(entering)
                break
            first = False
            blocking = free & (best <= 0)
            if not blocking.any():
                x, refused = best, set()
                break
            x = x + (x[blocking] / (x[blocking] - best[blocking])).min() * (best - x)
            free &= x > EPS * x.max()
            x[~free] = 0


def project_by_nnls(gradient: Array, constraints: Array, margin: Array) -> Array:
    """Non-negative least squares on the rows themselves; any rows will do."""
    start = gradient + margin @ constraints
    size = np.linalg.norm(start) or 1.0
    norms = np.linalg.norm(constraints, axis=1)
    rows = constraints / np.where(norms > 0, norms, 1)[:, None]
    u = nnls(rows.T, -start / size)
    return start + size * (u @ rows)


def project_exactly(
    gradient: Sequence[float], constraints: Sequence[Sequence[float]], margin: float | Sequence[float] = 0.0
) -> Array:
    """The projection in rational arithmetic: without any rounding, however close the constraints are."""
    margins = margin if isinstance(margin, Sequence) else [margin] * len(constraints)
    return np.array([float(value) for value in _Exact(gradient, constraints, margins).x])


def assert_accurate(
    gradient: Sequence[Number], constraints: Sequence[Sequence[Number]], margins: Sequence[float], v: Sequence[float]
) -> None:
    """Check multipliers against the exact ones to the accuracy that docs/mathematics.md states, without rounding.

    With unit constraints, h = g + C' margin, u = v - margin and x = h + C'u:

        <c_i, x> = 0 where u_i > 0, and >= 0 elsewhere, to within rho = k n eps (|h| + |u|_1), and
        |x - x*| <= sqrt(n) rho / sigma, where sigma is the least singular value of the constraints with u or u* > 0.

    k is 4. A constraint nearer than tau = sqrt(450 eps) to the span of the free ones (u_i > 0) may be passed over: it
    is violated by at most tau |x| then. Where sigma is below tau, |x - x*|^2 <= tau |x| |u*|_1 + rho (|u|_1 + |u*|_1),
    and where free constraints are as near to each other as that, the ridge of the tensor solver makes k at most 100.
    """
    exact = _Exact(gradient, constraints, margins)
    norms = [float(exact.gram[i][i]) ** 0.5 for i in range(len(v))]
    used = [i for i, norm in enumerate(norms) if norm > 0]
    assert all(v[i] == margins[i] for i in range(len(v)) if i not in used)
    assert all(a >= b for a, b in zip(v, margins, strict=True))
    u = [Fraction(a) - Fraction(b) for a, b in zip(v, margins, strict=True)]
    x = exact.point(u)
    lengths = [sum(float(w[i]) * norms[i] for i in used) for w in (u, exact.u)]
    size, error = _norm(x), _norm([a - b for a, b in zip(x, exact.x, strict=True)])
    unit = np.array(
        [[float(value) / (norm or 1) for value in row] for row, norm in zip(exact.rows, norms, strict=True)]
    )
    tau = (450 * EPS) ** 0.5
    free = [i for i in used if u[i] > 0]
    span = np.linalg.svd(unit[free], full_matrices=False)[2]
    distances = np.linalg.norm(unit - unit @ span.T @ span, axis=1)
    k = 4 if _least_singular_value(unit[free]) > 2 * tau else 100
    rho = k * len(v) * EPS * (_norm(exact.start) + lengths[0])
    for i in used:
        slope = float(_dot(exact.rows[i], x)) / norms[i]
        assert slope <= rho or u[i] == 0, f"slope {slope / rho:.1e} rho of free multiplier {i}"
        slack = rho if u[i] > 0 or distances[i] > 2 * tau else rho + tau * size
        assert slope >= -slack, f"constraint {i} is violated by {-slope / rho:.1e} rho"
    sigma = _least_singular_value(unit[[i for i in used if u[i] > 0 or exact.u[i] > 0]])
    bound = len(v) ** 0.5 * rho / sigma if sigma > 2 * tau else (tau * size * lengths[1] + rho * sum(lengths)) ** 0.5
    assert error <= bound, f"x is off by {error:.1e}, the bound is {bound:.1e}"


def ill_conditioned(kind: str, angle: float, n: int) -> tuple[Array, Array, Array]:
    """A gradient, n constraints at about this angle to each other, or to each other's opposites, and their margins.

    The constraints differ in size by powers of 2, so that copies are copies.
    """
    rng = np.random.default_rng([n, round(1 / angle), *kind.encode()])
    p = int(rng.integers(max(2, n // 2), 4 * n))
    base, gradient, rows = rng.standard_normal(p), rng.standard_normal(p), rng.standard_normal((n, p))
    rows = base + angle * rows
    if kind != "across":  # the worst case: the answer is small against the gradient, and most constraints are active
        gradient = angle * gradient - base
    if kind == "sums":  # as References makes them
        rows = rows.cumsum(0)
    elif kind == "opposite":
        rows *= np.where(rng.random((n, 1)) < 0.3, -1, 1)
    elif kind == "copies":
        rows = rows[rng.integers(0, (n + 1) // 2, n)] * (rng.random((n, 1)) < 0.8)
    rows *= 2.0 ** rng.integers(-10, 11, (n, 1))
    share = np.linspace(0, 1 / n, n) if kind == "margins" else np.zeros(n)  # of the gradient, half of it together
    return gradient, rows, share * np.linalg.norm(gradient) / np.maximum(np.linalg.norm(rows, axis=1), 1e-3)


ILL_CONDITIONED = ["across", "along", "sums", "opposite", "copies", "margins"]


class _Exact:
    """One problem and its solution in rational arithmetic; the solution is checked, so that it needs no trust."""

    def __init__(
        self, gradient: Sequence[Number], constraints: Sequence[Sequence[Number]], margins: Sequence[float]
    ) -> None:
        self.rows = [[Fraction(value) for value in row] for row in constraints]
        self.start = [Fraction(value) for value in gradient]
        self.start = self.point([Fraction(margin) for margin in margins])
        self.gram = [[_dot(a, b) for b in self.rows] for a in self.rows]
        self.u = _lawson_hanson(self.gram, [_dot(row, self.start) for row in self.rows])
        self.x = self.point(self.u)
        slopes = [_dot(row, self.x) for row in self.rows]
        assert min(self.u, default=0) >= 0
        assert min(slopes, default=0) >= 0
        assert _dot(self.u, slopes) == 0

    def point(self, u: Sequence[Fraction]) -> list[Fraction]:
        """h + C'u."""
        return [h + _dot(u, [row[k] for row in self.rows]) for k, h in enumerate(self.start)]


def _lawson_hanson(gram: list[list[Fraction]], offset: list[Fraction]) -> list[Fraction]:
    """u >= 0 with y = Ku + q >= 0 and u'y = 0, by exchanging u_i and y_i in the table of y = Ku + q."""
    n = len(offset)
    table = [[*row, value] for row, value in zip(gram, offset, strict=True)]
    active: set[int] = set()
    u = [Fraction(0)] * n

    def exchange(k: int) -> None:
        row = [-value / table[k][k] for value in table[k]]
        row[k] = 1 / table[k][k]
        for i in range(n):
            if i != k and (factor := table[i][k]):
                table[i][k] = Fraction(0)
                table[i] = [a + factor * b for a, b in zip(table[i], row, strict=True)]
        table[k] = row
        active.symmetric_difference_update({k})

    while outside := [i for i in range(n) if i not in active and table[i][-1] < 0]:
        exchange(min(outside, key=lambda i: table[i][-1] * abs(table[i][-1]) / gram[i][i]))
        while True:
            fit = [table[i][-1] if i in active else Fraction(0) for i in range(n)]
            if not (stops := [(u[i] / (u[i] - fit[i]), i) for i in active if fit[i] <= 0]):
                break
            way, first = min(stops)
            u = [a + way * (b - a) for a, b in zip(u, fit, strict=True)]
            exchange(first)
        u = fit
    return u


def _least_singular_value(rows: Array) -> float:
    """0 for dependent rows, but for rounding."""
    values = np.linalg.svd(rows, compute_uv=False)
    return float(values[-1]) if 0 < len(rows) <= rows.shape[1] else float(len(rows) == 0)


def _norm(vector: Sequence[Fraction]) -> float:
    return float(_dot(vector, vector)) ** 0.5


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    """Over common denominators: fractions one by one would be reduced after every sum."""
    (p, c), (q, d) = _over_one_denominator(a), _over_one_denominator(b)
    return Fraction(sum(x * y for x, y in zip(p, q, strict=True)), c * d)


def _over_one_denominator(vector: Sequence[Fraction]) -> tuple[list[int], int]:
    common = math.lcm(*(value.denominator for value in vector))
    return [value.numerator * (common // value.denominator) for value in vector], common
