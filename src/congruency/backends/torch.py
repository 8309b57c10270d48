"""The backend in plain torch operations, for any device. Compiled backends fall back to it.

Both passes work on cache-sized chunks, so that no difference ``w - r`` is ever stored for more than a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from congruency import cone
from congruency.backends.base import Basis, ElementRule, ParameterSlice, Problem, Solution, add_to_means

__all__ = ["TorchBackend", "same_layout", "solve_with", "working_dtype"]

# Elements per chunk. On the CPU a chunk and its operands fit a core's L2 cache; on an accelerator the chunk only bounds
# the extra memory.
_HOST_CHUNK = 1 << 18
_DEVICE_CHUNK = 1 << 22


class TorchBackend:
    """Both passes over the slices of one step: see :class:`congruency.backends.base.Backend`."""

    reusable = False

    def __init__(self, slices: Sequence[ParameterSlice], size: int, blocks: int, device: torch.device) -> None:
        self._slices = [item for item in slices if item.target.numel()]
        self._size, self._blocks, self._device = size, blocks, device
        self._on_host = device.type == "cpu"

    def release(self) -> None:
        raise RuntimeError("plain torch operations need their tensors")

    def point(self, gradients: tuple[int, ...]) -> bool:
        return False

    def program(self, problem: Problem, scale: Tensor | None, known: Tensor | None) -> Callable[[], Solution] | None:
        return None

    def gram(self, *, wide: bool = False, known: Tensor | None = None) -> Tensor:
        total = torch.zeros(self._blocks, 1 + self._size, 1 + self._size, dtype=torch.float64, device=self._device)
        if known is not None and self._slices:
            return self._moving_products(total, known)
        add = _add_pair if self._on_host and self._size <= 1 and not wide else _add_products
        for item in self._slices:
            add(total[item.block], item, self._size)
        return total

    def _moving_products(self, total: Tensor, known: Tensor) -> Tensor:
        """Return the inner products of the vectors that are not fixed with all vectors, and the known ones."""
        moving = [k for k, still in enumerate(self._slices[0].fixed) if not still]
        for item in self._slices:
            _add_products(total[item.block], item, self._size, moving)
        result = known.clone()
        for k in moving:
            result[:, k] = total[:, k]
            result[:, :, k] = total[:, k]
        return result

    @staticmethod
    def solve(
        gram: Tensor, problem: Problem, scale: Tensor | None = None, reuse: dict[object, object] | None = None
    ) -> Solution:
        return solve_with(cone.solve_dual, gram, problem, scale)

    def apply(self, solution: Solution) -> None:
        if self._on_host:
            self._apply_on_host(solution.coefficients.tolist(), solution.applied.tolist())
            return
        for item in self._slices:
            dtype = working_dtype(item.target)
            factors = solution.coefficients[item.block].to(dtype)
            with _Writable(item) as item:
                for gradient, tensors in _chunks(item, _DEVICE_CHUNK):
                    x = gradient.to(dtype, copy=True)
                    b = torch.empty_like(x)
                    for k, (end, start) in enumerate(_vectors(item.bases, tensors)):
                        _difference(end, start, out=b)
                        x.addcmul_(b, factors[k])
                    gradient.copy_(torch.where(solution.applied[item.block], x.to(gradient.dtype), gradient))

    def _apply_on_host(self, coefficients: Sequence[Sequence[float]], applied: Sequence[bool]) -> None:
        for item in reversed(self._slices):  # in reverse: what the first pass read last is still in the cache
            if not applied[item.block]:
                continue
            dtype = working_dtype(item.target)
            buffer = torch.empty(min(_HOST_CHUNK, item.target.numel()), dtype=dtype)
            with _Writable(item) as item:
                place = item.target.data_ptr()
                read_again = any(tensor.data_ptr() == place for basis in item.bases for tensor in basis.tensors)
                for gradient, tensors in _chunks(item, _HOST_CHUNK):
                    x = gradient.to(dtype, copy=read_again)
                    b = buffer[: x.numel()]
                    for (end, start), factor in zip(
                        _vectors(item.bases, tensors), coefficients[item.block], strict=True
                    ):
                        _difference(end, start, out=b)
                        x.add_(b, alpha=factor)
                    if x is not gradient:
                        gradient.copy_(x)

    def agreement(self, rule: ElementRule, decay: Tensor) -> Tensor:
        sums = torch.zeros(self._blocks, 4, dtype=torch.float64, device=self._device)
        for item in self._slices:
            y, constraints, _ = _element(item, rule, decay)
            first, shifted = constraints[0], _shifted(y, constraints, rule, item.block)
            sums[item.block, 0] = (_kept(shifted, constraints, rule) & (shifted == y)).sum()
            for place, (a, b) in enumerate(((y, first), (y, y), (first, first)), start=1):
                sums[item.block, place] = (a.double() * b.double()).sum()
        return sums

    def mask(self, rule: ElementRule, decay: Tensor, scale: Tensor | None = None) -> Tensor:
        sums = self.agreement(rule, decay)
        for item in self._slices:
            y, constraints, before = _element(item, rule, decay)
            base = torch.zeros_like(y) if before is None else before * decay[item.block].to(y)
            if before is not None and rule.mask_decay:
                base = torch.where(_opposed(y, before), before, base)
            y = _shifted(y, constraints, rule, item.block)
            kept = _kept(y, constraints, rule)
            if scale is None and not rule.mask_decay and rule.margins is None:  # kept elements keep their bits
                item.target.copy_(torch.where(kept, item.target, base.to(item.target.dtype)))
                continue
            x = torch.where(kept, y if scale is None else y * scale[item.block].to(y), 0.0)
            item.target.copy_(x if before is None else base - x)
        return sums

    @staticmethod
    def settle(
        agreement: Tensor, sizes: Tensor, most: float, counts: Tensor | None, means: Tensor,
        reuse: dict[object, object] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        kept, finite = agreement[:, 0], torch.isfinite(agreement).all()
        if counts is not None:
            counts[0] += kept.sum() < sizes.sum()
            counts[1] += ~finite
        total, product, norm2, length2 = agreement.sum(0)
        step = product / (norm2 * length2).sqrt(), finite.new_full((), math.nan, dtype=torch.float64), length2.sqrt()
        add_to_means(means, [torch.where(finite, x, math.nan) for x in (*step, total / sizes.sum())], slice(0, 4))
        return sizes / torch.maximum(kept, sizes / most), finite

    @staticmethod
    def solve_dual(gram: Tensor, products: Tensor, margins: Tensor) -> Tensor:
        return cone.solve_dual(gram, products, margins)


def solve_with(
    solve_dual: Callable[[Tensor, Tensor, Tensor], Tensor], gram: Tensor, problem: Problem, scale: Tensor | None
) -> Solution:
    """Solve all blocks at once with a dual solver, without branching on tensor values."""
    combination, signs = problem.combination, problem.signs
    if problem.gate is not None:
        combination = combination * problem.gate.unsqueeze(-1)
    finite = torch.isfinite(gram).all()
    gram = torch.where(finite, gram, 0.0)
    factor = torch.ones((), dtype=torch.float64, device=gram.device) if scale is None else scale.to(gram)
    norm2 = gram[:, 0, 0] / factor**2
    products = gram[:, 0, 1:] @ combination.mT / factor
    between = combination @ gram[:, 1:, 1:] @ combination.mT
    length2 = between.diagonal(dim1=-2, dim2=-1)
    signed, counts = products * signs, length2 > 0
    if problem.floors is not None and problem.previous is not None:
        weak = signed >= -problem.floors * (norm2.unsqueeze(-1) * length2).sqrt()
        counts = counts & (torch.isinf(problem.floors) | weak) & (length2 <= problem.previous)
        problem.previous.copy_(torch.where(torch.isinf(problem.previous), math.inf, length2))
    counted = counts.to(gram)
    signed_gram = between * torch.outer(signs, signs) * counted.unsqueeze(-1) * counted.unsqueeze(-2)
    multipliers = solve_dual(signed_gram, signed * counted, problem.margins)
    if problem.only_violated:
        counts = counts & ((signed < 0) & counts).any(-1, keepdim=True)
    multipliers = torch.where(finite & counts, multipliers, 0.0)
    if problem.counts is not None:
        problem.counts[0] += (multipliers != 0).any()
        problem.counts[1] += ~finite
        problem.counts[3] += 1
    solution = Solution(
        finite=finite,
        gradient_norm2=norm2,
        products=products,
        gram=between,
        signs=signs,
        multipliers=multipliers,
        applied=(multipliers != 0).any(-1),
        coefficients=(multipliers * signs) @ combination * factor,
        gate=problem.gate,
    )
    if problem.means is not None:
        add_to_means(problem.means, [part.nanmean() for part in solution.measures()[:3]], slice(0, 3))
    return solution


def _element(item: ParameterSlice, rule: ElementRule, decay: Tensor) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Return y, the constraints and, if an update is corrected, the weights before the step."""
    dtype = working_dtype(item.target)
    vectors = []
    for end, start in _vectors(item.bases, [tensor for basis in item.bases for tensor in basis.tensors]):
        vectors.append(end.to(dtype) if start is None else end.to(dtype) - start.to(dtype))
    before = vectors.pop(0) if rule.update else None
    y = item.target.to(dtype)
    if before is not None:
        y = before * decay[item.block].to(dtype) - y
    return y, [sign.to(vector) * vector for sign, vector in zip(rule.signs, vectors, strict=True)], before


