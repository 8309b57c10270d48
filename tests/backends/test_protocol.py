"""Every backend against the reference in cone.py: gram, solve and apply together are the projection."""

import itertools
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from named import backend
from solutions import solution_of

import congruency
from congruency.backends import Basis, ParameterSlice, Passes, Problem, backend_for
from congruency.backends.torch import TorchBackend

BACKENDS = ("torch", "native", "triton")


def chain(n):
    """Suffix sums of n differences, as References makes them."""
    return -torch.ones(n, n, dtype=torch.float64).triu()


@pytest.mark.parametrize("only_violated", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.3])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("name", BACKENDS)
def test_the_three_steps_are_the_projection(name, n, margin, only_violated, device):
    dtype = torch.float32 if name == "triton" else torch.float64
    shapes, blocks = [(7, 5), (20,), (3, 3, 3), (11,)], 2
    points = [[torch.randn(shape, dtype=dtype, device=device) for _ in range(n + 1)] for shape in shapes]
    gradients = [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]
    before = [gradient.clone() for gradient in gradients]
    slices = [
        ParameterSlice(g, [Basis(p, chained=True)], i % blocks)
        for i, (g, p) in enumerate(zip(gradients, points, strict=True))
    ]
    problem = Problem(
        combination=chain(n).to(device),
        signs=torch.ones(n, dtype=torch.float64, device=device),
        margins=torch.full((n,), margin, dtype=torch.float64, device=device),
        only_violated=only_violated,
    )
    passes = backend(name)(slices, n, blocks, device)
    solution = passes.solve(passes.gram(), problem)
    passes.apply(solution)
    for block in range(blocks):
        held = range(block, len(shapes), blocks)
        g = torch.cat([before[i].flatten() for i in held]).double()
        rows = torch.stack([torch.cat([(points[i][k] - points[i][n]).flatten() for i in held]) for k in range(n)])
        expected = congruency.project(g, rows.double(), margin)
        if only_violated and not (rows.double() @ g < 0).any():
            expected = g
        found = torch.cat([gradients[i].flatten() for i in held]).double()
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(solution.products[block], rows.double() @ g, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_gradient_that_is_a_basis_vector_too_is_read_before_it_is_written(name, dtype, device):
    """A direction may be ``p.grad`` itself, and stand between two others."""
    target, *others = (torch.randn(70_000, device=device).to(dtype) for _ in range(3))
    first, second, g = (tensor.to(torch.float64, copy=True) for tensor in (*others, target))
    item = ParameterSlice(target, [Basis([others[0]]), Basis([target]), Basis([others[1]])], 0)
    coefficients = torch.tensor([[0.5, -0.25, 2.0]], dtype=torch.float64, device=device)
    problem = Problem(
        torch.eye(3, dtype=torch.float64, device=device), *torch.zeros(2, 3, dtype=torch.float64, device=device), False
    )
    passes = backend(name)([item], 3, 1, device)
    solution = replace(passes.solve(passes.gram(), problem), coefficients=coefficients)
    passes.apply(replace(solution, applied=torch.ones_like(solution.applied)))
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        target.double(), 0.75 * g + 0.5 * first + 2.0 * second, rtol=tolerance, atol=4 * tolerance
    )


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_wide_gram_is_exact_to_float64(name, dtype, size, device):
    """The measures' demand, whatever the dtype: no difference, product or sum is rounded to less than float64."""
    tensors = [torch.randn(2000, device=device).to(dtype) for _ in range(size + 2)]
    item = ParameterSlice(tensors[0], [Basis(tensors[1:], chained=True)] if size else [], 0)
    found = backend(name)([item], size, 1, device).gram(wide=True)[0]
    wide = [tensor.double() for tensor in tensors]
    vectors = torch.stack([wide[0], *(b - a for a, b in itertools.pairwise(wide[1:]))][: 1 + size])
    exact = vectors @ vectors.T
    scale = exact.diagonal().sqrt()
    assert ((found - exact).abs() <= 1e-13 * torch.outer(scale, scale)).all()


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("case", ["chain", "plain", "update", "with two gradients", "with three gradients", "mixed"])
@pytest.mark.parametrize("name", BACKENDS)
def test_products_of_fixed_vectors_are_taken_as_known(name, case, blocks, device):
    """After the moving tensors have changed, the gram is that of all tensors now; what is fixed is not looked at."""
    n, generator = 4, torch.Generator().manual_seed(0)

    def make(length, dtype=torch.float32):
        return torch.randn(length, generator=generator).to(device, dtype)

    lengths = [1, 700, 1025, 2100]
    slices = []
    for i, length in enumerate(lengths):
        dtype = torch.float64 if case == "mixed" and i % 2 else torch.float32
        held = [make(length, dtype) for _ in range(n + (case != "plain"))]
        bases = [Basis(held, case != "plain", n - 1)]
        if case == "update":
            bases.insert(0, Basis([make(length), make(length)], True))
        if case.startswith("with"):
            bases.append(Basis([make(length) for _ in range(2 if "two" in case else 3)]))
        slices.append(ParameterSlice(make(length, dtype), bases, i % blocks))
    size = sum(basis.size for basis in slices[0].bases)
    passes = backend(name)(slices, size, blocks, device)
    known = passes.gram(wide=True).clone()
    fixed = torch.tensor(slices[0].fixed)
    assert fixed.sum() == n - 1
    inner = fixed[:, None] & fixed
    for item in slices:
        moving = [t for basis in item.bases for t in (basis.tensors[basis.fixed + basis.chained :])]
        torch._foreach_mul_([item.target, *moving], 1.5)
    full, found = passes.gram(wide=True).clone(), passes.gram(known=known).clone()
    assert torch.equal(found[:, inner], known[:, inner])
    scale = full.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((found - full).abs() <= 2e-6 * scale.unsqueeze(-1) * scale.unsqueeze(-2)).all()
    assert torch.equal(found[:, ~inner], found.mT[:, ~inner])
    marked = torch.where(inner.to(device), 7.0, known)
    assert (passes.gram(known=marked)[:, inner] == 7.0).all()


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("name", ["native", "triton"])
def test_a_backend_pointed_at_other_gradients_is_one_made_for_them(name, place, device):
    """Both passes, bit for bit, over two blocks; the gradient is the target or a basis vector."""
    lengths, blocks = [1030, 5, 700, 0], 2

    def make(other):
        generator = torch.Generator().manual_seed(1)
        slices = []
        for i, length in enumerate(lengths):
            parts = [torch.randn(length, generator=generator).to(device) for _ in range(4)]
            if other:
                parts[place] = other * torch.flip(parts[place], (0,))
            slices.append(ParameterSlice(parts[0], [Basis(parts[1:3], True), Basis(parts[3:])], i % blocks, place))
        return slices

    def run(passes):
        sums = passes.gram().clone()
        passes.apply(solution_of(coefficients, torch.tensor([True, True], device=device)))
        return sums

    coefficients = torch.tensor([[0.5, -2.0], [1.0, 0.25]], dtype=torch.float64, device=device)
    held = make(0)
    passes = backend(name)(held, 2, blocks, device)
    run(passes)
    for other in (2, 3):
        moved, twins, old = make(other), make(other), [item.target.clone() for item in held]
        assert passes.point(tuple(item.tensors[place].data_ptr() for item in moved))
        for item, own in zip(moved, held, strict=True):
            if place:  # all but the gradient is where it was
                own.target.copy_(item.target)
        expected, found = run(backend(name)(twins, 2, blocks, device)), run(passes)
        assert torch.equal(found, expected)
        for item, own, twin, before in zip(moved, held, twins, old, strict=True):
            assert torch.equal(own.target if place else item.target, twin.target)
            assert place or torch.equal(own.target, before)  # what it was made for is not written any more


