"""The backends' protocol, and what it takes and gives: slices of the parameters, the problem and its solution."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = [
    "Backend", "Basis", "ElementRule", "ParameterSlice", "Problem", "Solution", "add_to_means", "kinds_of",
]  # fmt: skip


_dtype_of = operator.attrgetter("dtype")


class Basis(NamedTuple):
    """The basis vectors ``b_1..b_m`` that one constraint source gives for one parameter.

    With ``chained`` they are the consecutive differences of m + 1 tensors, ``b_k = tensors[k + 1] - tensors[k]``:
    close reference points then cost no precision, since each small difference is formed before it is multiplied.
    Otherwise ``b_k = tensors[k]``. All tensors have the (local) shape of the parameter.

    The first ``fixed`` vectors hold the same numbers in every step until the source's
    :attr:`~congruency.ConstraintSource.recorded` changes: their inner products are computed once.

    Examples:
        >>> weight, reference = torch.ones(3), torch.zeros(3)
        >>> congruency.Basis([reference, weight], chained=True).size  # one vector, weight - reference
        1
        >>> congruency.Basis([torch.ones(3), torch.zeros(3)]).size
        2
    """

    tensors: Sequence[Tensor]
    chained: bool = False
    fixed: int = 0

    @property
    def size(self) -> int:
        """m, how many basis vectors there are."""
        return max(0, len(self.tensors) - self.chained)


class ParameterSlice(NamedTuple):
    """One parameter's part in a step: what is corrected, its basis vectors and the block whose problem it belongs to.

    The target is written by :meth:`Backend.apply`, and its inner products come first in :meth:`Backend.gram`: the
    gradient, or the parameter itself where an update is corrected. The gradient is the one tensor that lies elsewhere
    at nearly every step.
    """

    target: Tensor
    bases: Sequence[Basis]
    block: int
    gradient: int = 0  # its place among the tensors; -1: it is none of them; -2: it is several

    @property
    def tensors(self) -> list[Tensor]:
        """The target and the tensors of all bases, in order."""
        return [self.target, *(tensor for basis in self.bases for tensor in basis.tensors)]

    @property
    def fixed(self) -> list[bool]:
        """Of the target and of every basis vector, in order: whether it is fixed."""
        return [False, *(k < basis.fixed for basis in self.bases for k in range(basis.size))]


def kinds_of(gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[object, ...]:
    """What must be equal where gradients take the place of others in a backend that knows tensors by their addresses.

    The order of the weights in memory is a part of it: ``weight.data = weight.data.t()`` leaves the address as it is.
    """
    both = *gradients, *weights
    kinds = tuple(map(_dtype_of, gradients)), tuple(map(Tensor.numel, gradients)), *{*map(type, gradients)}
    if all(map(Tensor.is_contiguous, both)) and not any(map(Tensor.is_neg, gradients)):
        return kinds
    return *kinds, *map(type, gradients), *map(Tensor.is_neg, gradients), *map(Tensor.stride, both)


@dataclass(frozen=True)
class Problem:
    """The constraints of a step: accumulated gradients ``a = combination @ b`` and constraints ``c_i = sign_i a_i``.

    There are as many basis vectors as constraints. The tensors are float64 and contiguous, on the device that solves.
    """

    combination: Tensor  # (n, n)
    signs: Tensor  # (n,)
    margins: Tensor  # (n,) or (blocks, n)
    only_violated: bool  # leave the gradient alone unless some <c_i, g> < 0
    gate: Tensor | None = None  # (n,) bool: which constraints count, where only the device knows
    floors: Tensor | None = None  # (n,): a constraint counts only where -floor_i <= cos(c_i, g), and only where ...
    previous: Tensor | None = None  # (blocks, n): ... |a_i|^2 is at most this, which solving replaces unless it is inf
    counts: Tensor | None = None  # (4,) int64: steps changed, steps not finite, room, steps solved; solving counts them
    means: Tensor | None = None  # (2, 4) float64: see RunningMeans; solving adds the step's (on a GPU with counts only)


@dataclass(frozen=True)
class Solution:
    """The answer for every block; the corrected gradient is ``g + sum_k coefficients_k b_k``."""

    finite: Tensor  # () bool: whether the step's inner products were finite; if not, nothing is applied
    gradient_norm2: Tensor  # (blocks,)
    products: Tensor  # (blocks, n) <a_i, g>
    gram: Tensor  # (blocks, n, n) <a_i, a_j>
    signs: Tensor  # (n,)
    multipliers: Tensor  # (blocks, n) the dual solution v
    applied: Tensor  # (blocks,) bool: whether the block's gradient changes
    coefficients: Tensor  # (blocks, n)
    gate: Tensor | None = None  # (n,) bool: which constraints counted

    @classmethod
    def empty(cls, blocks: int, problem: Problem, device: torch.device) -> Solution:
        """Memory for a solution of a problem; ``finite`` lies behind ``applied``."""
        n = problem.signs.shape[0]
        flags = torch.empty(blocks + 1, dtype=torch.bool, device=device)
        products, multipliers, coefficients = torch.empty(3, blocks, n, dtype=torch.float64, device=device)
        return cls(
            finite=flags[blocks], gradient_norm2=torch.empty(blocks, dtype=torch.float64, device=device),
            products=products, gram=torch.empty(blocks, n, n, dtype=torch.float64, device=device),
            signs=problem.signs, multipliers=multipliers, applied=flags[:blocks], coefficients=coefficients,
            gate=problem.gate,
        )  # fmt: skip

    def for_update(self) -> Solution:
        """What :meth:`Backend.apply` does to weights whose update was corrected.

        The step ``y = w_before - w`` is their first basis vector, of which nothing is taken, and
        ``w_before - x = w - sum_k coefficients_k b_k``.
        """
        return replace(self, coefficients=torch.nn.functional.pad(-self.coefficients, (1, 0)))

    def on(self, device: torch.device) -> Solution:
        """The same with what :meth:`Backend.apply` reads on another device."""
        return replace(self, applied=self.applied.to(device), coefficients=self.coefficients.to(device))

    def measures(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Congruency before and after, magnitude and multipliers, each (blocks, n), from inner products alone."""
        signed = self.multipliers * self.signs
        magnitude = self.gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
        shift = (self.gram @ signed.unsqueeze(-1)).squeeze(-1)  # <a_i, x - g>
        norm2 = self.gradient_norm2 + (signed * (2 * self.products + shift)).sum(-1)
        before = _cosine(self.products, self.gradient_norm2, magnitude)
        after = _cosine(self.products + shift, norm2, magnitude)
        after = torch.where(self.applied.unsqueeze(-1), after, before)
        known = self.finite if self.gate is None else self.finite & self.gate
        before, after, magnitude, multipliers = (
            torch.where(known, values, math.nan) for values in (before, after, magnitude, self.multipliers)
        )
        return before, after, magnitude, multipliers


