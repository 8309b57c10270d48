"""The fused CUDA kernels: on a GPU, or on the CPU through Triton's interpreter, against the plain torch ones."""

import contextlib
import itertools
import os

import pytest
import torch
from torch._subclasses import FakeTensorMode

ON_GPU = os.environ.get("CONGRUENCY_TEST_DEVICE", "cpu").startswith("cuda")
pytest.importorskip("triton", reason="Triton is not installed")

from oracles import ILL_CONDITIONED, assert_accurate, ill_conditioned  # noqa: E402
from scipy.optimize import nnls  # noqa: E402
from solutions import solution_of  # noqa: E402

import congruency  # noqa: E402
from congruency.backends import Basis, ParameterSlice, Problem, backend_for, triton  # noqa: E402
from congruency.backends.torch import TorchBackend  # noqa: E402
from congruency.backends.triton import TritonBackend  # noqa: E402

if not ON_GPU:
    triton._CHUNK = 1024  # the interpreter is slow
SIZES = (1, 5, triton._CHUNK - 1, triton._CHUNK, triton._CHUNK + 1, 2 * triton._CHUNK + 500)


def slices_of(size, chained, device, dtype=torch.float32, basis_dtype=None, lengths=SIZES, blocks=1):
    basis_dtype = basis_dtype or dtype
    generator = torch.Generator().manual_seed(size)
    slices = []
    for i, length in enumerate(lengths):

        def vector(kind, length=length):
            return torch.randn(length, generator=generator).to(device, kind)

        bases = [Basis([vector(basis_dtype) for _ in range(size + chained)], chained)] if size else []
        slices.append(ParameterSlice(vector(dtype), bases, i % blocks))
    return slices


def exact_gram(slices, size, blocks):
    total = torch.zeros(blocks, 1 + size, 1 + size, dtype=torch.float64)
    for gradient, bases, block, _ in slices:
        vectors = [gradient.double().cpu()]
        for basis in bases:
            points = [t.double().cpu() for t in basis.tensors]
            vectors += [b - a for a, b in itertools.pairwise(points)] if basis.chained else points
        stacked = torch.stack(vectors)
        total[block] += stacked @ stacked.T
    return total


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize("size", [0, 1, 2, 10, 31] if ON_GPU else [0, 1, 2, 5])  # 31 takes a minute to compile
def test_gram(size, chained, blocks, device):
    slices = slices_of(size, chained, device, blocks=blocks)
    found = TritonBackend(slices, size, blocks, device).gram().cpu()
    exact = exact_gram(slices, size, blocks)
    scale = exact.diagonal(dim1=-2, dim2=-1).sqrt()
    error = (found - exact).abs() / (scale.unsqueeze(-1) * scale.unsqueeze(-2))
    assert error.max() < 2e-6
    again = TritonBackend(slices, size, blocks, device).gram().cpu()
    assert torch.equal(found, again)
    wide = TritonBackend(slices, size, blocks, device).gram(wide=True).cpu()
    assert ((wide - exact).abs() <= 1e-13 * scale.unsqueeze(-1) * scale.unsqueeze(-2)).all()


@pytest.mark.parametrize("most", [1, 4, 9])
def test_gram_by_several_programs(most, device, monkeypatch):
    slices = slices_of(4, True, device, blocks=2)
    whole = TritonBackend(slices, 4, 2, device).gram()
    monkeypatch.setattr(triton, "_MOST_SUMS", most)
    torch.testing.assert_close(TritonBackend(slices, 4, 2, device).gram(), whole, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float16,) * 2,
                                    (torch.bfloat16, torch.float32)])  # fmt: skip
@pytest.mark.parametrize(("size", "chained"), [(1, True), (1, False), (3, True), (3, False), (20, True)])
def test_apply(size, chained, dtypes, device):
    gradient_dtype, basis_dtype = dtypes
    blocks = 2
    slices = slices_of(size, chained, device, gradient_dtype, basis_dtype, blocks=blocks)
    twins = [item._replace(target=item.target.clone()) for item in slices]
    before = [item.target.clone() for item in slices]
    coefficients = torch.randn(blocks, size, dtype=torch.float64).to(device)
    applied = torch.tensor([True, False], device=device)
    TritonBackend(slices, size, blocks, device).apply(solution_of(coefficients, applied))
    TorchBackend(twins, size, blocks, device).apply(solution_of(coefficients, applied))
    for item, twin, old in zip(slices, twins, before, strict=True):
        if item.block == 1:
            assert torch.equal(item.target, old)
        tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}[gradient_dtype]
        torch.testing.assert_close(item.target, twin.target, rtol=tolerance, atol=tolerance * size)


