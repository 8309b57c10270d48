"""The cone problem: properties over many shapes, independent solvers, ugly corners, answers known by hand."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import (
    ILL_CONDITIONED,
    assert_accurate,
    ill_conditioned,
    nnls,
    project_by_nnls,
    project_exactly,
    solve_dual_by_quadprog,
)
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
    return g * 10 ** (24 * torch.rand(batch, 1) - 12).double(), rows * 10 ** (
        24 * torch.rand(batch, n, 1) - 12
    ).double()


def _opposite_to_1e_7(batch: int, n: int, p: int) -> tuple[Tensor, Tensor]:
    """As close to each other's opposites as `project` can tell apart, and some closer."""
    g, rows = _random(batch, n, p)
    base = torch.randn(batch, 1, p, dtype=torch.float64)
    return g, (base + 1e-7 * rows) * torch.where(torch.rand(batch, n, 1) < 0.5, -1.0, 1.0)


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
SHAPES = [
    (1, 1),
    (1, 5),
    (2, 1),
    (2, 2),
    (2, 40),
    (3, 3),
    (4, 2),
    (4, 30),
    (5, 4),
    (7, 7),
    (10, 3),
    (10, 100),
    (20, 11),
    (33, 50),
    (64, 20),
    (64, 200),
]
family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.strip("_"))
shape = pytest.mark.parametrize(("n", "p"), SHAPES)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are solved faster by one thread than by several that wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["tensors", "compiled"])
def host_solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Have a test's `solve_dual` be the reference, and the compiled solver of the CPU's backend."""
    if request.param == "compiled":
        reason = "the compiled backend is not built here"
        native = pytest.importorskip("congruency.backends.native", reason=reason, exc_type=ImportError)
        if device.type != "cpu":
            pytest.skip("the compiled backend is for the CPU")

        def compiled(gram: Tensor, products: Tensor, margin: float | Tensor = 0.0) -> Tensor:
            batch, n = torch.broadcast_shapes(gram.shape[:-2], products.shape[:-1]), products.shape[-1]
            floor = torch.as_tensor(margin, dtype=torch.float64).expand(*batch, n).reshape(-1, n)
            k, p = gram.double().expand(*batch, n, n), products.double().expand(*batch, n)
            v = native.NativeBackend.solve_dual(k.reshape(-1, n, n), p.reshape(-1, n), floor)
            return v.view(*batch, n).to(products.dtype)

        monkeypatch.setattr(sys.modules[__name__], "solve_dual", compiled)


both_solvers = pytest.mark.usefixtures("host_solver")


def products(gradient: Tensor, constraints: Tensor) -> tuple[Tensor, Tensor]:
    """The Gram matrix and the products that `solve_dual` takes."""
    return constraints @ constraints.mT, (constraints @ gradient.unsqueeze(-1)).squeeze(-1)


def start(gradient: Tensor, constraints: Tensor, margin: float | Tensor) -> Tensor:
    """h = g + C' margin, whose projection onto the cone is the answer."""
    floor = torch.as_tensor(margin).to(constraints) + torch.zeros_like(constraints[..., 0])
    return gradient + (floor.unsqueeze(-2) @ constraints).squeeze(-2)


def unit(constraints: Tensor) -> Tensor:
    norm = constraints.norm(dim=-1, keepdim=True)
    return constraints / torch.where(norm > 0, norm, 1.0)


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
        weights = nnls(one.T, target)  # between nearly opposite rows these are large, and so is their rounding
        distance = np.linalg.norm(weights @ one - target)
        assert distance <= tolerance * bound + 4 * len(one) * np.finfo(np.float64).eps * weights.sum()


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


@both_solvers
@family
@shape
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_solve_dual_satisfies_the_optimality_conditions(
    family: Family, n: int, p: int, margin: float, device: torch.device
) -> None:
    g, rows = (tensor.to(device) for tensor in family(6, n, p))
    gram, dots = products(g, rows)
    assert_solves(gram, dots, margin, solve_dual(gram, dots, margin), 1e-12)