def add_to_means(means: Tensor, values: Sequence[Tensor], places: slice) -> None:
    """Add a step to :attr:`Problem.means`, leaving out what is not finite."""
    step = torch.stack(list(values))
    means[0, places] += torch.where(step.isfinite(), step, 0.0)
    means[1, places] += step.isfinite()


def _cosine(products: Tensor, norm2: Tensor, magnitude: Tensor) -> Tensor:
    norms = norm2.clamp(min=0).sqrt().unsqueeze(-1) * magnitude
    return torch.where(norms > 0, (products / norms).clamp(-1, 1), math.nan)


@dataclass(frozen=True)
class ElementRule:
    """How blocks of one element are corrected: ``x_j = y_j``, or 0 where it opposes a constraint ``c_i = sign_i b_i``.

    That is the projection: with constraints of both signs only 0 satisfies all. The target is y, or, with ``update``,
    the first basis vector is the weights before the step and ``y = decay * before - target``.

    With margins, ``y + sum_i margin_i c_i`` is projected instead of y.
    """

    signs: Tensor  # (n,) float64
    margins: Tensor  # (n,) or (slices, n) float64 on the CPU
    update: bool = False
    only_violated: bool = False  # leave an element alone that opposes no constraint, margins or not
    strict: bool = False  # keep only what agrees with every constraint, not what is 0
    mask_decay: bool = False  # no decay where it opposes the update, that is where y_j before_j < 0

    @functools.cached_property
    def plain(self) -> bool:
        """Whether the margins are all 0."""
        return not self.margins.any()

    def on(self, device: torch.device) -> ElementRule:
        """The same with its signs on another device."""
        return self if self.signs.device == device else replace(self, signs=self.signs.to(device))