@pytest.mark.parametrize("name", ["native", "triton"])
def test_a_gradient_of_another_length_is_refused(name, device):
    tensors = [torch.randn(length, device=device) for length in (70, 64, 64)]
    with pytest.raises(RuntimeError, match="size"):
        backend(name)([ParameterSlice(tensors[0], [Basis(tensors[1:], True)], 0)], 1, 1, device).gram(wide=True)


def test_addresses_that_are_not_aligned_need_another_backend(device):
    tensors = [torch.randn(64, device=device) for _ in range(3)]
    passes = backend("triton")([ParameterSlice(tensors[0], [Basis(tensors[1:], True)], 0)], 1, 1, device)
    assert passes.point((tensors[0].data_ptr(),))
    assert not passes.point((tensors[0].data_ptr() + 4,))


def test_what_is_known_of_other_vectors_is_refused(device):
    item = ParameterSlice(torch.ones(3, device=device), [Basis([torch.ones(3, device=device)] * 2, fixed=1)], 0)
    with pytest.raises(ValueError, match="what is known is of 3 basis vectors, here there are 2"):
        Passes([(item, ())], 2).gram(known=[torch.zeros(1, 4, 4, dtype=torch.float64, device=device)])


def test_passes_over_two_places_add_up(device):
    """Slices that are sharded over different groups are two backends and one sum."""
    tensors = [torch.randn(50, device=device) for _ in range(2)]
    items = [ParameterSlice(tensor, [], 0) for tensor in tensors]
    one = Passes([(item, ()) for item in items], 0).gram(wide=True)
    torch.testing.assert_close(one, sum(Passes([(item, ())], 0).gram(wide=True) for item in items))
    assert len(Passes([(item, ()) for item in items], 0).grams()) == 1


@pytest.mark.parametrize("choice", ["auto", "torch", "fused", "numpy"])
def test_the_environment_chooses(choice, monkeypatch):
    monkeypatch.setenv("CONGRUENCY_KERNELS", choice)
    backend_for.cache_clear()
    try:
        if choice == "numpy":
            with pytest.raises(ValueError, match="must be auto, torch or fused, got 'numpy'"):
                backend_for("cpu")
        elif choice == "torch":
            assert {backend_for(kind) for kind in ("cpu", "cuda", "mps")} == {TorchBackend}
        else:
            assert backend_for("mps") is TorchBackend
            pytest.importorskip("congruency.backends.native", exc_type=ImportError)
            assert backend_for("cpu").__module__ == "congruency.backends.native"
    finally:
        monkeypatch.undo()
        backend_for.cache_clear()