@family
@shape
def test_project_is_idempotent_and_positively_homogeneous(family: Family, n: int, p: int, device: torch.device) -> None:
    g, rows = (tensor.to(device) for tensor in family(6, n, p))
    x = project(g, rows)
    assert relative(project(x, rows) - x, g) < 1e-12
    # Powers of 2 round nothing. Any other factor turns the rows by a rounding, and the answer by that over their angle.
    for factor in (2.0**-30, 4.0, 2.0**30):
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
    g, rows = (tensor.to(device, dtype) for tensor in _random(40, n, p))
    if n > 1 and p > 1:
        rows[::2, 0, :] = 0  # a row orthogonal to g exactly, and one that is zero
        rows[::2, 0, 0], rows[::2, 0, 1] = -g[::2, 1], g[::2, 0]
        rows[1::2, 0] = 0
    dots = products(g.double(), rows.double())[1]
    rows[:20] = torch.where(dots[:20, :, None] < 0, -rows[:20], rows[:20])
    gram, dots = products(g.double(), rows.double())
    feasible = (dots >= 0).all(-1)
    assert feasible[:20].all()
    x = project(g, rows)
    assert x.dtype == dtype
    assert torch.equal(x[feasible], g[feasible])
    assert not solve_dual(gram, dots)[feasible].any()
    far = (unit(rows.double()) @ g.double().unsqueeze(-1)).squeeze(-1) < -0.05 * g.double().norm(dim=-1, keepdim=True)
    assert (x != g).any(-1)[far.any(-1)].all()


@both_solvers
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("n", [2, 6, 24])
def test_a_violation_within_rounding_is_none(n: int, batch: tuple[int, ...], device: torch.device) -> None:
    rows = torch.eye(n, dtype=torch.float64, device=device)
    g = torch.ones(n, dtype=torch.float64, device=device)
    g[0] = -1e-17
    assert not solve_dual(rows.expand(*batch, n, n), g).any()
    assert torch.equal(project(g, rows.expand(*batch, n, n)), g.expand(*batch, n))
    g[0] = -1e-14
    assert (solve_dual(rows.expand(*batch, n, n), g)[..., 0] / 1e-14 - 1).abs().max() < 1e-9
    assert (project(g, rows.expand(*batch, n, n))[..., 0].abs() < 1e-15).all()


def known(
    name: str, g: list[float], rows: list[list[float]], margin: float, x: list[float], v: list[float] | None
) -> object:
    return pytest.param(g, rows, margin, x, v, id=name)


KNOWN = [
    known("the only row is violated", [1, -1], [[0, 2]], 0.0, [1, 0], [0.5]),
    known("the only row agrees", [1, 1], [[0, 2]], 0.0, [1, 1], [0]),
    known("the margin binds", [1, 1], [[0, 2]], 0.5, [1, 2], [0.5]),
    known("the margin does not bind", [1, -3], [[0, 2]], 0.5, [1, 0], [1.5]),
    known("two orthogonal rows", [-1, -2, 3], [[1, 0, 0], [0, 4, 0]], 0.0, [0, 0, 3], [1, 0.5]),
    known("correcting one row corrects the other", [-1, 0], [[1, 0], [1, 1]], 0.0, [0, 0], None),
    known("one row binds and pushes the other inside", [-2, 1], [[1, 0], [3, 4]], 0.0, [0, 1], [2, 0]),
    known("both rows bind in a corner", [-2, -1], [[1, 0], [1, 1]], 0.0, [0, 0], [1, 1]),
    known("opposite rows leave the plane between them", [3, 4], [[1, 0], [-1, 0]], 0.0, [0, 4], None),
    known("rows all around leave nothing", [3, 4], [[1, 0], [-1, 1], [-1, -1]], 0.0, [0, 0], None),
    known("a repeated row counts once", [-3, 4], [[1, 0], [1, 0], [1, 0]], 0.0, [0, 4], None),
    known("every margin of a repeated row counts", [1, 4], [[1, 0], [1, 0]], 0.5, [2, 4], [0.5, 0.5]),
    known("a zero row is ignored", [-3, 4], [[0, 0], [1, 0]], 0.0, [0, 4], [0, 3]),
    known("a zero row keeps its margin", [-3, 4], [[0, 0], [1, 0]], 0.25, [0, 4], [0.25, 3]),
    known("a zero gradient stays", [0, 0], [[1, 2], [3, -4]], 0.0, [0, 0], [0, 0]),
    known("three rows of which one binds", [1, -2, 0], [[0, 1, 0], [1, 0, 0], [1, 1, 1]], 0.0, [1, 0, 0], [2, 0, 0]),
    known("five rows of which two bind", [-1, -1, 5], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]], 0.0,
          [0, 0, 5], [1, 1, 0, 0, 0]),
]  # fmt: skip


