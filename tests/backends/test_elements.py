"""Blocks of one element: each backend's agreement and mask against a slow version; solving with floors likewise."""

import functools
import itertools
import math

import pytest
import torch
from named import ON_GPU, backend
from scipy.optimize import nnls

from congruency.backends import Basis, ElementRule, ParameterSlice, Problem
from congruency.backends.torch import TorchBackend

# around the native backend's runs of 1024 and units of 8192 elements, and around Triton's chunks
SIZES = (1, 7, 1023, 1024, 1025, 8192 + 3, 100_000)  # the last is work for two threads
SMALL = (1, 7, 1023, 1024, 1025, 2051)


def sizes_of(name):
    return SIZES if name != "triton" or ON_GPU else SMALL


def values(size, dtype, device, generator):
    """Normal numbers, every eighth exactly 0."""
    tensor = torch.randn(size, generator=generator, dtype=torch.float64)
    tensor[torch.rand(size, generator=generator) < 0.125] = 0.0
    return tensor.to(device, dtype)


def make_slices(sizes, n, chained, update, dtype, device):
    """Slices with n constraints, each a basis of its own, and the weights before the step first."""
    generator = torch.Generator().manual_seed(n)
    slices = []
    for block, size in enumerate(sizes):
        new = functools.partial(values, size, dtype, device, generator)
        bases = [Basis([new()])] if update else []
        if chained:
            last = new()
            bases += [Basis([new(), last], chained=True) for _ in range(n)]
        else:
            bases += [Basis([new() for _ in range(n)])]
        slices.append(ParameterSlice(new(), bases, block))
    return slices


def slow(item, rule, decay, scale):
    """(4,) and what the target becomes, and where rounding of y may decide its sign."""
    vectors = []
    for tensors, chained, _ in item.bases:
        parts = [t.double().cpu() for t in tensors]
        vectors += [b - a for a, b in itertools.pairwise(parts)] if chained else parts
    y = item.target.double().cpu()
    before = vectors.pop(0) if rule.update else None
    if before is not None:
        y = decay * before - y
    constraints = [s * v for s, v in zip(rule.signs.tolist(), vectors, strict=True)]
    kept = torch.ones_like(y, dtype=torch.bool)
    for c in constraints:
        kept &= (y * c > 0) if rule.strict else (y * c >= 0)
    first = constraints[0]
    sums = torch.tensor([kept.sum(), y @ first, y @ y, first @ first], dtype=torch.float64)
    base = torch.zeros_like(y)
    if before is not None:
        base = torch.where(y * before < 0, before, decay * before) if rule.mask_decay else decay * before
    kept_y = torch.where(kept, y * (1.0 if scale is None else scale), 0.0)
    return sums, base - kept_y if rule.update else kept_y


RULES = [
    (update, strict, scaled, mask_decay)
    for update, strict, scaled, mask_decay in itertools.product([False, True], repeat=4)
    if update or not mask_decay
]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", ["torch", "native", "triton"])
def test_agreement_and_mask(name, n, chained, dtype, device, threads):
    if name == "triton" and not ON_GPU and n == 2:
        pytest.skip("the interpreter is slow")
    sizes = sizes_of(name)
    unit = torch.finfo(dtype).eps
    signs = torch.tensor([1.0, -1.0, 1.0][:n], dtype=torch.float64, device=device)
    for update, strict, scaled, mask_decay in RULES:
        rule = ElementRule(
            signs=signs, update=update, strict=strict, mask_decay=mask_decay,
        )  # fmt: skip
        decay = torch.full((len(sizes),), 0.75 if update else 1.0, dtype=torch.float64, device=device)  # exact
        scale = 1 + torch.arange(len(sizes), dtype=torch.float64, device=device) / 4 if scaled else None
        results = []
        for count in (1, 2) if name == "native" else (1,):
            threads(count)
            slices = make_slices(sizes, n, chained, update, dtype, device)
            expected = [slow(item, rule, 0.75, None if scale is None else float(scale[i])) for i, item in
                        enumerate(slices)]  # fmt: skip
            before = [item.target.clone() for item in slices]
            passes = backend(name)(slices, n + update, len(sizes), device)
            found = passes.agreement(rule, decay)
            assert all(torch.equal(item.target, old) for item, old in zip(slices, before, strict=True))
            written = passes.mask(rule, decay, scale)
            if not scaled:
                assert torch.equal(written, found)
            for item, old, row, (sums, target) in zip(slices, before, found.cpu(), expected, strict=True):
                assert row[0] == sums[0]
                lengths = torch.stack([(sums[2] * sums[3]).sqrt(), sums[2], sums[3]])
                assert ((row[1:] - sums[1:]).abs() <= 32 * unit * lengths).all()  # no float32 sum is long
                largest = max(1.0, float(target.abs().max()), float(old.abs().max()))
                torch.testing.assert_close(item.target.double().cpu(), target, rtol=0, atol=16 * unit * largest)
                if not (scaled or mask_decay or update):  # what is kept keeps its bits
                    same = item.target == old
                    assert bool((same | (item.target == 0)).all())
            results.append((found, [item.target for item in slices]))
        for sums, targets in results[1:]:  # threads change no bit
            assert torch.equal(sums, results[0][0])
            assert all(torch.equal(a, b) for a, b in zip(targets, results[0][1], strict=True))


