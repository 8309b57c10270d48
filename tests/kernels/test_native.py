"""The compiled passes against numpy in float64 and against plain torch, and what no comparison shows."""

from __future__ import annotations

import itertools
import os
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from oracles import assert_accurate
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from congruency.kernels.rows import HostSweep, Piece, Strand
from congruency.solution import Rows, Solution, solve, solve_on_host

native = pytest.importorskip(
    "congruency.kernels.native", reason="the compiled kernels are not built here", exc_type=ImportError
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


def make_piece(gradient: Tensor, sources: Sources, block: int = 0) -> Piece:
    def near() -> Tensor:
        return torch.randn_like(gradient)  # of the same memory layout

    strands = [Strand([near() for _ in range(count + chained)], chained) for count, chained in sources]
    return Piece(gradient, strands, block)


def make_pieces(shapes: list[tuple[int, ...]], sources: Sources, dtype: torch.dtype, blocks: int = 1) -> list[Piece]:
    return [make_piece(torch.randn(shape, dtype=dtype), sources, i % blocks) for i, shape in enumerate(shapes)]


def size_of(sources: Sources) -> int:
    return sum(count for count, _ in sources)


def exact_rows(piece: Piece) -> np.ndarray:
    """(1 + size, elements) the gradient and the basis vectors, in float64."""

    def flat(tensor: Tensor) -> np.ndarray:
        return tensor.detach().double().numpy().reshape(-1)

    vectors = [flat(piece.gradient)]
    for tensors, chained in piece.strands:
        values = [flat(tensor) for tensor in tensors]
        vectors += [b - a for a, b in itertools.pairwise(values)] if chained else values
    return np.stack(vectors)


def exact_moments(pieces: list[Piece], size: int, blocks: int) -> np.ndarray:
    total = np.zeros((blocks, 1 + size, 1 + size))
    for piece in pieces:
        vectors = exact_rows(piece)
        total[piece.block] += vectors @ vectors.T
    return total


def moments(pieces: list[Piece], size: int, blocks: int = 1) -> np.ndarray:
    return np.array(native.Sweep(pieces, size, blocks).moments()).reshape(blocks, 1 + size, 1 + size)


def assert_moments_match(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Each inner product to within ``tolerance`` of the norms' product, the scale of its rounding errors."""
    norms = np.sqrt(np.diagonal(expected, axis1=1, axis2=2))
    scale = norms[:, :, None] * norms[:, None, :]
    assert np.all(np.abs(found - expected) <= tolerance * scale)


def check_both_passes(pieces: list[Piece], size: int, tolerance: float, blocks: int = 1) -> None:
    """Compare with numpy; every other block is left alone."""
    assert_moments_match(moments(pieces, size, blocks), exact_moments(pieces, size, blocks), tolerance)
    coefficients = [None if block % 2 else torch.randn(size).tolist() for block in range(blocks)]
    before = [piece.gradient.clone() for piece in pieces]
    expected = [
        old if coefficients[piece.block] is None else exact_combination(piece, coefficients[piece.block])
        for piece, old in zip(pieces, before, strict=True)
    ]
    native.Sweep(pieces, size, blocks).add_combination(coefficients)
    for piece, old, new in zip(pieces, before, expected, strict=True):
        if coefficients[piece.block] is None:
            assert torch.equal(piece.gradient, old)
        else:
            # a sum of size + 1 terms of order 1, each with a rounding error of its own
            torch.testing.assert_close(
                piece.gradient.double(), new, rtol=0, atol=10 * (1 + size) * min(tolerance, 1e-6)
            )


def exact_combination(piece: Piece, factors: list[float]) -> Tensor:
    combined = np.array([1.0, *factors]) @ exact_rows(piece)
    return torch.from_numpy(combined).view(piece.gradient.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("sources", SOURCES)
def test_both_passes_match_numpy(sources: str, shapes: str, dtype: torch.dtype) -> None:
    pieces = make_pieces(SHAPES[shapes], SOURCES[sources], dtype)
    check_both_passes(pieces, size_of(SOURCES[sources]), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sources", ["none", "difference", "three mixed", "twenty mixed"])
def test_blocks_are_kept_apart_and_those_left_alone_keep_their_bits(sources: str, dtype: torch.dtype) -> None:
    pieces = make_pieces([(40, 40), (10,), (3, 3000), (1,), (9000,), (0,)], SOURCES[sources], dtype, blocks=4)
    check_both_passes(pieces, size_of(SOURCES[sources]), TOLERANCE[dtype], blocks=4)


@pytest.mark.parametrize("sources", ["none", "difference", "plain", "ten"])
def test_agrees_with_plain_torch(sources: str) -> None:
    size = size_of(SOURCES[sources])
    pieces = make_pieces([(100, 784), (100,), (10, 100)], SOURCES[sources], torch.float32)
    twins = [piece._replace(gradient=piece.gradient.clone()) for piece in pieces]
    ours, plain = native.Sweep(pieces, size, 1), HostSweep(twins, size, 1)
    np.testing.assert_allclose(ours.moments(), plain.moments(), rtol=1e-4, atol=1e-2)
    factors = torch.randn(size).tolist()
    ours.add_combination([factors])
    plain.add_combination([factors])
    for piece, twin in zip(pieces, twins, strict=True):
        torch.testing.assert_close(piece.gradient, twin.gradient)


def test_more_elements_than_the_caches_hold() -> None:
    check_both_passes(make_pieces([(3_000_000,), (5,), (1_500_001,)], [(1, True)], torch.float32), 1, 1e-6)


@pytest.mark.parametrize("count", [65, 600])
def test_there_may_be_more_vectors_than_the_scratch_was_made_for(count: int) -> None:
    check_both_passes(make_pieces([(50,)], [(count, False)], torch.float32), count, 1e-6)


def test_channels_last_is_walked_in_memory_order() -> None:
    gradient = torch.randn(8, 6, 3, 3).to(memory_format=torch.channels_last)
    pieces = [make_piece(gradient, [(2, True)]), make_piece(torch.randn(8), [(2, True)])]
    assert not taken_by_torch(pieces)
    check_both_passes(pieces, 2, 1e-6)


def test_unaligned_views() -> None:
    def view(offset: int) -> Tensor:
        return torch.randn(5000)[offset : offset + 4321]

    piece = Piece(view(1), [Strand([view(3), view(7), view(2)], True)], 0)
    assert not taken_by_torch([piece])
    check_both_passes([piece], 2, 1e-6)


def taken_by_torch(pieces: list[Piece]) -> list[Piece]:
    return native._split(pieces)[1]


def test_what_it_cannot_take_goes_to_torch_and_is_added() -> None:
    plain = make_piece(torch.randn(50, 20), [(2, True)])
    wide = make_piece(torch.randn(30, dtype=torch.float64), [(2, True)])
    unchained = make_piece(torch.randn(70), [(2, False)])
    half = make_piece(torch.randn(40, dtype=torch.bfloat16), [(2, True)])
    mixed = Piece(torch.randn(40), [Strand([torch.randn(40, dtype=torch.float64) for _ in range(3)], True)], 0)
    turned = Piece(torch.randn(9, 5).t(), [Strand([torch.randn(5, 9) for _ in range(3)], True)], 0)
    gappy = make_piece(torch.randn(40, 3)[:, 0], [(2, True)])
    flipped = Piece(torch._neg_view(torch.randn(6)), [Strand([torch.randn(6) for _ in range(3)], True)], 0)
    pieces = [plain, half, wide, mixed, unchained, turned, gappy, flipped]
    assert [id(piece) for piece in taken_by_torch(pieces)] == [id(p) for p in (half, mixed, turned, gappy, flipped)]
    expected = exact_moments([piece for piece in pieces if piece is not flipped], 2, 1)
    expected += exact_moments([flipped._replace(gradient=flipped.gradient.resolve_neg())], 2, 1)
    assert_moments_match(moments(pieces, 2), expected, 1e-6)
    twins = [piece._replace(gradient=piece.gradient.clone()) for piece in pieces]
    native.Sweep(pieces, 2, 1).add_combination([[0.5, -2.0]])
    HostSweep(twins, 2, 1).add_combination([[0.5, -2.0]])
    for piece, twin in zip(pieces, twins, strict=True):
        torch.testing.assert_close(piece.gradient, twin.gradient)


def test_vectors_of_another_length_are_left_to_torch_which_refuses_them() -> None:
    piece = Piece(torch.randn(100), [Strand([torch.randn(100), torch.randn(90)], True)], 0)
    with pytest.raises(RuntimeError, match="size"):
        native.Sweep([piece], 1, 1).moments()


def test_wrong_numbers_are_refused() -> None:
    pieces = make_pieces([(5,)], [(2, True)], torch.float32)
    with pytest.raises(ValueError, match="a piece has block 0, but there are 0"):
        native.Sweep(pieces, 2, 0)
    with pytest.raises(ValueError, match="2 coefficients of a block are needed"):
        native.Sweep(pieces, 2, 1).add_combination([[1.0]])
    with pytest.raises(ValueError, match="coefficients must be given for 1 blocks"):
        native.Sweep(pieces, 2, 1).add_combination([[1.0, 2.0], None])


def test_nothing_is_kept_alive() -> None:
    gradient = torch.randn(10)
    pieces = [make_piece(gradient, [(1, True)])]
    held = sys.getrefcount(gradient), sys.getrefcount(torch.float32), sys.getrefcount(pieces[0].strands[0].tensors[0])
    for _ in range(10):
        sweep = native.Sweep(pieces, 1, 1)
        sweep.moments()
        sweep.add_combination([[0.0]])
        del sweep
    after = sys.getrefcount(gradient), sys.getrefcount(torch.float32), sys.getrefcount(pieces[0].strands[0].tensors[0])
    assert after == held


def test_no_pieces() -> None:
    sweep = native.Sweep([], 1, 2)
    assert sweep.moments() == [[0.0] * 4] * 2
    sweep.add_combination([[1.0], None])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 20_000, 39_999])
@pytest.mark.parametrize("sources", ["none", "difference", "ten"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_seen(dtype: torch.dtype, sources: str, place: int, value: float) -> None:
    size = size_of(SOURCES[sources])
    pieces = make_pieces([(10,), (40_000,)], SOURCES[sources], dtype)
    pieces[1].gradient[place] = value
    assert not np.isfinite(moments(pieces, size)[0, 0]).any()
    if size:
        pieces[1].gradient[place] = 1.0
        pieces[1].strands[0].tensors[1][place] = value
        assert not np.isfinite(moments(pieces, size)[0, 1]).any()


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e22, 1e30])
def test_squares_beyond_the_range_of_float32(scale: float) -> None:
    piece = make_piece(torch.randn(5000) * scale, [(1, False)])
    assert_moments_match(moments([piece], 1), exact_moments([piece], 1, 1), 1e-6)
    swapped = Piece(piece.strands[0].tensors[0], [Strand([piece.gradient], False)], 0)
    assert_moments_match(moments([swapped], 1), exact_moments([swapped], 1, 1), 1e-6)
    expected = exact_combination(swapped, [1 / scale])
    native.Sweep([swapped], 1, 1).add_combination([[1 / scale]])
    torch.testing.assert_close(swapped.gradient.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sources", ["difference", "ten"])
def test_zeros_are_exact(sources: str) -> None:
    size = size_of(SOURCES[sources])
    piece = Piece(torch.zeros(3000), [Strand([torch.randn(3000)] * (size + 1), True)], 0)
    assert not moments([piece], size).any()


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
    pieces = make_pieces([(1_200_000,), (77,), (300, 301)], SOURCES[sources], torch.float32, blocks=2)
    gradients = [piece.gradient.clone() for piece in pieces]
    results = []
    for count in (1, 2, 2, 3, 5):
        threads(count)
        for piece, gradient in zip(pieces, gradients, strict=True):
            piece.gradient.copy_(gradient)
        sweep = native.Sweep(pieces, size, 2)
        sums = sweep.moments()
        sweep.add_combination([[0.1] * size, [-0.2] * size])
        results.append((sums, [piece.gradient.clone() for piece in pieces]))
    first_sums, first_gradients = results[0]
    for sums, corrected in results[1:]:
        assert sums == first_sums
        assert all(torch.equal(a, b) for a, b in zip(corrected, first_gradients, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vector_may_be_the_gradient_itself(dtype: torch.dtype) -> None:
    gradient = torch.randn(5000, dtype=dtype)
    expected = gradient * (1 + 2 - 3)
    native.Sweep([Piece(gradient, [Strand([gradient, gradient], False)], 0)], 2, 1).add_combination([[2.0, -3.0]])
    torch.testing.assert_close(gradient, expected)


def test_autograd_learns_that_a_gradient_has_changed() -> None:
    weight = torch.randn(10, requires_grad=True)
    (gradient,) = torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)
    penalty = gradient.pow(2).sum()
    with torch.no_grad():
        native.Sweep([make_piece(gradient, [(1, True)])], 1, 1).add_combination([[1.0]])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        penalty.backward()


class Sums(Dataset[list[list[float]]]):
    """Makes the first pass in whatever process asks."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[list[float]]:
        return native.Sweep(self.pieces, 1, 1).moments()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_worker_makes_the_same_sums() -> None:
    dataset = Sums(make_pieces([(500_000,)], [(1, True)], torch.float32))
    here = dataset[0]  # starts torch's threads, which a fork does not copy
    (there,) = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert there == here


@pytest.mark.parametrize("n", [2, 3, 7, 20])
@pytest.mark.parametrize("only_violated", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1024.0])
def test_a_step_is_solved_as_by_tensors(
    n: int, only_violated: bool, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both to the accuracy that the inner products allow, whichever of the two the environment asks for."""
    monkeypatch.setattr("congruency.solution.compiled", lambda: native)
    monkeypatch.setattr("congruency.cone._compiled", lambda: None)
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
        rows = Rows(
            combination=torch.ones(n, n, dtype=torch.float64).tril(), signs=signs.double(),
            margins=torch.linspace(0, 0.1, n, dtype=torch.float64), only_violated=only_violated,
        )  # fmt: skip
        expected = solve(sums, rows, torch.tensor(factor))
        found = solve_on_host(sums.flatten(1).tolist(), rows, factor).as_tensors()
        assert found.applied.tolist() == expected.applied.tolist()
        assert ((found.products - expected.products).abs() <= rounding * vectors[:, :1].norm(dim=-1) / factor).all()
        assert ((found.gram - expected.gram).abs() <= rounding.unsqueeze(-1) * sizes.unsqueeze(-2)).all()
        torch.testing.assert_close(found.gradient_norm2, expected.gradient_norm2)
        for solution in (found, expected):
            assert_step_accurate(solution, vectors, rows, factor)


def assert_step_accurate(solution: Solution, vectors: Tensor, rows: Rows, factor: float) -> None:
    """Check the multipliers of every block without rounding, and the coefficients that follow from them."""
    signed = solution.multipliers * rows.signs
    torch.testing.assert_close(solution.coefficients, signed @ rows.combination * factor, rtol=1e-14, atol=0)
    for block, applied, v in zip(
        vectors.tolist(), solution.applied.tolist(), solution.multipliers.tolist(), strict=True
    ):
        if not applied:
            assert rows.only_violated
            assert not any(v)
            continue
        gradient = [Fraction(value) / Fraction(factor) for value in block[0]]
        basis = ([Fraction(value) for value in row] for row in block[1:])
        sums = itertools.accumulate(basis, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
        constraints = [[int(sign) * x for x in a] for sign, a in zip(rows.signs.tolist(), sums, strict=True)]
        assert_accurate(gradient, constraints, rows.margins.tolist(), v)


@pytest.mark.parametrize("wrong", [{"moments": [[1.0] * 8]}, {"combination": [1.0] * 3}, {"margins": [0.0]}])
def test_a_step_with_wrong_numbers_is_refused(wrong: dict[str, list[float]]) -> None:
    given = {"moments": [[1.0] * 9], "combination": [1.0] * 4, "signs": [1.0] * 2, "margins": [0.0] * 2} | wrong
    with pytest.raises(ValueError, match="are needed"):
        native.solve(*given.values(), False, 1.0)