@both_solvers
@pytest.mark.parametrize(("g", "rows", "margin", "x", "v"), KNOWN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_answers_known_by_hand(
    g: list[float], rows: list[list[float]], margin: float, x: list[float], v: list[float] | None,
    dtype: torch.dtype, device: torch.device,
) -> None:  # fmt: skip
    gradient, constraints = torch.tensor(g, dtype=dtype, device=device), torch.tensor(rows, dtype=dtype, device=device)
    expected = torch.tensor(x, dtype=dtype, device=device)
    torch.testing.assert_close(project(gradient, constraints, margin), expected, rtol=1e-6, atol=1e-12)
    multipliers = solve_dual(*products(gradient, constraints), margin)
    torch.testing.assert_close(gradient + multipliers @ constraints, expected, rtol=1e-6, atol=1e-6)
    if v is not None:
        torch.testing.assert_close(multipliers, multipliers.new_tensor(v), rtol=1e-6, atol=1e-12)


@both_solvers
def test_many_random_problems_agree_with_quadprog(device: torch.device) -> None:
    """320 problems of each size from 1 to 64, of which 64 go through `project` too: 20,480 in all."""
    worst_v, worst_x = 0.0, 0.0
    for n in range(1, 65):
        g, rows = _random(320, n, 2 * n + 2) if n % 2 else _consecutive(320, n, 3 * n + 2)
        rows = unit(rows)
        margin = torch.rand(320, n, dtype=torch.float64) * torch.tensor([0.0, 0.0, 0.01, 1.0]).repeat(80).unsqueeze(-1)
        gram, dots = products(g, rows)
        v = solve_dual(gram.to(device), dots.to(device), margin.to(device)).cpu()
        expected = torch.from_numpy(
            np.stack(
                [solve_dual_by_quadprog(*one) for one in zip(gram.numpy(), dots.numpy(), margin.numpy(), strict=True)]
            )
        )
        worst_v = max(worst_v, relative(v - expected, start(g, rows, margin)))
        some = slice(None) if n <= 16 else slice(0, 64)
        x = project(g[some].to(device), rows[some].to(device), margin[some].to(device)).cpu()
        worst_x = max(worst_x, relative(x - start(g, rows, expected)[some], start(g, rows, margin)[some]))
    assert worst_v < 1e-9
    assert worst_x < 1e-9


SINGULAR = [_repeated, _opposite, _with_zeros, _integers, _random, _consecutive, _along_a_curve]


@both_solvers
@pytest.mark.parametrize("family", SINGULAR, ids=lambda family: family.__name__.strip("_"))
@pytest.mark.parametrize(("n", "p"), [(2, 1), (3, 2), (4, 3), (6, 3), (10, 5), (20, 10), (40, 12), (64, 30)])
def test_singular_problems_agree_with_nnls(family: Family, n: int, p: int, device: torch.device) -> None:
    """Where the Gram matrix is singular quadprog refuses, and the multipliers are not unique, but x is."""
    g, rows = family(24, n, p)
    margin = torch.rand(24, n, dtype=torch.float64) * torch.tensor([0.0, 1.0]).repeat(12).unsqueeze(-1)
    expected = torch.from_numpy(
        np.stack([project_by_nnls(*one) for one in zip(g.numpy(), rows.numpy(), margin.numpy(), strict=True)])
    )
    h = start(g, rows, margin)
    x = project(g.to(device), rows.to(device), margin.to(device)).cpu()
    assert relative(x - expected, h) < 1e-11
    gram, dots = products(g, rows)
    v = solve_dual(gram.to(device), dots.to(device), margin.to(device)).cpu()
    assert relative(start(g, rows, v) - expected, h) < 1e-7


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("opposite", [False, True])
def test_rows_close_to_each_other_are_distinguished(n: int, angle: float, opposite: bool, device: torch.device) -> None:
    """The answer is exact to rounding over the angle between rows, or between a row and the opposite of another."""
    for p in (2, 3, 5):
        for trial in range(20 if opposite else 6):
            base = torch.nn.functional.normalize(torch.randn(p, dtype=torch.float64), dim=0)
            sideways = torch.stack([torch.randperm(2 * n)[:n] - n for _ in range(p)], -1).double()
            rows = base + angle * (sideways - (sideways @ base).unsqueeze(-1) * base)
            if opposite:
                rows = rows * torch.where(torch.rand(n, 1) < 0.5, -1.0, 1.0)
            g = torch.randn(p, dtype=torch.float64)
            g = g if trial % 2 else angle * g - base
            expected = torch.from_numpy(project_exactly(g.tolist(), rows.tolist()))
            x = project(g.to(device), rows.to(device)).cpu()
            assert relative(x - expected, g) < 1e-13 + 3e-15 / angle


@both_solvers
@pytest.mark.parametrize("n", [2, 4, 5, 12, 20])
@pytest.mark.parametrize("angle", [1.0, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("kind", ILL_CONDITIONED)
def test_multipliers_are_as_accurate_as_stated(kind: str, angle: float, n: int, device: torch.device) -> None:
    g, rows, margins = (torch.from_numpy(part) for part in ill_conditioned(kind, angle, n))
    v = solve_dual(rows.to(device) @ rows.mT.to(device), rows.to(device) @ g.to(device), margins.to(device))
    assert_accurate(g.tolist(), rows.tolist(), margins.tolist(), v.tolist())


@pytest.mark.parametrize("kind", ["across", "along", "margins"])
def test_a_small_error_of_a_multiplier_is_noticed(kind: str) -> None:
    """Of a millionth where the problem is well-conditioned, and of 1e-8 of the gradient where it is not."""
    for angle, error in ((1.0, 1e-6), (1e-3, 1e-8)):
        g, rows, margins = (torch.from_numpy(part) for part in ill_conditioned(kind, angle, 12))
        v = solve_dual(rows @ rows.mT, rows @ g, margins)
        free = (v > margins).nonzero().flatten()
        v[free[0]] += error * (v if angle == 1 else g.norm() / rows.norm(dim=1))[free[0]]
        with pytest.raises(AssertionError, match=r"slope|violated"):
            assert_accurate(g.tolist(), rows.tolist(), margins.tolist(), v.tolist())


exponents = st.integers(-40, 40)  # of 2, which keeps products of small integers exact: 1e-12 to 1e12


@st.composite
def ugly_problems(draw: st.DrawFn) -> tuple[list[float], list[list[float]], float]:
    """Small integers times any power of two: repeated, opposite, zero and dependent rows of mixed scales."""
    p = draw(st.integers(1, 4))
    n = draw(st.integers(1, 6))
    entry = st.integers(-2, 2)
    vector = st.lists(entry, min_size=p, max_size=p)
    g = [2.0**k * value for k in [draw(exponents)] for value in draw(vector)]
    rows = [[2.0**k * value for value in draw(vector)] for k in draw(st.lists(exponents, min_size=n, max_size=n))]
    return g, rows, draw(st.sampled_from([0.0, 0.5, 3.0]))


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem=ugly_problems())
def test_ugly_problems_are_solved_exactly(
    problem: tuple[list[float], list[list[float]], float], device: torch.device
) -> None:
    g, rows, margin = problem
    gradient = torch.tensor(g, dtype=torch.float64, device=device)
    constraints = torch.tensor(rows, dtype=torch.float64, device=device)
    expected = torch.from_numpy(project_exactly(g, rows, margin)).to(device)
    h = start(gradient, constraints, margin)
    x = project(gradient, constraints, margin)
    assert relative(x - expected, h) < 1e-12
    gram, dots = products(gradient, constraints)
    for tensors in ((gram, dots), (gram.repeat(2, 1, 1), dots.repeat(2, 1))):
        v = solve_dual(*tensors, margin)
        assert v.isfinite().all()
        assert_solves(*tensors, margin, v, 1e-12)


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_nonsense_stays_finite(data: st.DataObject, device: torch.device) -> None:
    """No rows have such a Gram matrix, or no gradient has such products with them; still nothing breaks."""
    n = data.draw(st.integers(1, 9))
    number = st.builds(lambda mantissa, exponent: mantissa * 10.0**exponent, st.floats(-1, 1), st.integers(-12, 12))
    entries = torch.tensor(data.draw(st.lists(number, min_size=n * n, max_size=n * n)), dtype=torch.float64)
    dots = torch.tensor(data.draw(st.lists(number, min_size=n, max_size=n)), dtype=torch.float64, device=device)
    gram = entries.reshape(n, n).to(device)
    for one in (gram + gram.mT, gram @ gram.mT, torch.ones_like(gram), torch.zeros_like(gram)):
        for dtype in (torch.float64, torch.float32):
            one, dots = one.clamp(-1e30, 1e30).to(dtype), dots.to(dtype)
            for v in (solve_dual(one, dots, 0.5), solve_dual(one.repeat(2, 1, 1), dots, 0.5)):
                assert v.isfinite().all()
                assert (v >= 0.5).all()


@both_solvers
@pytest.mark.parametrize("n", [2, 3, 4, 5, 9, 20, 40])
def test_an_indefinite_gram_matrix_does_not_explode(n: int, device: torch.device) -> None:
    """Its problem has no minimum, but multipliers of a size that a gradient survives."""
    gram = torch.randn(50, n, n, dtype=torch.float64, device=device)
    gram = gram + gram.mT
    gram.diagonal(dim1=-2, dim2=-1).fill_(1)
    dots = torch.randn(50, n, dtype=torch.float64, device=device)
    assert solve_dual(gram, dots).max() < 1e5
    assert max(float(solve_dual(*one).max()) for one in zip(gram, dots, strict=True)) < 1e5


@pytest.mark.parametrize("n", [2, 4, 5, 12, 20, 40])
def test_a_gram_matrix_rounded_to_float32_will_do(n: int, device: torch.device) -> None:
    """It is not positive semidefinite any more, for rows as alike as those of consecutive steps."""
    g, rows = _consecutive(20, n, 50)
    g = g - 10 * rows.mean(1)
    gram, dots = products(g, rows)
    x = project(g, rows)
    for low in (gram.float(), gram.float().double()):
        v = solve_dual(low.to(device), dots.to(device)).cpu()
        alone = torch.stack([solve_dual(*one) for one in zip(low, dots, strict=True)])
        for multipliers in (v, alone):
            assert relative(start(g, rows, multipliers) - x, g) < 3e-3  # the root of the rounding, a few times


@both_solvers
@family
@pytest.mark.parametrize(("n", "p"), [(1, 3), (2, 5), (4, 9), (5, 4), (12, 30), (30, 20)])
def test_a_batch_is_solved_as_its_problems_one_by_one(family: Family, n: int, p: int, device: torch.device) -> None:
    g, rows = (tensor.to(device) for tensor in family(12, n, p))
    margin = torch.rand(12, n, dtype=torch.float64, device=device) * (torch.arange(12, device=device) % 2).unsqueeze(-1)
    x = project(g.reshape(3, 4, p), rows.reshape(3, 4, n, p), margin.reshape(3, 4, n)).reshape(12, p)
    alone = torch.stack([project(*one) for one in zip(g, rows, margin, strict=True)])
    assert relative(x - alone, start(g, rows, margin)) < 1e-12


@pytest.mark.parametrize("n", [1, 2, 6, 24])
def test_batch_dimensions_broadcast(n: int, device: torch.device) -> None:
    g, rows = (tensor.to(device) for tensor in _random(3, n, 2 * n + 1))
    margin = torch.rand(2, 1, n, dtype=torch.float64, device=device)
    full = project(g.expand(2, 3, -1), rows[0].expand(2, 3, -1, -1), margin.expand(2, 3, -1))
    torch.testing.assert_close(project(g, rows[0], margin), full)
    torch.testing.assert_close(project(g, rows[0], margin.float()), project(g, rows[0], margin.float().double()))
    gram, dots = products(g, rows[0])
    v = solve_dual(gram, dots, margin)
    assert v.shape == (2, 3, n)
    torch.testing.assert_close(start(g, rows[0], v), full)
    torch.testing.assert_close(solve_dual(gram, dots[0], margin[0, 0]), v[0, 0])
    torch.testing.assert_close(solve_dual(gram, dots, 0.5), solve_dual(gram, dots, torch.tensor(0.5, device=device)))


def _search_steps(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[int]:
    """Count the fits of a search: all problems of a batch take the same number of them."""
    count = [0]
    fit = kind.fit

    def counted(self: object, free: Tensor) -> object:
        count[0] += 1
        return fit(self, free)

    monkeypatch.setattr(kind, "fit", counted)
    return count


@pytest.mark.parametrize("family", [*FAMILIES, _opposite_to_1e_7], ids=lambda family: family.__name__.strip("_"))
@pytest.mark.parametrize(("n", "p"), [(5, 3), (9, 5), (16, 9), (20, 11), (20, 100), (64, 33), (64, 200)])
def test_a_gpu_needs_no_more_steps_than_it_takes(
    family: Family, n: int, p: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of the host, which continues until it is done, ends within the steps that a GPU is given."""
    if device.type != "cpu":
        pytest.skip("counts the steps of the host")
    g, rows = family(40, n, p)
    for kind, solve in ((cone._Gram, lambda: solve_dual(*products(g, rows))), (cone._Rows, lambda: project(g, rows))):
        count = _search_steps(monkeypatch, kind)
        solve()
        assert count[0] <= n + 28


@family
@pytest.mark.parametrize(("n", "p"), [(1, 3), (3, 5), (5, 4), (8, 20), (9, 6), (20, 30)])
def test_the_path_of_a_gpu_gives_the_same(
    family: Family, n: int, p: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without early exits and without looking at values, which is how a GPU is driven, on whatever device there is."""
    g, rows = (tensor.to(device) for tensor in family(4, n, p))
    gram, dots = products(g, rows)
    host = project(g, rows, 0.25), project(g, rows)
    monkeypatch.setattr(cone, "_on_host", lambda tensor: False)
    for x, y in zip(host, (project(g, rows, 0.25), project(g, rows)), strict=True):
        assert relative(x - y, start(g, rows, 0.25) + g.abs()) < 1e-12
    # Another solver may answer on the host: both are right to what the Gram matrix allows.
    for one in zip(g.tolist(), rows.tolist(), [[0.25] * n] * 4, solve_dual(gram, dots, 0.25).tolist(), strict=True):
        assert_accurate(*one)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 9])
def test_nothing_is_read_on_the_host(n: int) -> None:
    """Tensors on the meta device have no values, so that any look at them would raise."""
    g, rows = torch.empty(3, 7, device="meta"), torch.empty(3, n, 7, device="meta")
    margin = torch.empty(n, device="meta")
    for m in (0.5, margin):
        assert project(g, rows, m).shape == (3, 7)
        assert solve_dual(torch.empty(3, n, n, device="meta"), torch.empty(3, n, device="meta"), m).shape == (3, n)


@pytest.mark.parametrize("n", [1, 2, 5, 9, 20, 64])
def test_no_host_synchronisation(n: int, device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("only a GPU runs apart from the host")
    g, rows = (tensor.to(device) for tensor in _random(3, n, 30))
    gram, dots = products(g, rows)
    margin = torch.full((n,), 0.25, device=device, dtype=torch.float64)
    project(g, rows, margin)  # loads the libraries
    torch.cuda.set_sync_debug_mode("error")
    try:
        project(g, rows, margin)
        solve_dual(gram, dots, margin)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_answer_has_the_dtype_of_the_gradient(n: int, dtype: torch.dtype, device: torch.device) -> None:
    g, rows = (tensor.to(device, dtype) for tensor in _random(5, n, 12))
    before = g.clone(), rows.clone()
    x = project(g, rows)
    v = solve_dual(*(tensor.to(dtype) for tensor in products(g.double(), rows.double())))
    assert (x.dtype, v.dtype) == (dtype, dtype)
    assert x.device == g.device
    assert_projects(g.double(), rows.double(), 0.0, x.double(), 16 * torch.finfo(dtype).eps)
    assert torch.equal(g, before[0])
    assert torch.equal(rows, before[1])


def test_an_answer_beyond_the_dtype_is_cut_to_its_largest_number(device: torch.device) -> None:
    g = torch.tensor([6e4, 6e4], dtype=torch.float16, device=device)
    x = project(g, torch.tensor([[1.0, -2.0]], dtype=torch.float16, device=device))
    assert x.tolist() == [torch.finfo(torch.float16).max, 3.6e4]  # 7.2e4 is more than float16 holds


def test_gradients_do_not_flow_and_strides_do_not_matter(device: torch.device) -> None:
    g, rows = (tensor.to(device) for tensor in _random(4, 6, 9))
    strided = rows.movedim(0, -1).contiguous().movedim(-1, 0).requires_grad_()
    x = project(g.requires_grad_(), strided, 0.5)
    assert not x.requires_grad
    torch.testing.assert_close(x, project(g.detach(), rows, 0.5))


def test_empty_problems(device: torch.device) -> None:
    g = torch.randn(3, 5, device=device)
    x = project(g, torch.empty(0, 5, device=device))
    assert torch.equal(x, g)
    assert x.data_ptr() != g.data_ptr()
    assert project(torch.empty(4, 0, device=device), torch.empty(2, 0, device=device), 0.5).shape == (4, 0)
    assert project(torch.empty(0, 5, device=device), torch.randn(2, 5, device=device)).shape == (0, 5)
    assert solve_dual(torch.empty(3, 0, 0, device=device), torch.empty(0, device=device)).shape == (3, 0)
    assert solve_dual(torch.empty(0, 7, 7, device=device), torch.empty(7, device=device), 1.0).shape == (0, 7)


def test_the_answer_is_never_a_view_of_the_gradient(device: torch.device) -> None:
    g, rows = torch.ones(2, device=device), torch.eye(2, device=device)
    project(g, rows).fill_(7)
    assert torch.equal(g, torch.ones(2, device=device))


ERRORS = [
    (lambda: solve_dual(torch.eye(4), torch.ones(3)), ValueError,
     r"gram must have shape \(\.\.\., n, n\) with n = 3 from products, got \(4, 4\)"),
    (lambda: solve_dual(torch.ones(3), torch.ones(3)), ValueError, r"gram must have shape .* got \(3,\)"),
    (lambda: solve_dual(torch.eye(1), torch.tensor(1.0)), ValueError, r"products must have shape .*, n\), got \(\)"),
    (lambda: solve_dual(torch.eye(3).long(), torch.ones(3)), TypeError,
     "gram must be a floating-point tensor, got torch.int64"),
    (lambda: solve_dual(torch.eye(3), torch.ones(3).bool()), TypeError,
     "products must be a floating-point tensor, got torch.bool"),
    (lambda: solve_dual(torch.eye(3).expand(2, 3, 3), torch.ones(5, 3)), ValueError,
     r"batch dimensions must broadcast, got \(2,\) of gram, \(5,\) of products, \(\) of margin"),
    (lambda: project(torch.ones(3), torch.ones(2, 4)), ValueError,
     r"constraints must have shape \(\.\.\., n, p\) with p = 3 from gradient, got \(2, 4\)"),
    (lambda: project(torch.ones(3), torch.ones(3)), ValueError, r"constraints must have shape .* got \(3,\)"),
    (lambda: project(torch.tensor(1.0), torch.ones(1, 1)), ValueError, r"gradient must have shape .* got \(\)"),
    (lambda: project(torch.ones(3).cfloat(), torch.ones(2, 3)), TypeError, "gradient must be a floating-point tensor"),
    (lambda: project(torch.ones(2, 3), torch.ones(5, 2, 3)), ValueError,
     r"batch dimensions must broadcast, got \(2,\) of gradient, \(5,\) of constraints"),
    (lambda: project(torch.ones(3), torch.ones(2, 3, device="meta")), ValueError,
     "constraints must be on the device of gradient, cpu, got meta"),
    (lambda: project(torch.ones(3), torch.ones(2, 3), torch.ones(2, device="meta")), ValueError,
     "margin must be on the device of gradient, cpu, got meta"),
    (lambda: project(torch.ones(3), torch.ones(2, 3), -0.1), ValueError, "margin must be finite and >= 0, got -0.1"),
    (lambda: solve_dual(torch.eye(3), torch.ones(3), math.nan), ValueError, "margin must be finite and >= 0, got nan"),
    (lambda: solve_dual(torch.eye(3), torch.ones(3), math.inf), ValueError, "margin must be finite and >= 0, got inf"),
    (lambda: solve_dual(torch.eye(3), torch.ones(3), torch.tensor([0.0, -1.0, 0.0])), ValueError,
     r"margin must be finite and >= 0, got \[0.0, -1.0, 0.0\]"),
    (lambda: solve_dual(torch.eye(3), torch.ones(3), torch.zeros(2)), ValueError,
     r"margin must broadcast to shape \(\.\.\., n\) with n = 3, got \(2,\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_errors_say_what_was_wrong(call: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
