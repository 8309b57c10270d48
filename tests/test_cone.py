"""The cone problem: properties over many shapes, independent solvers, ugly corners, answers known by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import project_by_nnls, project_exactly, solve_dual_by_quadprog
from torch import Tensor

from congruency import cone
from congruency.cone import project, solve_dual

Family = Callable[[int, int, int], tuple[Tensor, Tensor]]


def _random(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, p, dtype=torch.float64), torch.randn(batch, n, p, dtype=torch.float64)


def _consecutive(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    """Rows r_i - w of consecutive steps with a drift, as DCL makes them."""
    g, steps = _random(batch, n, p)
    return g, -(steps + torch.randn(batch, 1, p, dtype=torch.float64)).flip(1).cumsum(1).flip(1)


def _along_a_curve(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    g, basis = _random(batch, 4, p)
    powers = torch.linspace(1, 2, n, dtype=torch.float64).unsqueeze(-1) ** torch.arange(4)
    return g, powers @ basis


def _collinear(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    g, rows = _random(batch, n, p)
    base = torch.randn(batch, 1, p, dtype=torch.float64)
    return 1e-3 * g - base.squeeze(1), base + 1e-3 * rows


def _nearly_opposite(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    g, rows = _collinear(batch, n, p)
    return g + torch.randn_like(g), rows * torch.where(torch.rand(batch, n, 1) < 0.5, -1.0, 1.0)


def _repeated(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    g, rows = _random(batch, n, p)
    return g, rows[:, torch.randint(0, (n + 1) // 2, (n,))]


def _opposite(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    g, rows = _repeated(batch, n, p)
    return g, rows * torch.where(torch.rand(batch, n, 1) < 0.5, -1.0, 1.0)


def _with_zeros(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    g, rows = _random(batch, n, p)
    return g, rows * (torch.rand(batch, n, 1) < 0.5)


def _integers(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    """Many ties, dependent rows and gradients on the boundary."""
    return torch.randint(-1, 2, (batch, p)).double(), torch.randint(-1, 2, (batch, n, p)).double()


def _mixed_scales(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    g, rows = _random(batch, n, p)
    return g * 10 ** (24 * torch.rand(batch, 1) - 12).double(), rows * 10 ** (24 * torch.rand(batch, n, 1) - 12).double()


FAMILIES: list[Family] = [
    _random,
    _consecutive,
    _along_a_curve,
    _collinear,
    _nearly_opposite,
    _repeated,
    _opposite,
    _with_zeros,
    _integers,
    _mixed_scales,
]
SHAPES = [(1, 1), (1, 5), (2, 1), (2, 2), (2, 40), (3, 3), (4, 2), (4, 30), (5, 4), (7, 7), (10, 3), (10, 100), (20, 11), (33, 50), (64, 20), (64, 200)]
family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.strip("_"))
shape = pytest.mark.parametrize(("n", "p"), SHAPES)


def products(gradient: Tensor, constraints: Tensor) -> tuple[Tensor, Tensor]:
    """The Gram matrix and the products that `solve_dual` takes."""
    return constraints @ constraints.mT, (constraints @ gradient.unsqueeze(-1)).squeeze(-1)


def start(gradient: Tensor, constraints: Tensor, margin: float | Tensor) -> Tensor:
    """h = g + C' margin, whose projection onto the cone is the answer."""
    floor = torch.as_tensor(margin).to(constraints).expand(constraints.shape[:-1])
    return gradient + (floor.unsqueeze(-2) @ constraints).squeeze(-2)


def unit(constraints: Tensor) -> Tensor:
    norm = constraints.norm(dim=-1, keepdim=True)
    return constraints / torch.where(norm > 0, norm, 1.0)


def distance_from_cone(rows: np.ndarray, target: np.ndarray) -> float:
    """How far a vector is from every combination of the rows with non-negative weights."""
    return float(np.linalg.norm(project_by_nnls(-target, rows, np.zeros(len(rows)))))


def relative(error: Tensor, size: Tensor) -> float:
    """The largest norm of an error, relative to the size of its problem."""
    return float((error.norm(dim=-1) / size.norm(dim=-1).clamp(min=1e-300)).max())


