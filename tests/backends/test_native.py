"""The compiled passes against numpy in float64 and against plain torch, and what no comparison shows."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from oracles import assert_accurate
from solutions import solution_of
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import congruency
from congruency.backends import Basis, ParameterSlice, Problem, Solution
from congruency.backends.torch import TorchBackend

native = pytest.importorskip(
    "congruency.backends.native", reason="the compiled backend is not built here", exc_type=ImportError
)

# How many basis vectors come from each source, and whether they are differences of consecutive tensors.
Sources = list[tuple[int, bool]]
SOURCES: dict[str, Sources] = {
    "none": [],
    "difference": [(1, True)],
    "plain": [(1, False)],
    "two": [(2, True)],
    "three mixed": [(2, True), (1, False)],
    "ten": [(10, True)],
    "twenty mixed": [(1, False), (12, True), (7, False)],
    "sixty-four": [(64, True)],
}
SHAPES = {
    "one": [(1,)],
    "odd": [(1,), (15,), (16,), (17,), (1023,), (1024,), (1025,), (3, 5, 7)],
    "unit and a bit": [(65535,), (3,), (65537,)],
    "many": [(7, 3)] * 300,
    "with empty": [(0,), (33,), (0, 4), (100, 100), (0,)],
}
DTYPES = [torch.float32, torch.float64]
# No float32 sum has more than 1024 terms, fewer where lanes share them: 2^-24 times the root of that, twice over.
TOLERANCE = {torch.float32: 4e-6, torch.float64: 1e-13}


def make_slice(gradient: Tensor, sources: Sources, block: int = 0) -> ParameterSlice:
    def near() -> Tensor:
        return torch.randn_like(gradient)  # of the same memory layout

    bases = [Basis([near() for _ in range(count + chained)], chained) for count, chained in sources]
    return ParameterSlice(gradient, bases, block)


def make_slices(
    shapes: list[tuple[int, ...]], sources: Sources, dtype: torch.dtype, blocks: int = 1
) -> list[ParameterSlice]:
    return [make_slice(torch.randn(shape, dtype=dtype), sources, i % blocks) for i, shape in enumerate(shapes)]


def size_of(sources: Sources) -> int:
    return sum(count for count, _ in sources)


def exact_rows(item: ParameterSlice) -> np.ndarray:
    """(1 + size, elements) the gradient and the basis vectors, in float64."""

    def flat(tensor: Tensor) -> np.ndarray:
        return tensor.detach().double().numpy().reshape(-1)

    vectors = [flat(item.target)]
    for tensors, chained, _ in item.bases:
        values = [flat(tensor) for tensor in tensors]
        vectors += [b - a for a, b in itertools.pairwise(values)] if chained else values
    return np.stack(vectors)


def exact_gram(slices: list[ParameterSlice], size: int, blocks: int) -> np.ndarray:
    total = np.zeros((blocks, 1 + size, 1 + size))
    for item in slices:
        vectors = exact_rows(item)
        total[item.block] += vectors @ vectors.T
    return total


def backend(slices: list[ParameterSlice], size: int, blocks: int = 1) -> native.NativeBackend:
    return native.NativeBackend(slices, size, blocks, torch.device("cpu"))


def gram(slices: list[ParameterSlice], size: int, blocks: int = 1, *, wide: bool = False) -> np.ndarray:
    found = backend(slices, size, blocks).gram(wide=wide)
    assert found.shape == (blocks, 1 + size, 1 + size)
    assert found.dtype == torch.float64
    return found.numpy()


def solution(coefficients: list[list[float] | None], size: int) -> Solution:
    """Coefficients of every block, None for those left alone."""
    numbers = [[0.0] * size if each is None else each for each in coefficients]
    applied = torch.tensor([each is not None for each in coefficients])
    return solution_of(torch.tensor(numbers, dtype=torch.float64).view(len(coefficients), -1), applied)


def assert_gram_matches(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Each inner product to within ``tolerance`` of the norms' product, the scale of its rounding errors."""
    norms = np.sqrt(np.diagonal(expected, axis1=1, axis2=2))
    scale = norms[:, :, None] * norms[:, None, :]
    assert np.all(np.abs(found - expected) <= tolerance * scale)