def test_mixed_bases_layouts_and_dtypes_go_through(device):
    """Two sources at once, channels_last, float64 and mismatched layouts: fused where it can be, right everywhere."""
    torch.manual_seed(1)

    def random(*shape, dtype=torch.float32):
        return torch.randn(*shape).to(device, dtype)

    def make(g, w, r, d):
        return ParameterSlice(g, [Basis([r, w], True), Basis([d], False)], 0)

    nhwc = [random(4, 3, 5, 5).to(memory_format=torch.channels_last) for _ in range(4)]
    odd = [random(1001)[1:] for _ in range(4)]  # addresses that are no multiple of 16
    slices = [
        make(*(random(300) for _ in range(4))),
        make(*nhwc),
        make(random(4, 3, 5, 5), *nhwc[1:]),
        make(*(random(70, dtype=torch.float64) for _ in range(4))),
        make(random(90), random(90, dtype=torch.bfloat16), random(90, dtype=torch.bfloat16), random(90)),
        make(*odd),
        make(*(torch.empty(0, device=device) for _ in range(4))),
    ]
    ours = TritonBackend(slices, 2, 1, device)
    theirs = TorchBackend(slices, 2, 1, device).gram()
    torch.testing.assert_close(ours.gram(), theirs, rtol=1e-5, atol=1e-3)
    twins = [item._replace(target=item.target.clone()) for item in slices]
    coefficients = torch.tensor([[0.5, -2.0]], dtype=torch.float64, device=device)
    applied = torch.tensor([True], device=device)
    ours.apply(solution_of(coefficients, applied))
    TorchBackend(twins, 2, 1, device).apply(solution_of(coefficients, applied))
    for item, twin in zip(slices, twins, strict=True):
        torch.testing.assert_close(item.target, twin.target)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_reaches_the_sums(bad, device):
    slices = slices_of(1, True, device)
    slices[3].target[17] = bad
    assert not torch.isfinite(TritonBackend(slices, 1, 1, device).gram()).all()


@pytest.mark.parametrize("n", [1, 2, 3, 8, 20, 31])
def test_solver_against_nonnegative_least_squares(n, device):
    torch.manual_seed(n)
    problems, p = 12, 40
    rows_ = torch.randn(problems, n, p, dtype=torch.float64) + torch.randn(problems, 1, p, dtype=torch.float64)
    rows_[2, 0] = 0
    if n > 2:
        rows_[3, 1], rows_[4, 1] = rows_[3, 0], -rows_[4, 0]
        rows_[5] = rows_[5, :1] + 1e-3 * torch.randn(n, p, dtype=torch.float64)
    g = torch.randn(problems, p, dtype=torch.float64)
    margin = torch.full((n,), 0.1, dtype=torch.float64) * (torch.arange(n) % 2)
    gram, products = rows_ @ rows_.mT, (rows_ @ g.unsqueeze(-1)).squeeze(-1)
    v = TritonBackend.solve_dual(gram.to(device), products.to(device), margin.to(device)).cpu()
    assert (v >= margin).all()
    for c, one, multipliers in zip(rows_, g, v, strict=True):
        shifted = (one + margin @ c).numpy()
        u, _ = nnls(c.T.numpy(), -shifted, maxiter=1000)
        expected = torch.from_numpy(shifted + c.T.numpy() @ u)
        torch.testing.assert_close(one + multipliers @ c, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("n", [2, 5, 12, 20])
@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-6, 1e-7])
def test_multipliers_are_as_accurate_as_stated(angle, n, device):
    for kind in ILL_CONDITIONED:
        g, rows_, margins = (torch.from_numpy(part) for part in ill_conditioned(kind, angle, n))
        gram, products = rows_ @ rows_.mT, rows_ @ g
        v = TritonBackend.solve_dual(gram[None].to(device), products[None].to(device), margins.to(device))[0].cpu()
        assert_accurate(g.tolist(), rows_.tolist(), margins.tolist(), v.tolist())