@pytest.mark.parametrize("name", ["native", "triton"])
def test_what_a_kernel_cannot_take_goes_to_torch(name, device):
    """Mixed precisions, layouts and margins: the same numbers, whoever runs them."""
    generator = torch.Generator().manual_seed(0)

    def make(shape, dtype=torch.float32, layout=torch.contiguous_format):
        parts = [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(3)]
        parts = [p.to(memory_format=layout) if len(shape) == 4 else p for p in parts]
        return ParameterSlice(parts[0], [Basis([parts[1]]), Basis([parts[2]])], 0)

    slices = [
        make((33,)), make((4, 3, 5, 5), layout=torch.channels_last), make((20,), torch.float64),
        make((17,), torch.bfloat16), make((0,)),
    ]  # fmt: skip
    slices = [item._replace(block=i) for i, item in enumerate(slices)]
    twins = [item._replace(target=item.target.clone(memory_format=torch.preserve_format)) for item in slices]
    for margin in (None, 0.3):
        ones = torch.ones(len(slices), 1, dtype=torch.float64, device=device)
        rule = ElementRule(signs=ones[0], margins=None if margin is None else margin * ones, update=True)
        decay = torch.full((len(slices),), 0.5, dtype=torch.float64, device=device)
        found = backend(name)(slices, 2, len(slices), device).mask(rule, decay)
        plain = TorchBackend(twins, 2, len(slices), device).mask(rule, decay)
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-4)
        for item, twin in zip(slices, twins, strict=True):
            torch.testing.assert_close(item.target, twin.target)
    passes = backend(name)(slices, 2, len(slices), device)
    passes.mask(rule, decay)
    assert not getattr(passes, "_elementwise", {})  # nothing holds this rule: another may take its id


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["torch", "native", "triton"])
def test_the_step_of_a_weight_that_has_only_decayed_is_zero(name, dtype, device):
    """As of a row of an embedding that no batch has met: its update is 0, not a rounding error that opposes it."""
    decay = 1 - 3e-5
    before = torch.randn(2000, device=device, dtype=dtype)
    target = before * decay
    for scale in (None, torch.full((1,), 1.5, dtype=torch.float64, device=device)):
        for strict in (False, True):
            item = ParameterSlice(target.clone(), [Basis([before]), Basis([torch.zeros_like(before)])], 0)
            ones = torch.ones(1, dtype=torch.float64, device=device)
            rule = ElementRule(ones, update=True, strict=strict, mask_decay=True)
            passes = backend(name)([item], 2, 1, device)
            assert passes.agreement(rule, ones * decay)[0].tolist() == [0.0 if strict else 2000.0, 0.0, 0.0, 0.0]
            passes.mask(rule, ones * decay, scale)
            assert torch.equal(item.target, target)


@pytest.mark.parametrize("name", ["native", "triton"])
def test_negative_views_go_to_torch(name, device):
    """The gradient as a constraint may be one: the bits in its memory have the other sign."""
    target, before, gradient = (torch.randn(50, device=device) for _ in range(3))
    item = ParameterSlice(target, [Basis([before]), Basis([torch._neg_view(gradient)])], 0)
    twin = ParameterSlice(target.clone(), [Basis([before]), Basis([-gradient])], 0)
    ones = torch.ones(1, dtype=torch.float64, device=device)
    rule = ElementRule(ones, update=True)
    products = [backend(name)([each], 2, 1, device).gram() for each in (item, twin)]
    torch.testing.assert_close(*products, rtol=1e-5, atol=1e-4)
    for each in (item, twin):
        backend(name)([each], 2, 1, device).mask(rule, ones)
    assert torch.equal(item.target, twin.target)


@pytest.mark.parametrize("only_violated", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.2])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ["torch", "native", "triton"])
def test_floors_and_previous_lengths(name, n, margin, only_violated, device):
    """A constraint counts where -floor <= cos(c, y) and |a|^2 <= previous, which becomes |a|^2 unless it is inf."""
    generator = torch.Generator().manual_seed(n)
    blocks = 40
    vectors = torch.randn(blocks, 1 + n, 6, generator=generator, dtype=torch.float64)
    vectors[3, 1] = 0
    floors = torch.tensor([0.3, 0.6, math.inf][:n] if n > 1 else [0.4], dtype=torch.float64)
    length2 = vectors[:, 1:].square().sum(-1)
    previous = length2 * torch.where(torch.rand(blocks, n, generator=generator) < 0.5, 0.5, 2.0)
    previous[5:10] = math.inf
    signs = torch.tensor([1.0, -1.0, 1.0][:n], dtype=torch.float64)
    problem = Problem(
        combination=torch.eye(n, dtype=torch.float64, device=device), signs=signs.to(device),
        margins=torch.full((n,), margin, dtype=torch.float64, device=device), only_violated=only_violated,
        floors=floors.to(device), previous=previous.clone().to(device),
    )  # fmt: skip
    found = backend(name).solve((vectors @ vectors.mT).to(device), problem)
    out = skipped = 0
    for block, multipliers in enumerate(found.multipliers.cpu()):
        y, constraints = vectors[block, 0], vectors[block, 1:] * signs[:, None]
        x, counting = y, []
        for i, c in enumerate(constraints):
            weak = floors[i] == math.inf or c @ y >= -floors[i] * c.norm() * y.norm()
            if c.norm() > 0 and weak and length2[block, i] <= previous[block, i]:
                counting.append(i)
        out += n - len(counting)
        if counting and not (only_violated and not any(constraints[i] @ y < 0 for i in counting)):
            rows = constraints[counting]
            shifted = y + margin * rows.sum(0)
            u, _ = nnls(rows.T.numpy(), -shifted.numpy(), maxiter=1000)
            x = shifted + torch.from_numpy(u) @ rows
        else:
            skipped += 1
        torch.testing.assert_close(y + multipliers @ constraints, x, rtol=1e-8, atol=1e-9)
        assert bool(found.applied[block]) == (not torch.equal(x, y))
    assert out > blocks // 3
    assert skipped > 0
    expected = torch.where(torch.isinf(previous), math.inf, length2)
    torch.testing.assert_close(problem.previous.cpu(), expected, rtol=1e-12, atol=0)