@pytest.mark.parametrize("choice", ["auto", "fused"])
def test_without_the_compiled_part(choice):
    """As on a machine that had no C compiler when the package was installed."""
    code = """
import sys
sys.modules["congruency.backends._native"] = None
from congruency.backends import backend_for
print(backend_for("cpu").__name__)
"""
    environment = {**os.environ, "CONGRUENCY_KERNELS": choice}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if choice == "auto":
        assert done.stdout == "TorchBackend\n", done.stderr
    else:
        assert "RuntimeError: CONGRUENCY_KERNELS=fused, but it cannot be used here" in done.stderr
        assert "install a C compiler" in done.stderr


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", BACKENDS)
def test_solving_counts_steps_and_serves_again(name, n, blocks, device):
    """Changed and not finite steps are counted; with `reuse`, a second solution is that of the second numbers."""
    generator = torch.Generator().manual_seed(n)
    counts = torch.zeros(4, dtype=torch.int64, device=device)
    problem = Problem(
        combination=chain(n).to(device), signs=torch.ones(n, dtype=torch.float64, device=device),
        margins=torch.zeros(n, dtype=torch.float64, device=device), only_violated=False, counts=counts,
    )  # fmt: skip
    sums = torch.empty(blocks, 1 + n, 1 + n, dtype=torch.float64, device=device)
    reuse: dict[object, object] = {}
    seen = []
    for kind in ("against", "along", "nan", "against"):
        vectors = torch.randn(blocks, 1 + n, 9, generator=generator, dtype=torch.float64)
        vectors[:, 0] = (chain(n) @ vectors[:, 1:]).sum(1) * (1.0 if kind == "along" else -1.0)
        sums.copy_(vectors @ vectors.mT)
        if kind == "nan":
            sums[-1, 0, 1] = float("nan")
        found = backend(name).solve(sums, problem, None, reuse)
        plain = TorchBackend.solve(sums.clone(), replace(problem, counts=None))
        torch.testing.assert_close(found.coefficients, plain.coefficients, rtol=1e-8, atol=1e-10)
        assert torch.equal(found.applied, plain.applied)
        assert bool(found.finite) == bool(plain.finite) == (kind != "nan")
        seen.append((bool(found.applied.any()), not bool(found.finite)))
        assert counts[:2].tolist() == [sum(changed for changed, _ in seen), sum(bad for _, bad in seen)]
        assert counts[3] == len(seen)
    assert seen[0] == seen[3] == (True, False)


@pytest.mark.parametrize("most", [1000.0, 3.0])
@pytest.mark.parametrize("name", BACKENDS)
def test_settling_elements(name, most, device):
    """A scale is one over the share that is kept, at most `most`; a step with all kept is not counted as changed."""
    sizes = torch.tensor([4.0, 100.0, 5000.0], dtype=torch.float64, device=device)
    agreement = torch.tensor([[4.0, 1, 1, 1], [50.0, 1, 1, 1], [1.0, 1, 1, 1]], dtype=torch.float64, device=device)
    counts = None if name == "native" else torch.zeros(4, dtype=torch.int64, device=device)
    means = torch.zeros(2, 4, dtype=torch.float64, device=device)
    reuse: dict[object, object] = {}
    scale, finite = backend(name).settle(agreement, sizes, most, counts, means, reuse)
    expected = torch.tensor([1.0, 2.0, min(most, 5000.0)], dtype=torch.float64)
    torch.testing.assert_close(scale.cpu(), expected, rtol=1e-14, atol=0)
    assert bool(finite)
    agreement[1, 2] = float("inf")
    assert not backend(name).settle(agreement, sizes, most, counts, means, reuse)[1]
    agreement[:, 0], agreement[1, 2] = sizes, 1.0
    assert backend(name).settle(agreement, sizes, most, counts, means, reuse)[1]
    assert counts is None or counts[:2].tolist() == [2, 1]
    assert means[1].tolist() == [2.0, 0.0, 2.0, 2.0]  # not of the step that was not finite
    torch.testing.assert_close(means[0].tolist(), [2.0, 0.0, 2 * 3**0.5, 1 + 55 / 5104])


@pytest.mark.parametrize("name", BACKENDS)
def test_settling_nothing_adds_no_share(name, device):
    """Of parameters without elements: what is kept of none is undefined, and must not make later means nan."""
    none, means = (torch.zeros(shape, dtype=torch.float64, device=device) for shape in ((1, 4), (2, 4)))
    assert backend(name).settle(none, none[:, 0].clone(), 1000.0, None, means)[1]
    assert means.isfinite().all()
    assert means[1, 3] == 0