@pytest.mark.parametrize("n", [1, 2, 5, 17])
def test_every_problem_may_have_margins_of_its_own(n, device):
    """As (blocks, n), in any layout: each block is solved as it would be alone with its own margins."""
    torch.manual_seed(n)
    problems, p = 6, 30
    rows_ = torch.randn(problems, n, p, dtype=torch.float64) + torch.randn(problems, 1, p, dtype=torch.float64)
    rows_[1, 0] = 0
    g = torch.randn(problems, p, dtype=torch.float64)
    margins = torch.rand(problems, n, dtype=torch.float64) * torch.tensor([0, 1, 2, 0, 3, 1])[:, None]
    gram, products = rows_ @ rows_.mT, (rows_ @ g.unsqueeze(-1)).squeeze(-1)
    v = TritonBackend.solve_dual(gram.to(device), products.to(device), margins.to(device)).cpu()
    assert (v >= margins).all()
    turned = margins.to(device).T.contiguous().T  # the same numbers, column by column
    assert torch.equal(TritonBackend.solve_dual(gram.to(device), products.to(device), turned).cpu(), v)
    for c, one, margin, multipliers in zip(rows_, g, margins, v, strict=True):
        alone = TritonBackend.solve_dual(*((part.to(device)) for part in ((c @ c.T)[None], (c @ one)[None], margin)))
        torch.testing.assert_close(multipliers, alone[0].cpu(), rtol=1e-9, atol=1e-12)
        shifted = (one + margin @ c).numpy()
        u, _ = nnls(c.T.numpy(), -shifted, maxiter=1000)
        expected = torch.from_numpy(shifted + c.T.numpy() @ u)
        torch.testing.assert_close(one + multipliers @ c, expected, rtol=1e-6, atol=1e-7)
    shared = margins[2].expand(problems, n)
    one_for_all = TritonBackend.solve_dual(gram.to(device), products.to(device), margins[2].to(device))
    assert torch.equal(TritonBackend.solve_dual(gram.to(device), products.to(device), shared.to(device)), one_for_all)