def check_both_passes(slices: list[ParameterSlice], size: int, tolerance: float, blocks: int = 1) -> None:
    """Compare with numpy; every other block is left alone."""
    assert_gram_matches(gram(slices, size, blocks), exact_gram(slices, size, blocks), tolerance)
    coefficients = [None if block % 2 else torch.randn(size).tolist() for block in range(blocks)]
    before = [item.target.clone() for item in slices]
    expected = [
        old if coefficients[item.block] is None else exact_combination(item, coefficients[item.block])
        for item, old in zip(slices, before, strict=True)
    ]
    backend(slices, size, blocks).apply(solution(coefficients, size))
    for item, old, new in zip(slices, before, expected, strict=True):
        if coefficients[item.block] is None:
            assert torch.equal(item.target, old)
        else:
            # a sum of size + 1 terms of order 1, each with a rounding error of its own
            torch.testing.assert_close(item.target.double(), new, rtol=0, atol=10 * (1 + size) * min(tolerance, 1e-6))


def exact_combination(item: ParameterSlice, factors: list[float]) -> Tensor:
    combined = np.array([1.0, *factors]) @ exact_rows(item)
    return torch.from_numpy(combined).view(item.target.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("sources", SOURCES)
def test_both_passes_match_numpy(sources: str, shapes: str, dtype: torch.dtype) -> None:
    slices = make_slices(SHAPES[shapes], SOURCES[sources], dtype)
    check_both_passes(slices, size_of(SOURCES[sources]), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sources", ["none", "difference", "three mixed", "twenty mixed"])
def test_blocks_are_kept_apart_and_those_left_alone_keep_their_bits(sources: str, dtype: torch.dtype) -> None:
    slices = make_slices([(40, 40), (10,), (3, 3000), (1,), (9000,), (0,)], SOURCES[sources], dtype, blocks=4)
    check_both_passes(slices, size_of(SOURCES[sources]), TOLERANCE[dtype], blocks=4)


@pytest.fixture(params=[4, 8, 16])
def width(request: pytest.FixtureRequest) -> Iterator[None]:
    """Vectors of so many float32 numbers, as on processors with no wider registers."""
    taken = native._native.vectors(request.param)
    if taken != request.param:
        pytest.skip(f"this processor has registers of {taken} numbers at most")
    yield
    native._native.vectors(16)


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize("sources", ["difference", "two", "three mixed", "ten"])
def test_every_width_of_vectors_matches_numpy(sources: str) -> None:
    """Of few elements, and of so many that all products are formed in float32."""
    for shapes in (SHAPES["odd"], [(70000,), (33,), (70001,)]):
        slices = make_slices(shapes, SOURCES[sources], torch.float32)
        check_both_passes(slices, size_of(SOURCES[sources]), TOLERANCE[torch.float32])


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize("size", [1, 2, 3, 12])
def test_every_width_of_vectors_takes_known_products(size: int) -> None:
    """Of vectors that are fixed but for the last one, as of references within a window."""
    slices = make_slices(SHAPES["odd"], [(size, True)], torch.float32)
    slices = [item._replace(bases=[item.bases[0]._replace(fixed=size - 1)]) for item in slices]
    expected = exact_gram(slices, size, 1)
    known = torch.from_numpy(expected).clone()
    known[:, 0] = known[:, :, 0] = known[:, size] = known[:, :, size] = torch.nan  # these are to be formed
    found = backend(slices, size).gram(known=known).numpy()
    assert_gram_matches(np.triu(found[0])[None], np.triu(expected[0])[None], TOLERANCE[torch.float32])


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize(("before", "after"), [(1, 0), (4, 0), (5, 0), (11, 0), (3, 4), (0, 7)])
def test_known_products_where_some_runs_are_too_narrow(before: int, after: int) -> None:
    """Fixed vectors before and after the one that moves; the gradient or that one is tiny in some runs."""
    size = before + 1 + after
    target = torch.randn(30_000)
    target[9216:10240] = 1e-22 * torch.randn(1024)  # its square is no float32 number, but the whole's length is
    chain, fixed = [torch.randn(30_000) for _ in range(before + 2)], [torch.randn(30_000) for _ in range(after)]
    chain[-1][20480:21504] = chain[-2][20480:21504] * (1 + 2.0**-20)
    chain[-1][:1024], chain[-2][:1024] = 1e-25, 3e-25
    item = ParameterSlice(target, [Basis(chain, True, before), Basis(fixed, fixed=after)], 0)
    expected = exact_gram([item], size, 1)
    known = torch.from_numpy(expected).clone()
    known[:, 0] = known[:, :, 0] = known[:, 1 + before] = known[:, :, 1 + before] = torch.nan
    found = backend([item], size).gram(known=known).numpy()
    assert_gram_matches(np.triu(found[0])[None], np.triu(expected[0])[None], TOLERANCE[torch.float32])


@pytest.mark.parametrize("sources", ["none", "difference", "plain", "ten"])
def test_agrees_with_plain_torch(sources: str) -> None:
    size = size_of(SOURCES[sources])
    slices = make_slices([(100, 784), (100,), (10, 100)], SOURCES[sources], torch.float32)
    twins = [item._replace(target=item.target.clone()) for item in slices]
    ours, plain = backend(slices, size), TorchBackend(twins, size, 1, torch.device("cpu"))
    np.testing.assert_allclose(ours.gram(), plain.gram(), rtol=1e-4, atol=1e-2)
    factors = solution([torch.randn(size).tolist()], size)
    ours.apply(factors)
    plain.apply(factors)
    for item, twin in zip(slices, twins, strict=True):
        torch.testing.assert_close(item.target, twin.target)


def test_more_elements_than_the_caches_hold() -> None:
    check_both_passes(make_slices([(3_000_000,), (5,), (1_500_001,)], [(1, True)], torch.float32), 1, 1e-6)


@pytest.mark.parametrize("count", [65, 600])
def test_there_may_be_more_vectors_than_the_scratch_was_made_for(count: int) -> None:
    check_both_passes(make_slices([(50,)], [(count, False)], torch.float32), count, 1e-6)


def test_channels_last_is_walked_in_memory_order() -> None:
    gradient = torch.randn(8, 6, 3, 3).to(memory_format=torch.channels_last)
    slices = [make_slice(gradient, [(2, True)]), make_slice(torch.randn(8), [(2, True)])]
    assert not taken_by_torch(slices)
    check_both_passes(slices, 2, 1e-6)


def test_unaligned_views() -> None:
    def view(offset: int) -> Tensor:
        return torch.randn(5000)[offset : offset + 4321]

    item = ParameterSlice(view(1), [Basis([view(3), view(7), view(2)], True)], 0)
    assert not taken_by_torch([item])
    check_both_passes([item], 2, 1e-6)


def taken_by_torch(slices: list[ParameterSlice]) -> list[ParameterSlice]:
    return native._split(slices)[1]


def test_what_it_cannot_take_goes_to_torch_and_is_added() -> None:
    plain = make_slice(torch.randn(50, 20), [(2, True)])
    wide = make_slice(torch.randn(30, dtype=torch.float64), [(2, True)])
    unchained = make_slice(torch.randn(70), [(2, False)])
    half = make_slice(torch.randn(40, dtype=torch.bfloat16), [(2, True)])
    mixed = ParameterSlice(torch.randn(40), [Basis([torch.randn(40, dtype=torch.float64) for _ in range(3)], True)], 0)
    turned = ParameterSlice(torch.randn(9, 5).t(), [Basis([torch.randn(5, 9) for _ in range(3)], True)], 0)
    gappy = make_slice(torch.randn(40, 3)[:, 0], [(2, True)])
    flipped = ParameterSlice(torch._neg_view(torch.randn(6)), [Basis([torch.randn(6) for _ in range(3)], True)], 0)
    slices = [plain, half, wide, mixed, unchained, turned, gappy, flipped]
    assert [id(item) for item in taken_by_torch(slices)] == [id(p) for p in (half, mixed, turned, gappy, flipped)]
    expected = exact_gram([item for item in slices if item is not flipped], 2, 1)
    expected += exact_gram([flipped._replace(target=flipped.target.resolve_neg())], 2, 1)
    assert_gram_matches(gram(slices, 2), expected, 1e-6)
    twins = [item._replace(target=item.target.clone()) for item in slices]
    backend(slices, 2).apply(solution([[0.5, -2.0]], 2))
    TorchBackend(twins, 2, 1, torch.device("cpu")).apply(solution([[0.5, -2.0]], 2))
    for item, twin in zip(slices, twins, strict=True):
        torch.testing.assert_close(item.target, twin.target)


def test_vectors_of_another_length_are_left_to_torch_which_refuses_them() -> None:
    item = ParameterSlice(torch.randn(100), [Basis([torch.randn(100), torch.randn(90)], True)], 0)
    with pytest.raises(RuntimeError, match="size"):
        backend([item], 1).gram()


def test_wrong_numbers_are_refused() -> None:
    slices = make_slices([(5,)], [(2, True)], torch.float32)
    with pytest.raises(ValueError, match="a slice has block 0, but there are 0"):
        backend(slices, 2, 0)
    with pytest.raises(ValueError, match="1 x 2 coefficients are needed"):
        backend(slices, 2).apply(solution([[1.0]], 1))
    with pytest.raises(ValueError, match="1 x 2 coefficients are needed"):
        backend(slices, 2).apply(solution([[1.0, 2.0], None], 2))


def test_nothing_is_kept_alive() -> None:
    gradient = torch.randn(10)
    slices = [make_slice(gradient, [(1, True)])]
    held = sys.getrefcount(gradient), sys.getrefcount(torch.float32), sys.getrefcount(slices[0].bases[0].tensors[0])
    for _ in range(10):
        passes = backend(slices, 1)
        passes.gram()
        passes.apply(solution([[0.0]], 1))
        del passes
    after = sys.getrefcount(gradient), sys.getrefcount(torch.float32), sys.getrefcount(slices[0].bases[0].tensors[0])
    assert after == held


def test_no_slices() -> None:
    passes = backend([], 1, 2)
    assert passes.gram().tolist() == [[[0.0, 0.0], [0.0, 0.0]]] * 2
    passes.apply(solution([[1.0], None], 1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 20_000, 39_999])
@pytest.mark.parametrize("sources", ["none", "difference", "ten"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_seen(dtype: torch.dtype, sources: str, place: int, value: float) -> None:
    size = size_of(SOURCES[sources])
    slices = make_slices([(10,), (40_000,)], SOURCES[sources], dtype)
    slices[1].target[place] = value
    assert not np.isfinite(gram(slices, size)[0, 0]).any()
    if size:
        slices[1].target[place] = 1.0
        slices[1].bases[0].tensors[1][place] = value
        assert not np.isfinite(gram(slices, size)[0, 1]).any()


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e22, 1e30])
def test_squares_beyond_the_range_of_float32(scale: float) -> None:
    item = make_slice(torch.randn(5000) * scale, [(1, False)])
    assert_gram_matches(gram([item], 1), exact_gram([item], 1, 1), 1e-6)
    swapped = ParameterSlice(item.bases[0].tensors[0], [Basis([item.target], False)], 0)
    assert_gram_matches(gram([swapped], 1), exact_gram([swapped], 1, 1), 1e-6)
    expected = exact_combination(swapped, [1 / scale])
    backend([swapped], 1).apply(solution([[1 / scale]], 1))
    torch.testing.assert_close(swapped.target.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sources", ["difference", "ten"])
def test_zeros_are_exact(sources: str) -> None:
    size = size_of(SOURCES[sources])
    item = ParameterSlice(torch.zeros(3000), [Basis([torch.randn(3000)] * (size + 1), True)], 0)
    assert not gram([item], size).any()


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
    native._setup(torch._C.__file__)


@pytest.mark.parametrize("own", [False, True], ids=["torch's threads", "own threads"])
@pytest.mark.parametrize("sources", ["difference", "ten"])
def test_threads_change_no_bit(sources: str, own: bool, threads: object) -> None:
    if own:
        native._setup("no library, so no OpenMP")
    size = size_of(SOURCES[sources])
    slices = make_slices([(1_200_000,), (77,), (300, 301)], SOURCES[sources], torch.float32, blocks=2)
    gradients = [item.target.clone() for item in slices]
    results = []
    for count in (1, 2, 2, 3, 5):
        threads(count)
        for item, gradient in zip(slices, gradients, strict=True):
            item.target.copy_(gradient)
        passes = backend(slices, size, 2)
        sums = passes.gram()
        passes.apply(solution([[0.1] * size, [-0.2] * size], size))
        results.append((sums, [item.target.clone() for item in slices]))
    first_sums, first_gradients = results[0]
    for sums, corrected in results[1:]:
        assert torch.equal(sums, first_sums)
        assert all(torch.equal(a, b) for a, b in zip(corrected, first_gradients, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vector_may_be_the_gradient_itself(dtype: torch.dtype) -> None:
    gradient = torch.randn(5000, dtype=dtype)
    others = [torch.randn(5000, dtype=dtype) for _ in range(10)]  # so many that they are not all added at once
    expected = gradient * (1 + 2 - 3) + sum(others)
    basis, factors = Basis([gradient, *others, gradient]), [2.0, *[1.0] * len(others), -3.0]
    backend([ParameterSlice(gradient, [basis], 0)], len(factors)).apply(solution([factors], len(factors)))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-4)  # sums of 13 terms of order 1


def test_autograd_learns_that_a_gradient_has_changed() -> None:
    weight = torch.nn.Parameter(torch.randn(10))
    (weight.grad,) = torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)
    penalty = weight.grad.pow(2).sum()
    directions = congruency.Directions()
    directions.set([[-weight.grad.detach()]], [weight])
    corrector = congruency.Corrector(torch.optim.SGD([weight]), constraints=[directions], attach=False)
    corrector.correct()
    assert bool(corrector.stats.corrected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        penalty.backward()


class Grams(Dataset[Tensor]):
    """Makes the first pass in whatever process asks."""

    def __init__(self, slices: list[ParameterSlice]) -> None:
        self.slices = slices

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Tensor:
        return backend(self.slices, 1).gram()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_worker_makes_the_same_sums() -> None:
    dataset = Grams(make_slices([(500_000,)], [(1, True)], torch.float32))
    here = dataset[0]  # starts torch's threads, which a fork does not copy
    (there,) = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert torch.equal(there, here)


@pytest.mark.parametrize("n", [2, 3, 7, 20])
@pytest.mark.parametrize("only_violated", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1024.0])
def test_a_step_is_solved_as_by_tensors(n: int, only_violated: bool, factor: float) -> None:
    """Both to the accuracy that the inner products allow; they may differ by more than rounding where these are few."""
    torch.manual_seed(n)
    vectors = torch.randn(5, 1 + n, 3 * n, dtype=torch.float64)
    vectors[:, 0] *= factor
    vectors[1, 1] = 0  # a row that is not there yet
    vectors[2, 1:] = vectors[2, 0] + 1e-3 * vectors[2, 1:]  # nothing is violated where signs are positive
    vectors[3, 2] = vectors[3, 1]
    sums = vectors @ vectors.mT
    # Each inner product is a sum of n or n^2 terms, and rounded relative to the sum of their sizes.
    sizes = vectors.norm(dim=-1)[:, 1:].cumsum(1)
    rounding = 4 * n * torch.finfo(torch.float64).eps * sizes
    for signs in (torch.ones(n), -torch.ones(n), torch.tensor([1.0, -1.0]).repeat(n)[:n]):
        problem = Problem(
            combination=torch.ones(n, n, dtype=torch.float64).tril(), signs=signs.double(),
            margins=torch.linspace(0, 0.1, n, dtype=torch.float64), only_violated=only_violated,
        )  # fmt: skip
        expected = TorchBackend.solve(sums, problem, torch.tensor(factor))
        found = native.NativeBackend.solve(sums, problem, torch.tensor(factor))
        assert found.applied.tolist() == expected.applied.tolist()
        assert ((found.products - expected.products).abs() <= rounding * vectors[:, :1].norm(dim=-1) / factor).all()
        assert ((found.gram - expected.gram).abs() <= rounding.unsqueeze(-1) * sizes.unsqueeze(-2)).all()
        torch.testing.assert_close(found.gradient_norm2, expected.gradient_norm2)
        for answer in (found, expected):
            assert_step_accurate(answer, vectors, problem, factor)


def assert_step_accurate(answer: Solution, vectors: Tensor, problem: Problem, factor: float) -> None:
    """Check the multipliers of every block without rounding, and the coefficients that follow from them."""
    signed = answer.multipliers * problem.signs
    torch.testing.assert_close(answer.coefficients, signed @ problem.combination * factor, rtol=1e-14, atol=0)
    for block, applied, v in zip(vectors.tolist(), answer.applied.tolist(), answer.multipliers.tolist(), strict=True):
        if not applied:
            assert problem.only_violated
            assert not any(v)
            continue
        gradient = [Fraction(value) / Fraction(factor) for value in block[0]]
        basis = ([Fraction(value) for value in row] for row in block[1:])
        sums = itertools.accumulate(basis, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
        constraints = [[int(sign) * x for x in a] for sign, a in zip(problem.signs.tolist(), sums, strict=True)]
        assert_accurate(gradient, constraints, problem.margins.tolist(), v)


def test_a_problem_of_another_size_is_refused() -> None:
    one = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="a problem of 2 constraints needs 3 x 3 inner products"):
        native.NativeBackend.solve(torch.ones(1, 4, 4, dtype=torch.float64), Problem(one, one[0], one[0], False))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_left_alone_in_every_block(bad: float) -> None:
    vectors = torch.randn(3, 3, 8, dtype=torch.float64)
    sums = vectors @ vectors.mT
    sums[1, 0, 2] = sums[1, 2, 0] = bad
    one = torch.ones(2, dtype=torch.float64)
    problem = Problem(torch.eye(2, dtype=torch.float64), one, 0.1 * one, False)
    for found in (native.NativeBackend.solve(sums, problem), TorchBackend.solve(sums, problem)):
        assert not found.finite
        assert not found.applied.any()
        assert not found.coefficients.any()
        assert not found.multipliers.any()
        assert all(part.isnan().all() for part in found.measures())


@pytest.mark.parametrize("n", [1, 4])
def test_a_gate_takes_constraints_out(n: int) -> None:
    vectors = torch.randn(2, 1 + n, 9, dtype=torch.float64)
    ones = torch.ones(n, dtype=torch.float64)
    problem = Problem(torch.eye(n, dtype=torch.float64), ones, 0.1 * ones, False, torch.zeros(n, dtype=torch.bool))
    assert not native.NativeBackend.solve(vectors @ vectors.mT, problem).applied.any()


@pytest.mark.parametrize("n", [1, 2, 9])
def test_many_problems_are_solved_as_by_the_reference(n: int) -> None:
    rows = torch.randn(6, n, 20, dtype=torch.float64) + torch.randn(6, 1, 20, dtype=torch.float64)
    rows[2, 0] = 0
    g = torch.randn(6, 20, dtype=torch.float64)
    gram_, products = rows @ rows.mT, (rows @ g.unsqueeze(-1)).squeeze(-1)
    for margins in (torch.full((n,), 0.1, dtype=torch.float64), torch.rand(6, n, dtype=torch.float64)):
        found = native.NativeBackend.solve_dual(gram_, products, margins)
        torch.testing.assert_close(found, congruency.solve_dual(gram_, products, margins), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sources", ["none", "difference", "plain", "three mixed", "ten"])
@pytest.mark.parametrize("shapes", ["odd", "unit and a bit"])
def test_a_wide_gram_of_float32_is_one_of_float64(sources: str, shapes: str) -> None:
    """Differences of float32 numbers are exact in float64, and only products and sums round there."""
    slices = make_slices(SHAPES[shapes], SOURCES[sources], torch.float32)
    size = size_of(SOURCES[sources])
    assert_gram_matches(gram(slices, size, wide=True), exact_gram(slices, size, 1), 1e-13)
