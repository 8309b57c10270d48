"""The solver on finite input of any size and degeneracy: never an error, never nan, always the projection."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from fuzz_harness import target, watched
from hypothesis import strategies as st
from oracles import project_by_nnls, project_exactly
from torch import Tensor, nn

import congruency

# Entries on a grid, and sizes that are powers of 2, so that copies, opposites and sums of rows are exactly that: the
# exact solver would see an angle of 1e-16 where rows were rounded.
_ENTRIES = st.one_of(st.integers(-2, 2).map(float), st.integers(-1024, 1024).map(lambda i: i / 1024))


def _vector(data: st.DataObject, p: int) -> list[float]:
    return data.draw(st.lists(_ENTRIES, min_size=p, max_size=p))


def _rows(data: st.DataObject, n: int, p: int) -> Tensor:
    """Rows of their own, and copies, opposites, near copies and sums of those before, each at a size of its own."""
    rows: list[Tensor] = []
    for _ in range(n):
        kind = data.draw(st.sampled_from(["own", "own", "zero", "copy", "opposite", "near", "near opposite", "sum"]))
        if kind == "zero":
            row = torch.zeros(p, dtype=torch.float64)
        elif kind == "own" or not rows:
            row = torch.tensor(_vector(data, p), dtype=torch.float64)
        else:
            row = rows[data.draw(st.integers(0, len(rows) - 1))].clone()
            if kind == "sum":
                row = row + rows[data.draw(st.integers(0, len(rows) - 1))]
            if kind.startswith("near"):
                off = torch.tensor(_vector(data, p), dtype=torch.float64)
                row = row + 2.0 ** -data.draw(st.integers(3, 16)) * off
            if kind.endswith("opposite"):
                row = -row
        rows.append(row)
    return torch.stack(rows)


def _unit(rows: Tensor) -> Tensor:
    """Rows of length 1, or 0, however large or small they were."""
    largest = rows.abs().amax(-1, keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / torch.where(norm > 0, norm, 1.0)


def _least_angle(rows: Tensor) -> float:
    """The least singular value of any set of unit rows that are not dependent: how ill-posed the problem is."""
    unit = torch.unique(_unit(rows), dim=0).numpy()
    least = 1.0
    for size in range(2, min(rows.shape) + 1):
        for chosen in combinations(range(len(unit)), size):
            value = float(np.linalg.svd(unit[list(chosen)], compute_uv=False)[-1])
            least = value if 1e-14 < value < least else least
    return least


def _margin(data: st.DataObject) -> float:
    return data.draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 1e-6, 10.0]))


def _check_projection(gradient: Tensor, rows: Tensor, margin: float, answer: Tensor, tolerance: float) -> None:
    """Feasible, and the exact projection; for more than a few rows another, faster method may vouch for it."""
    assert torch.isfinite(answer).all()
    h = gradient + margin * rows.sum(0)
    size = float(torch.linalg.vector_norm(h)) or 1.0
    assert float((_unit(rows) @ (answer / size)).min()) >= -tolerance
    if len(rows) > 4:
        other = project_by_nnls(gradient.numpy(), rows.numpy(), np.full(len(rows), margin))
        if float(torch.linalg.vector_norm(answer - torch.from_numpy(other))) <= tolerance * size:
            return
    truth = torch.from_numpy(project_exactly(gradient.tolist(), rows.tolist(), margin))  # nnls errs, if seldom
    assert float(torch.linalg.vector_norm(answer - truth)) <= tolerance * size


@target(
    "the projection for rows of sizes 1e-12 to 1e12, repeated, opposite, nearly so, zero, more than dimensions", 100
)
def solver_project(data: st.DataObject, folder: Path) -> str:
    n, p = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    rows = _rows(data, n, p)
    exponents = data.draw(st.lists(st.integers(-40, 40), min_size=n, max_size=n))
    rows = rows * torch.tensor([2.0**e for e in exponents], dtype=torch.float64).unsqueeze(-1)
    gradient = torch.tensor(_vector(data, p), dtype=torch.float64) * 2.0 ** data.draw(st.integers(-40, 40))
    margin = _margin(data)
    with watched(folder):
        answer = congruency.project(gradient, rows, margin)
    assert answer.dtype == gradient.dtype
    assert torch.isfinite(answer).all()
    if (angle := _least_angle(rows)) < 1e-6:  # at the edge of what it tells apart
        return "ill-posed"
    _check_projection(gradient, rows, margin, answer, 1e-9 + 1e-14 / angle)
    return "changed" if bool((answer != gradient).any()) else "left alone"


@target("finite and feasible up to the ends of the range of floating-point numbers", 60)
def solver_extremes(data: st.DataObject, folder: Path) -> str:
    n, p = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32]))
    reach = 300 if dtype == torch.float64 else 36
    exponents = data.draw(st.lists(st.integers(-reach, reach), min_size=n + 1, max_size=n + 1))
    sizes = torch.tensor([10.0**e for e in exponents], dtype=torch.float64).unsqueeze(-1)
    rows = (_rows(data, n, p) * sizes[1:]).to(dtype)
    gradient = (torch.tensor(_vector(data, p), dtype=torch.float64) * sizes[0]).to(dtype)
    with watched(folder):
        answer = congruency.project(gradient, rows)
    assert torch.isfinite(answer).all()
    size = gradient.double().abs().amax() + (gradient == 0).all()
    slack = 1e-7 if dtype == torch.float64 else 1e-5
    assert float((_unit(rows.double()) @ (answer.double() / size)).min()) >= -slack
    return "changed" if bool((answer != gradient).any()) else "left alone"


@target("multipliers finite, at least the margin, and g + C'v the projection; one problem and a batch agree", 60)
def solver_dual(data: st.DataObject, folder: Path) -> str:
    n, p = data.draw(st.integers(1, 24)), data.draw(st.integers(1, 6))
    rows = _rows(data, min(n, 6), p)
    rows = rows[torch.tensor(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=n, max_size=n)))]
    gradient = torch.tensor(_vector(data, p), dtype=torch.float64)
    margin = _margin(data)
    gram, products = rows @ rows.mT, rows @ gradient
    with watched(folder):
        one = congruency.solve_dual(gram, products, margin)
        many = congruency.solve_dual(gram.expand(2, n, n), products.expand(2, n), margin)
    h = gradient + margin * rows.sum(0)
    size = float(torch.linalg.vector_norm(h)) or 1.0
    angle = _least_angle(rows)
    truth = torch.from_numpy(project_by_nnls(gradient.numpy(), rows.numpy(), np.full(n, margin)))
    for v in (one, *many):
        assert torch.isfinite(v).all()
        assert bool((v >= margin).all())
        # A Gram matrix holds the squares of angles: rows nearer than 3e-7 are one row, and digits go long before that.
        if angle > 1e-4:
            error = float(torch.linalg.vector_norm(gradient + v @ rows - truth))
            assert error <= (1e-9 + 1e-13 / angle**2) * size
    if angle <= 1e-4:
        return "ill-posed"
    return "violated" if bool((products < 0).any()) else "feasible"


@target("products that no gradient can have, of any size: multipliers finite and at least 0, no error", 60)
def solver_products(data: st.DataObject, folder: Path) -> str:
    n, p = data.draw(st.integers(1, 22)), data.draw(st.integers(1, 3))
    rows = _rows(data, min(n, 5), p) * 10.0 ** data.draw(st.integers(-60, 60))
    rows = rows[torch.arange(n) % len(rows)]
    drawn = st.lists(st.floats(-1, 1, allow_nan=False), min_size=1, max_size=5)
    products = torch.tensor((data.draw(drawn) * n)[:n], dtype=torch.float64) * 10.0 ** data.draw(st.integers(-60, 60))
    gram = rows @ rows.mT
    with watched(folder):
        one = congruency.solve_dual(gram, products)
        many = congruency.solve_dual(gram.expand(3, n, n), products.expand(3, n))
    for v in (one, *many):
        assert torch.isfinite(v).all()
        assert bool((v >= 0).all())
    return "answered"


@target("gradients corrected or, where a number is not finite, left bit for bit and counted; nothing raises", 60)
def corrector_steps(data: st.DataObject, folder: Path) -> str:
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]
    n, p = data.draw(st.integers(0, 5)), sum(sizes)
    rows = _rows(data, n, p).to(dtype) if n else torch.zeros(0, p, dtype=dtype)
    gradient = (torch.tensor(_vector(data, p)) * 10.0 ** data.draw(st.integers(-12, 12))).to(dtype)
    if broken := data.draw(st.booleans()):
        gradient[data.draw(st.integers(0, p - 1))] = data.draw(st.sampled_from([float("nan"), float("inf")]))
    for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
        parameter.grad = part.clone()
    directions = congruency.Directions(margin=_margin(data))
    directions.set([row.split(sizes) for row in rows], parameters)
    blocks = data.draw(st.sampled_from(["joint", "tensor"]))
    corrector = congruency.Corrector(
        torch.optim.SGD(parameters, lr=0.1), constraints=[directions], blocks=blocks, attach=False
    )
    with watched(folder):
        corrector.correct()
        stats = corrector.stats
    after = torch.cat([parameter.grad for parameter in parameters])  # type: ignore[misc]
    if broken:
        assert torch.equal(after.nan_to_num(7.0, 8.0, 9.0), gradient.nan_to_num(7.0, 8.0, 9.0))
        assert int(stats.nonfinite_steps) == 1
        return "not finite"
    assert torch.isfinite(after).all()
    if blocks == "joint" and n and dtype != torch.bfloat16:
        h = gradient.double() + directions.margin * rows.double().sum(0)
        size = float(torch.linalg.vector_norm(h)) or 1.0
        slack = 1e-4 if dtype == torch.float32 else 1e-6
        assert float((_unit(rows.double()) @ (after.double() / size)).min()) >= -slack
    return "corrected" if bool(stats.corrected.any()) else "left alone"
