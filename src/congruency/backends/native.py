"""The CPU backend in C: both passes, and the quadratic program between them.

The compiled part (``native.c``) is built when the package is installed, if there is a C compiler; without it, importing
this module fails. It handles slices whose tensors are all float32 or all float64, and dense in memory in the same
order. Other slices go to :mod:`congruency.backends.torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from congruency.backends.base import ElementRule, ParameterSlice, Problem, Solution
from congruency.backends.torch import TorchBackend, same_layout, solve_with

try:
    from congruency.backends import _native
except ImportError as reason:
    raise ImportError(
        f"the compiled backend is not there ({reason}); install a C compiler and then the package once more"
    ) from reason

__all__ = ["NativeBackend"]


def _setup(library: str) -> None:
    """Pass torch's types to the compiled part, and a library linked with torch's OpenMP, whose threads it uses."""
    _native.setup(library, Tensor, torch.nn.Parameter, torch.float32, torch.float64)


_setup(torch._C.__file__)


class NativeBackend:
    """Both passes over the slices of one step: see :class:`congruency.backends.base.Backend`."""

    def __init__(self, slices: Sequence[ParameterSlice], size: int, blocks: int, device: torch.device) -> None:
        self._slices, self._size, self._blocks = slices, size, blocks
        self._agreements: dict[bool, Tensor] = {}
        self._rest: TorchBackend | None = None
        job = _native.prepare(slices, size, blocks, torch.get_num_threads(), False)
        self.reusable = job is not None
        if job is not None:
            self._jobs, self._sums = [job], [self._room()]
            return
        groups, rest = _split(slices)
        jobs = [_native.prepare(group, size, blocks, torch.get_num_threads(), True) for group in groups]
        self._jobs = [job for job in jobs if job is not None]
        self._sums = [self._room() for _ in self._jobs]
        if rest or not groups:
            self._rest = TorchBackend(rest, size, blocks, device)

    def _room(self) -> Tensor:
        """Allocate the output buffer of the inner products, reused by every call."""
        return torch.empty(self._blocks, 1 + self._size, 1 + self._size, dtype=torch.float64)

    def release(self) -> None:
        self._slices = ()

    def point(self, gradients: tuple[int, ...]) -> bool:
        _native.point(self._jobs[0], gradients)
        return True

    def program(self, problem: Problem, scale: Tensor | None, known: Tensor | None) -> Callable[[], Solution] | None:
        return None

    def gram(self, *, wide: bool = False, known: Tensor | None = None) -> Tensor:
        parts: list[Tensor] = []
        for job, sums in zip(self._jobs, self._sums, strict=True):
            held = known if known is None or not parts else torch.zeros_like(known)  # known products are added once
            _native.gram(job, wide, 0 if held is None else held.data_ptr(), sums.data_ptr())
            parts.append(sums)
        if self._rest is not None:
            held = known if known is None or not parts else torch.zeros_like(known)
            parts.append(self._rest.gram(wide=wide, known=held))
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    @staticmethod
    def solve(
        gram: Tensor, problem: Problem, scale: Tensor | None = None, reuse: dict[object, object] | None = None
    ) -> Solution:
        if problem.gate is not None or problem.counts is not None:
            return solve_with(NativeBackend.solve_dual, gram, problem, scale)
        n = problem.signs.shape[0]
        if gram.shape[1] != 1 + n:
            raise ValueError(f"a problem of {n} constraints needs {1 + n} x {1 + n} inner products, got {gram.shape}")
        key = (id(problem), gram.data_ptr())
        solver = None if reuse is None else reuse.get(key)
        if not isinstance(solver, _Solver):
            solver = _Solver(gram.contiguous(), problem)
            if reuse is not None:
                reuse.clear()
                reuse[key] = solver
        return solver(1.0 if scale is None else scale.item())

    def apply(self, solution: Solution) -> None:
        applied = solution.applied.tolist()
        if not any(applied):
            return
        coefficients, flags = solution.coefficients.contiguous(), solution.applied.contiguous()
        if coefficients.shape != (self._blocks, self._size):
            raise ValueError(f"{self._blocks} x {self._size} coefficients are needed, got {tuple(coefficients.shape)}")
        if self._rest is not None:
            self._rest.apply(solution)
        for job in self._jobs:
            _native.apply(job, coefficients.data_ptr(), flags.data_ptr())

    def agreement(self, rule: ElementRule, decay: Tensor) -> Tensor:
        return self._elements(rule, decay, None, write=False)

    def mask(self, rule: ElementRule, decay: Tensor, scale: Tensor | None = None) -> Tensor:
        return self._elements(rule, decay, scale, write=True)

    def _elements(self, rule: ElementRule, decay: Tensor, scale: Tensor | None, *, write: bool) -> Tensor:
        if not self.reusable or rule.margins is not None:
            rest = TorchBackend(self._slices, self._size, self._blocks, decay.device)
            return rest.mask(rule, decay, scale) if write else rest.agreement(rule, decay)
        sums = self._agreements.get(scale is None)
        if sums is None:
            sums = self._agreements[scale is None] = torch.empty(self._blocks, 4, dtype=torch.float64)
        _native.element(
            self._jobs[0], rule.update, rule.strict, rule.mask_decay, write, rule.signs.data_ptr(), decay.data_ptr(),
            0 if scale is None else scale.data_ptr(), sums.data_ptr(),
        )  # fmt: skip
        return sums

    @staticmethod
    def settle(
        agreement: Tensor, sizes: Tensor, most: float, counts: Tensor | None, means: Tensor,
        reuse: dict[object, object] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if counts is not None:
            return TorchBackend.settle(agreement, sizes, most, counts, means)
        scales, finite = torch.empty_like(sizes), torch.empty((), dtype=torch.bool)
        agreement = agreement.contiguous()
        addresses = (agreement.data_ptr(), sizes.data_ptr(), scales.data_ptr(), finite.data_ptr(), means.data_ptr())
        _native.settle(*addresses, len(sizes), most)
        return scales, finite

    @staticmethod
    def solve_dual(gram: Tensor, products: Tensor, margins: Tensor) -> Tensor:
        gram, products = gram.contiguous(), products.contiguous()
        margins = margins.expand_as(products).contiguous()
        multipliers = torch.empty_like(products)
        addresses = (gram.data_ptr(), products.data_ptr(), margins.data_ptr(), multipliers.data_ptr())
        _native.solve_dual(*addresses, *products.shape)
        return multipliers


class _Solver:
    """Solves one problem for inner products at a fixed address; reuses its output buffers."""

    def __init__(self, gram: Tensor, problem: Problem) -> None:
        blocks, n, margins = gram.shape[0], problem.signs.shape[0], problem.margins.contiguous()
        self._held = (gram, margins, problem)  # keeps the addresses valid and the problem's id unique
        self._first = (
            gram.data_ptr(), problem.combination.data_ptr(), problem.signs.data_ptr(),
            margins.data_ptr(), n if margins.ndim == 2 else 0,
            0 if problem.floors is None else problem.floors.data_ptr(),
            0 if problem.previous is None else problem.previous.data_ptr(),
            0 if problem.means is None else problem.means.data_ptr(), problem.only_violated,
        )  # fmt: skip
        self._solution = one = Solution.empty(blocks, problem, gram.device)
        answers = (one.gradient_norm2, one.products, one.gram, one.multipliers, one.coefficients, one.applied)
        self._last = (blocks, n, *(answer.data_ptr() for answer in answers))

    def __call__(self, scale: float) -> Solution:
        _native.solve(*self._first, scale, *self._last)
        return self._solution


def _split(slices: Sequence[ParameterSlice]) -> tuple[list[list[ParameterSlice]], list[ParameterSlice]]:
    """Return the slices that the compiled part supports, grouped by dtype and basis structure, and the others."""
    groups: dict[tuple[object, ...], list[ParameterSlice]] = {}
    rest = []
    for item in slices:
        if _can_take(item):
            structure = ((basis.chained, len(basis.tensors)) for basis in item.bases)
            groups.setdefault((item.target.dtype, *structure), []).append(item)
        else:
            rest.append(item)
    return list(groups.values()), rest


def _can_take(item: ParameterSlice) -> bool:
    size = sum(basis.size for basis in item.bases)
    dense = same_layout(item.tensors)  # for example channels_last
    return _native.prepare([item._replace(block=0)], size, 1, 1, dense) is not None