class Backend(Protocol):
    """The work of one step in one place: two passes over the parameters, and the small problem between them.

    On an accelerator nothing waits for the device. What both passes need is prepared once. A ``reusable`` instance
    knows the tensors by their addresses: once released, it serves further steps while all but the gradients lie where
    they did.

    Args:
        slices: The gradients and their basis vectors, all on ``device``.
        size: How many basis vectors every slice has.
        blocks: How many blocks the slices belong to.
        device: Where the inner products are wanted.
    """

    reusable: bool

    def __init__(self, slices: Sequence[ParameterSlice], size: int, blocks: int, device: torch.device) -> None: ...

    def release(self) -> None:
        """Let go of the slices, which someone else keeps; margins of elements need them. Only where reusable."""

    def point(self, gradients: tuple[int, ...]) -> bool:
        """Take note of where each slice's gradient lies now; False where that needs a new instance.

        They must be of the same kind as those of the slices, see :func:`kinds_of`. Only where reusable.
        """

    def program(self, problem: Problem, scale: Tensor | None, known: Tensor | None) -> Callable[[], Solution] | None:
        """What :meth:`gram`, :meth:`solve` and :meth:`apply` do as one function, where that is faster; or None.

        It is called again in later steps with the same arguments, whose solutions take each other's place in memory.
        """

    def gram(self, *, wide: bool = False, known: Tensor | None = None) -> Tensor:
        """First pass: (blocks, 1 + size, 1 + size) inner products of ``[g, b_1, ..., b_size]``, float64 on the device.

        By default short sums may be formed in float32: their relative error of 1e-6 is far below what a correction
        can show. With ``wide`` every difference, product and sum is in float64, for those who measure.

        With ``known``, a copy of an earlier result, the inner products among fixed vectors are taken from it. The next
        call may write to the same memory.
        """

    @staticmethod
    def solve(
        gram: Tensor, problem: Problem, scale: Tensor | None = None, reuse: dict[object, object] | None = None
    ) -> Solution:
        """Solve all blocks, given the inner products of the step summed over all places.

        Args:
            gram: (blocks, 1 + n, 1 + n) in float64, as :meth:`gram` gives it.
            problem: The constraints.
            scale: What the gradients are still multiplied by (``GradScaler``), if anything: with a margin the problem
                is not homogeneous, so it is solved for the true gradient and the correction is scaled.
            reuse: Where a backend may keep what serves the same problem again: its next solution then takes the place
                of this one in memory.
        """

    def apply(self, solution: Solution) -> None:
        """Second pass: write ``g + sum_k coefficients_k b_k`` where applied; other blocks keep their bits."""

    @staticmethod
    def solve_dual(gram: Tensor, products: Tensor, margins: Tensor) -> Tensor:
        """As :func:`congruency.solve_dual`, for float64 (b, n, n), (b, n) and margins (n,) or (b, n)."""

    def agreement(self, rule: ElementRule, decay: Tensor) -> Tensor:
        """For blocks of one element: (slices, 4), how many stay as they are, and <y, c_1>, <y, y>, <c_1, c_1>.

        Args:
            rule: How elements are corrected. Every slice has a block number of its own.
            decay: (slices,) float64 on the device, see :class:`ElementRule`.
        """

    def mask(self, rule: ElementRule, decay: Tensor, scale: Tensor | None = None) -> Tensor:
        """For blocks of one element: write the corrected target; ``scale`` (slices,) multiplies what is kept.

        Returns:
            What :meth:`agreement` would have given before; undefined with a scale.
        """

    @staticmethod
    def settle(
        agreement: Tensor, sizes: Tensor, most: float, counts: Tensor | None, means: Tensor,
        reuse: dict[object, object] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """For blocks of one element, between agreement and mask: (slices,) scales, and whether all was finite, ().

        Args:
            agreement: (slices, 4), summed over all places.
            sizes: (slices,) float64, elements of each.
            most: The most that a scale may be: it is the inverse of the share that is kept.
            counts, means: As in :class:`Problem`.
            reuse: As in :meth:`solve`.
        """