def test_more_constraints_than_a_tile_holds_go_to_the_reference(device):
    if backend_for("cuda") is not TritonBackend:
        pytest.skip("the kernels are switched off")
    n = triton.MOST_CONSTRAINTS + 2
    rows = torch.randn(2, n, 50, dtype=torch.float64, device=device)
    gram, products = rows @ rows.mT, rows @ torch.randn(50, dtype=torch.float64, device=device)
    margins = torch.zeros(n, dtype=torch.float64, device=device)
    assert torch.equal(
        TritonBackend.solve_dual(gram, products, margins), congruency.solve_dual(gram, products, margins)
    )


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("gate", [None, True, False])
@pytest.mark.parametrize("only_violated", [False, True])
def test_fused_small_algebra_equals_plain(only_violated, gate, scaled, device):
    torch.manual_seed(3)
    for n in (1, 3):
        vectors = torch.randn(4, 1 + n, 9, dtype=torch.float64)
        vectors[1, 1:] = 0
        sums = (vectors @ vectors.mT).to(device)
        settings = {
            "combination": -torch.ones(n, n, dtype=torch.float64, device=device).triu(),
            "signs": torch.ones(n, dtype=torch.float64, device=device),
            "margins": torch.full((n,), 0.2, dtype=torch.float64, device=device),
            "only_violated": only_violated,
            "gate": None if gate is None else torch.tensor(gate, device=device).expand(n),
        }
        scale = torch.tensor(8.0, device=device) if scaled else None
        for poison in (False, True):
            if poison:
                sums[2, 0, 1] = float("nan")
            tallies = [
                {
                    "counts": torch.tensor([5, 7, 0, 9], device=device),
                    "means": torch.ones(2, 4, dtype=torch.float64, device=device),
                }
                for _ in range(2)
            ]
            fused, plain = (
                b.solve(sums, Problem(**settings, **tally), scale)
                for b, tally in zip((TritonBackend, TorchBackend), tallies, strict=True)
            )
            for name in ("counts", "means"):
                torch.testing.assert_close(*(tally[name] for tally in tallies), msg=name)
            assert poison or gate is False or (tallies[0]["means"][1] > 1).tolist() == [True, True, True, False]
            names = ("finite", "gradient_norm2", "applied") + (() if gate is False else ("products", "gram"))
            for name in names:
                torch.testing.assert_close(getattr(fused, name), getattr(plain, name), msg=name)
            torch.testing.assert_close(fused.coefficients[fused.applied], plain.coefficients[plain.applied])
            assert not (gate is False and fused.applied.any())


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("case", ["plain", "gate", "floor", "violated"])
@pytest.mark.parametrize("n", [1, 3])
def test_more_blocks_than_a_program_looks_at(n, case, poison, device, monkeypatch):
    """Many blocks, as for rows: whatever solves the first sees that a number of the last is not finite."""
    monkeypatch.setattr(triton, "_MOST_BLOCKS", 16)
    monkeypatch.setattr(triton, "_FEW_BLOCKS", 16)
    monkeypatch.setattr(triton, "_CHECKED", 100)
    torch.manual_seed(4)
    blocks = 37
    vectors = torch.randn(blocks, 1 + n, 9, dtype=torch.float64)
    vectors[20, 1] = 0
    sums = (vectors @ vectors.mT).to(device)
    if poison:
        sums[-1, 0, 1] = float("nan")

    def numbers(value, *shape, dtype=torch.float64):
        return torch.full(shape, value, dtype=dtype, device=device)

    found, problems = [], []
    for kind in (TritonBackend, TorchBackend):
        problems.append(Problem(
            combination=-torch.eye(n, dtype=torch.float64, device=device), signs=numbers(1.0, n),
            margins=numbers(0.2, n) * torch.arange(blocks, device=device).unsqueeze(-1),
            only_violated=case == "violated",
            gate=numbers(True, 1, dtype=torch.bool).expand(n) if case == "gate" else None,
            floors=numbers(0.3, n) if case == "floor" else None, previous=numbers(9.0, blocks, n),
            counts=numbers(0, 4, dtype=torch.int64), means=numbers(0.0, 2, 4),
        ))  # fmt: skip
        found.append(kind.solve(sums, problems[-1]))
    ours, plain = found
    for name in ("finite", "gradient_norm2", "products", "gram", "multipliers", "applied", "coefficients"):
        torch.testing.assert_close(getattr(ours, name), getattr(plain, name), msg=name)
    for name in ("counts", "means", "previous"):
        torch.testing.assert_close(*(getattr(problem, name) for problem in problems), msg=name)
    assert bool(ours.applied[-5:].any()) is not poison
    assert bool(ours.finite) is not poison