def assert_projects(gradient: Tensor, constraints: Tensor, margin: float | Tensor, x: Tensor, tolerance: float) -> None:
    """Check that x is the projection of h: x feasible, the step x - h in the cone of the rows, and orthogonal to x."""
    h = start(gradient, constraints, margin)
    size = h.norm(dim=-1, keepdim=True)
    rows = unit(constraints)
    step = x - h
    assert ((rows @ x.unsqueeze(-1)).squeeze(-1) >= -tolerance * size).all()
    assert ((x * step).sum(-1, keepdim=True).abs() <= tolerance * size**2).all()
    for one, target, bound in zip(rows.cpu().numpy(), step.cpu().numpy(), size.cpu().numpy(), strict=True):
        assert distance_from_cone(one, target) <= tolerance * bound


def assert_solves(gram: Tensor, products: Tensor, margin: float | Tensor, v: Tensor, tolerance: float) -> None:
    """Check the Karush-Kuhn-Tucker conditions of the dual: v >= margin, Kv + p >= 0, and one of the two tight."""
    norm = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    inverse = torch.where(norm > 0, 1 / norm, 0.0)
    floor = torch.as_tensor(margin).to(v).expand_as(v)
    assert (v >= floor).all()
    assert (v == floor)[norm == 0].all()
    # In units of unit rows a multiplier and a slope are of one size, and so is the rounding of both.
    slope = ((gram @ v.unsqueeze(-1)).squeeze(-1) + products) * inverse
    size = ((gram.abs() @ v.unsqueeze(-1)).squeeze(-1) + products.abs()) * inverse
    residual = torch.minimum((v - floor) * norm, slope)
    assert (residual.abs() <= tolerance * size.amax(-1, keepdim=True)).all()


@family
@shape
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_project_satisfies_the_optimality_conditions(
    family: Family, n: int, p: int, margin: float, device: torch.device
) -> None:
    g, rows = (tensor.to(device) for tensor in family(4, n, p))
    assert_projects(g, rows, margin, project(g, rows, margin), 1e-12)


@family
@shape
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_solve_dual_satisfies_the_optimality_conditions(
    family: Family, n: int, p: int, margin: float, device: torch.device
) -> None:
    g, rows = (tensor.to(device) for tensor in family(6, n, p))
    gram, dots = products(g, rows)
    assert_solves(gram, dots, margin, solve_dual(gram, dots, margin), 1e-12)
    for one, dot in zip(gram, dots, strict=True):  # on the host, another method than that of the batch
        assert_solves(one, dot, margin, solve_dual(one, dot, margin), 1e-12)


@family
@shape
def test_project_is_idempotent_and_positively_homogeneous(
    family: Family, n: int, p: int, device: torch.device
) -> None:
    g, rows = (tensor.to(device) for tensor in family(6, n, p))
    x = project(g, rows)
    assert relative(project(x, rows) - x, g) < 1e-12
    for factor in (1e-9, 3.0, 1e9):
        assert relative(project(factor * g, rows) - factor * x, factor * g) < 1e-12
        assert relative(project(g, factor * rows) - x, g) < 1e-12
    assert (x.norm(dim=-1) <= g.norm(dim=-1) * (1 + 1e-12)).all()


@family
@shape
def test_the_order_of_the_rows_does_not_matter(family: Family, n: int, p: int, device: torch.device) -> None:
    g, rows = (tensor.to(device) for tensor in family(6, n, p))
    margin = torch.rand(n, dtype=torch.float64, device=device)
    order = torch.randperm(n, device=device)
    x = project(g, rows, margin)
    assert relative(project(g, rows[:, order], margin[order]) - x, start(g, rows, margin)) < 1e-11


@shape
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_feasible_gradient_comes_back_bit_for_bit(n: int, p: int, dtype: torch.dtype, device: torch.device) -> None:
    rows = torch.randn(30, n, p, dtype=torch.float64)
    g = torch.randn(30, p, dtype=torch.float64)
    g = torch.where(torch.rand(30, 1) < 0.5, project(g, rows) + rows.abs().sum(1) * rows[:, 0].sign() * 0, g)
    g, rows = g.to(device, dtype), rows.to(device, dtype)
    gram, dots = products(g.double(), rows.double())
    feasible = (dots >= 0).all(-1)
    x = project(g, rows)
    assert torch.equal(x[feasible], g[feasible])
    assert (solve_dual(gram, dots)[feasible] == 0).all()
    violated = (dots < -1e-3 * rows.double().norm(dim=-1) * g.double().norm(dim=-1, keepdim=True)).any(-1)
    assert (x[violated] != g[violated]).any(-1).all()