def _shifted(y: Tensor, constraints: Sequence[Tensor], rule: ElementRule, block: int) -> Tensor:
    """Return ``y + sum_i margin_i c_i``; with ``only_violated``, y where it opposes no constraint."""
    if rule.margins is None:
        return y
    shifted: Tensor = y + sum(margin.to(c) * c for margin, c in zip(rule.margins[block], constraints, strict=True))
    if not rule.only_violated:
        return shifted
    return torch.where(torch.stack([_opposed(y, c) for c in constraints]).any(0), shifted, y)


def _opposed(a: Tensor, b: Tensor) -> Tensor:
    """Return where a and b have opposite signs; by their signs, since a product of small numbers rounds to 0."""
    return a.sign() * b.sign() < 0


def _kept(y: Tensor, constraints: Sequence[Tensor], rule: ElementRule) -> Tensor:
    """Return which elements of y are kept, not set to 0."""
    kept = torch.ones_like(y, dtype=torch.bool)
    for c in constraints:
        kept &= y.sign() * c.sign() > 0 if rule.strict else ~_opposed(y, c)
    return kept


def _add_products(total: Tensor, item: ParameterSlice, size: int, moving: Sequence[int] | None = None) -> None:
    """Add a slice's inner products to ``total``, (1 + size, 1 + size), or only to its rows ``moving``."""
    chunk = (_HOST_CHUNK // max(1, size) if total.device.type == "cpu" else _DEVICE_CHUNK) // (1 + size)
    chunk = max(1, chunk)
    buffer = torch.empty(1 + size, min(chunk, item.target.numel()), dtype=torch.float64, device=total.device)
    for gradient, tensors in _chunks(item, chunk):
        vectors = buffer[:, : gradient.numel()]
        vectors[0].copy_(gradient)
        for k, (end, start) in enumerate(_vectors(item.bases, tensors)):
            _difference(end, start, out=vectors[1 + k])
        # float64 products: accurate enough for any constraint, and not affected by tf32 or bf16 settings
        if moving is None:
            total.addmm_(vectors, vectors.mT)
        else:
            for k in moving:
                total[k].addmv_(vectors, vectors[k])


def _add_pair(total: Tensor, item: ParameterSlice, size: int) -> None:
    """Like :func:`_add_products` for at most one basis vector on the CPU: dot products in the working dtype."""
    dtype = working_dtype(item.target)
    buffer = torch.empty(min(_HOST_CHUNK, item.target.numel()), dtype=dtype)
    gg = gb = bb = 0.0
    for gradient, tensors in _chunks(item, _HOST_CHUNK):
        g = gradient if gradient.dtype == dtype else gradient.to(dtype)
        gg += torch.dot(g, g).item()
        for end, start in _vectors(item.bases, tensors):
            b = buffer[: g.numel()]
            _difference(end, start, out=b)
            gb += torch.dot(g, b).item()
            bb += torch.dot(b, b).item()
    total += torch.tensor([[gg, gb], [gb, bb]] if size else [[gg]], dtype=torch.float64)


class _Writable:
    """A context manager that gives a slice whose target can be written in flat chunks, whatever its layout."""

    def __init__(self, item: ParameterSlice) -> None:
        self.original = item.target
        self.item = item if same_layout(item.tensors) else item._replace(target=item.target.contiguous())

    def __enter__(self) -> ParameterSlice:
        return self.item

    def __exit__(self, *_: object) -> None:
        if self.item.target is not self.original:
            self.original.copy_(self.item.target)


def _chunks(item: ParameterSlice, length: int) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
    """Yield flat chunks of the target and, for the same elements, of every tensor of the bases."""
    first, *rest = _flattened(item.tensors)
    if first.numel() <= length:
        yield first, rest
        return
    for start in range(0, first.numel(), length):
        yield first[start : start + length], [tensor[start : start + length] for tensor in rest]


def _vectors(bases: Sequence[Basis], tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the basis vectors as pairs (end, start), meaning ``end - start``, or (vector, None)."""
    position = 0
    for basis in bases:
        count = len(basis.tensors)
        own = tensors[position : position + count]
        position += count
        if basis.chained:
            yield from zip(own[1:], own[:-1], strict=True)
        else:
            yield from ((tensor, None) for tensor in own)


def _difference(end: Tensor, start: Tensor | None, out: Tensor) -> None:
    """Write ``end - start`` to ``out``, computed in its dtype: bfloat16 weights must not be subtracted in bfloat16."""
    if start is None:
        out.copy_(end)
    elif end.dtype == out.dtype:
        torch.sub(end, start, out=out)
    else:
        out.copy_(end)
        out.sub_(start)


def working_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype that a tensor is corrected in: float64 for float64, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _flattened(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return one-dimensional views if the memory layouts are the same, else contiguous copies where needed."""
    if all(map(Tensor.is_contiguous, tensors)):
        return [tensor.view(-1) for tensor in tensors]
    if same_layout(tensors):  # for example channels_last: traverse in memory order
        return [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
    return [tensor.contiguous().view(-1) for tensor in tensors]


def same_layout(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors are dense and store their elements in the same order."""
    if all(map(Tensor.is_contiguous, tensors)):
        return True
    strides = tensors[0].stride()
    return all(tensor.stride() == strides for tensor in tensors) and _is_dense(tensors[0])


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a range of memory without gaps or overlaps, in any order."""
    expected = 1
    for stride, length in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= length
    return True