@pytest.mark.parametrize("case", ["plain", "fixed", "gate", "floor", "scale", "not finite"])
@pytest.mark.parametrize(
    ("n", "launches", "blocks"), [(1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 3, 1), (3, 4, 1), (1, 4, 2), (2, 4, 2)]
)
def test_a_program_is_its_single_passes(n, launches, blocks, case, device, monkeypatch):
    """Three steps in a row: solution, counts, means and gradient."""
    monkeypatch.setattr(triton, "_SMALL", triton._SMALL if launches == 1 else 0)
    lengths = (300_000, 5, 77_777, 200) if ON_GPU else (1500, 5, 700)
    torch.manual_seed(n)

    def tensor(*values, kind=torch.float64):
        return torch.tensor(values, dtype=kind, device=device)

    def make():
        torch.manual_seed(n)
        slices = []
        for i, length in enumerate(lengths):
            points = [torch.randn(length).to(device) for _ in range(n + 1)]
            slices.append(ParameterSlice(torch.randn(length).to(device), [Basis(points, True, n - 1)], i % blocks))
        problem = Problem(
            combination=-torch.ones(n, n, dtype=torch.float64, device=device).triu(),
            signs=tensor(*[1.0] * n), margins=tensor(*[0.01 * (case != "floor")] * n), only_violated=False,
            gate=tensor(True, kind=torch.bool).expand(n) if case == "gate" else None,
            floors=tensor(*[0.5] * n) if case == "floor" else None,
            previous=torch.full((blocks, n), float("inf") if n == 1 else 1e9, dtype=torch.float64, device=device),
            counts=tensor(0, 0, 0, 0, kind=torch.int64), means=torch.zeros(2, 4, dtype=torch.float64, device=device),
        )  # fmt: skip
        return slices, problem, TritonBackend(slices, n, blocks, device)

    scale = torch.tensor(8.0, device=device) if case == "scale" else None
    (one, problem, whole), (several, twin, parts) = make(), make()
    known = parts.gram(wide=True).clone() if case == "fixed" and n > 1 else None
    for step in range(3):
        for a, b in zip(one, several, strict=True):
            b.target.copy_(a.target.copy_(torch.randn(a.target.shape)))
        if case == "not finite" and step == 1:
            one[0].target[7] = several[0].target[7] = float("nan")
        found = whole.program(problem, scale, known)()
        (made,) = whole._programs.values()
        assert (1 if isinstance(made, triton._Whole) else len(made._launchers)) == launches
        expected = parts.solve(parts.gram(known=known), twin, scale)
        parts.apply(expected)
        for name in ("finite", "gradient_norm2", "products", "gram", "multipliers", "applied", "coefficients"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-4, msg=name)
        for a, b in zip(one, several, strict=True):
            torch.testing.assert_close(a.target, b.target, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert problem.counts.tolist() == twin.counts.tolist()
    assert problem.counts[3] == 3
    torch.testing.assert_close(problem.means, twin.means, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(problem.previous, twin.previous, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("small", [0, triton._SMALL])
@pytest.mark.parametrize("settings", [
    {"floor": None}, {"references": 3, "window": 7, "mode": "anchor", "margin": 0.05},
    {"references": 2, "floor": 0.9, "returning": False}, {"blocks": "tensor", "mode": "anchor", "margin": 0.05},
], ids=str)  # fmt: skip
def test_a_run_on_these_kernels_is_one_on_plain_torch(settings, small, device, monkeypatch):
    """Gradients move at every step; windows start over; everything in one launch, or in several."""
    monkeypatch.setattr(triton, "_SMALL", small)
    paths, correctors = [], []
    for kind in (TritonBackend, TorchBackend):
        monkeypatch.setattr(congruency.backends, "backend_for", lambda _, kind=kind: kind)
        generator = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(n, generator=generator).to(device)) for n in (1100, 7)]
        optimizer = torch.optim.SGD(params, lr=0.1)
        correctors.append(congruency.DCL(optimizer, **settings))
        kept = []
        for _ in range(12):
            for p in params:  # back and forth, so that some steps disagree
                p.grad = torch.randn(p.shape, generator=generator).to(device) + 0.2 * p.detach()
            kept.append([p.grad for p in params])
            optimizer.step()
        paths.append(torch.cat([p.detach() for p in params]))
    torch.testing.assert_close(*paths, rtol=1e-4, atol=1e-4)
    ours, plain = correctors
    assert int(ours.stats.corrected_steps) == int(plain.stats.corrected_steps) > 0
    if ON_GPU:  # elsewhere the host counts steps, and the kernels take no means
        assert ours.means() == pytest.approx(plain.means(), rel=1e-3, abs=1e-3)


@pytest.mark.skipif(not ON_GPU, reason="programs that wait for each other need a GPU")
@pytest.mark.parametrize("length", [3000, 90_000, triton._SMALL])
def test_one_launch_after_another_gives_the_same_bits(length, device):
    problem = Problem(
        *(torch.full(shape, value, dtype=torch.float64, device=device)
          for shape, value in (((1, 1), -1.0), ((1,), 1.0), ((1,), 0.01))), False,
    )  # fmt: skip
    gradient, *points = (torch.randn(length, device=device) for _ in range(3))
    item = ParameterSlice(gradient.clone(), [Basis(points, True)], 0)
    passes, results = TritonBackend([item], 1, 1, device), []
    for _ in range(500):  # with other work in between, and no wait for it
        item.target.copy_(gradient)
        solution = passes.program(problem, None, None)()
        results.append((solution.coefficients.clone(), item.target.clone()) if len(results) < 20 else results[-1])
    assert all(torch.equal(a, b) for one in results for a, b in zip(one, results[0], strict=True))
    assert torch.equal(item.target, results[0][1])


def test_several_dtypes_are_left_to_the_single_passes(device):
    problem = Problem(*(torch.ones(1, 1, dtype=torch.float64, device=device) for _ in range(3)), False)
    mixed = [*slices_of(1, True, device), *slices_of(1, True, device, torch.bfloat16)]
    assert TritonBackend(mixed, 1, 1, device).program(problem, None, None) is None


class Devices:
    """Which device is current, and which it was at each launch; stands for torch.cuda and for a kernel."""

    def __init__(self, monkeypatch):
        self.now, self.launches = 0, []
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "device", self.switched)

    @contextlib.contextmanager
    def switched(self, device):
        before, self.now = self.now, device.index
        yield
        self.now = before

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.launches.append(self.now)


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="there is no second GPU")
def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch):
    """Triton launches on the current device, whatever the tensors lie on."""
    with FakeTensorMode():
        tensors = [torch.empty(3, device=f"cuda:{i}") for i in (1, 0)]
    devices = Devices(monkeypatch)
    for tensor in tensors:
        triton._Launcher(devices, (1,), (5, tensor))()
    assert devices.launches == [1, 0]
    assert devices.now == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
@pytest.mark.parametrize("settings", [{"floor": None}, {"references": 2}, {"blocks": "tensor"}], ids=str)
def test_a_model_on_two_gpus_is_corrected_as_on_one(settings):
    paths = []
    for places in (("cuda:0", "cuda:0"), ("cuda:1", "cuda:0"), ("cuda:1", "cuda:1")):
        generator = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(1100, generator=generator).to(place)) for place in places]
        optimizer = torch.optim.SGD(params, lr=0.1)
        congruency.DCL(optimizer, **settings)
        for _ in range(8):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator).to(p.device) + 0.2 * p.detach()
            optimizer.step()
        paths.append(torch.cat([p.detach().cpu() for p in params]))
    for other in paths[1:]:
        torch.testing.assert_close(other, paths[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("phase", [-1, 0, 1, 2, 7])
def test_record_and_accumulate_by_phase(phase, device):
    torch.manual_seed(0)
    tensors = [torch.randn(n, device=device) for n in (3, triton._CHUNK + 77)]
    tensors.append(torch.randn(40, device=device).bfloat16())  # another launch of the same step
    slots = [[torch.randn_like(t) for _ in range(2)] for t in tensors]
    for kind in ("record", "accumulate", "skipped"):
        held = [[slot.clone() for slot in one] for one in slots]
        if kind == "record":
            triton.Clock.at(phase, 0, None, 2, device).tick(tensors, held)
        else:
            held = [[slot.to(torch.float32, copy=True) for slot in one] for one in slots]
            finite = torch.tensor(kind == "accumulate", device=device)
            clock = torch.tensor(phase, device=device)
            triton.accumulate(tensors, held, clock, finite, torch.tensor(4.0, device=device))
        for tensor, one, old in zip(tensors, held, slots, strict=True):
            expected = [slot.clone() for slot in old]
            if kind == "record" and phase in (0, 1):
                expected[phase] = tensor
            elif kind != "record":
                expected = [slot.float() for slot in old]
                at = min(phase, 1)
                base = torch.zeros_like(expected[at]) if phase < 2 else expected[at]
                if phase >= 0:
                    expected[at] = base + (tensor.float() / 4 if kind == "accumulate" else 0)
            for a, b in zip(one, expected, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize(("offset", "window", "count"), [(0, None, 1), (2, None, 2), (1, 4, 2)])
def test_the_clock_on_the_device(offset, window, count, recording, device):
    clock = triton.Clock.at(0, offset, window, count, device)
    weights = [torch.randn(7, device=device), torch.randn(9, device=device).bfloat16()] * recording
    slots = [[torch.zeros_like(weight) for _ in range(count)] for weight in weights]
    references = congruency.References(count, window=window, offset=offset)
    for step in range(11):
        clock.tick(weights, slots)
        references.step = step
        found = int(clock.phase), bool(clock.gate), int(clock.steps[0])
        assert found == (references.phase, references.phase >= count, step + 1)
