"""The backend protocol and its data: parameter slices, the problem and its solution."""

from __future__ import annotations

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

    With ``chained`` they are the consecutive differences of m + 1 tensors, ``b_k = tensors[k + 1] - tensors[k]``. This
    keeps precision for close reference points, since small differences are formed before they are multiplied.
    Otherwise ``b_k = tensors[k]``. All tensors have the (local) shape of the parameter.

    The first ``fixed`` vectors do not change until the source's :attr:`~congruency.ConstraintSource.recorded` does, so
    their inner products are computed once.

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
        """m, the number of basis vectors."""
        return max(0, len(self.tensors) - self.chained)


class ParameterSlice(NamedTuple):
    """One parameter in a step: the tensor to correct, its basis vectors and its block.

    The target is the gradient, or the parameter itself if updates are corrected. It comes first in
    :meth:`Backend.gram`, and :meth:`Backend.apply` writes it. The gradient is the only tensor whose address usually
    changes between steps.
    """

    target: Tensor
    bases: Sequence[Basis]
    block: int
    gradient: int = 0  # index of the gradient among the tensors; -1: not among them; -2: more than once

    @property
    def tensors(self) -> list[Tensor]:
        """The target and the tensors of all bases, in order."""
        return [self.target, *(tensor for basis in self.bases for tensor in basis.tensors)]

    @property
    def fixed(self) -> list[bool]:
        """Whether the target and each basis vector, in order, are fixed."""
        return [False, *(k < basis.fixed for basis in self.bases for k in range(basis.size))]


def kinds_of(gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[object, ...]:
    """Return what must be equal for gradients to replace those of a reusable backend, besides their addresses.

    This includes the strides of the weights: ``weight.data = weight.data.t()`` does not change the address.
    """
    both, types = (*gradients, *weights), {*map(type, gradients)}
    ordered = types if len(types) == 1 else map(type, gradients)  # a set of several has no defined order
    kinds = tuple(map(_dtype_of, gradients)), tuple(map(Tensor.numel, gradients)), *ordered
    if all(map(Tensor.is_contiguous, both)) and not any(map(Tensor.is_neg, gradients)):
        return kinds
    return *kinds, *map(type, gradients), *map(Tensor.is_neg, gradients), *map(Tensor.stride, both)


@dataclass(frozen=True)
class Problem:
    """The constraints of a step: accumulated gradients ``a = combination @ b`` and constraints ``c_i = sign_i a_i``.

    There are as many basis vectors as constraints. The tensors are float64 and contiguous, on the solving device.
    """

    combination: Tensor  # (n, n)
    signs: Tensor  # (n,)
    margins: Tensor  # (n,) or (blocks, n)
    only_violated: bool  # leave the gradient alone unless some <c_i, g> < 0
    gate: Tensor | None = None  # (n,) bool: which constraints apply, if only the device knows (CUDA graphs)
    floors: Tensor | None = None  # (n,): constraint i applies only if -floor_i <= cos(c_i, g) and |a_i|^2 <= previous_i
    previous: Tensor | None = None  # (blocks, n): the solver replaces it by the new |a_i|^2, except where it is inf
    counts: Tensor | None = None  # (4,) int64 that the solver adds to: steps corrected, not finite, scratch, solved
    means: Tensor | None = None  # (2, 4) float64 that the solver adds to (on a GPU only with counts): see RunningMeans


@dataclass(frozen=True)
class Solution:
    """The solution of every block; the corrected gradient is ``g + sum_k coefficients_k b_k``."""

    finite: Tensor  # () bool: whether the step's inner products were finite; if not, nothing is applied
    gradient_norm2: Tensor  # (blocks,)
    products: Tensor  # (blocks, n) <a_i, g>
    gram: Tensor  # (blocks, n, n) <a_i, a_j>
    signs: Tensor  # (n,)
    multipliers: Tensor  # (blocks, n) the dual solution v
    applied: Tensor  # (blocks,) bool: whether the block's gradient changes
    coefficients: Tensor  # (blocks, n)
    gate: Tensor | None = None  # (n,) bool: which constraints applied

    @classmethod
    def empty(cls, blocks: int, problem: Problem, device: torch.device) -> Solution:
        """Allocate a solution of a problem; ``finite`` follows ``applied`` in memory."""
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
        """Return the solution as :meth:`Backend.apply` needs it to correct the weights w after a corrected update.

        The corrected weights are ``w_before - x = w - sum_k coefficients_k b_k``. The first basis vector, the update
        ``y = w_before - w``, has coefficient 0.
        """
        return replace(self, coefficients=torch.nn.functional.pad(-self.coefficients, (1, 0)))

    def on(self, device: torch.device) -> Solution:
        """Return the solution with what :meth:`Backend.apply` reads on another device."""
        return replace(self, applied=self.applied.to(device), coefficients=self.coefficients.to(device))

    def measures(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return congruency before and after the correction, magnitude and multipliers, each (blocks, n)."""
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
    """Add a step's values to :attr:`Problem.means`, without those that are not finite."""
    step = torch.stack(list(values))
    means[0, places] += torch.where(step.isfinite(), step, 0.0)
    means[1, places] += step.isfinite()


def _cosine(products: Tensor, norm2: Tensor, magnitude: Tensor) -> Tensor:
    norms = norm2.clamp(min=0).sqrt().unsqueeze(-1) * magnitude
    return torch.where(norms > 0, (products / norms).clamp(-1, 1), math.nan)


@dataclass(frozen=True)
class ElementRule:
    """The rule for blocks of one element: ``x_j = y_j``, or 0 if it opposes a constraint ``c_i = sign_i b_i``.

    This is the exact projection: if constraints have both signs, only 0 satisfies all. y is the target. With
    ``update``, the first basis vector is the weights before the step and ``y = decay * before - target``.

    With margins, ``y + sum_i margin_i c_i`` is projected instead of y.
    """

    signs: Tensor  # (n,) float64
    margins: Tensor | None = None  # (blocks, n) float64; None: all 0
    update: bool = False
    only_violated: bool = False  # do not change elements that oppose no constraint, even with margins
    strict: bool = False  # keep only elements with y_j c_j > 0 for every constraint, instead of >= 0
    mask_decay: bool = False  # no decay where it opposes the update, that is where y_j before_j < 0

    def on(self, device: torch.device) -> ElementRule:
        """Return the rule on another device."""
        if self.signs.device == device:
            return self
        margins = None if self.margins is None else self.margins.to(device)
        return replace(self, signs=self.signs.to(device), margins=margins)


class Backend(Protocol):
    """The work of one step on one device: two passes over the parameters, and the small problem between them.

    On an accelerator no call synchronizes. What both passes need is prepared once. A ``reusable`` instance holds the
    addresses of the tensors: after :meth:`release` it serves further steps while only gradients change their address.

    Args:
        slices: The parameter slices, all on ``device``.
        size: Number of basis vectors of every slice.
        blocks: Number of blocks.
        device: Device of the slices and of the inner products.
    """

    reusable: bool

    def __init__(self, slices: Sequence[ParameterSlice], size: int, blocks: int, device: torch.device) -> None: ...

    def release(self) -> None:
        """Drop the slices, whose tensors the caller keeps alive. Only if reusable, and not if elements have margins."""

    def point(self, gradients: tuple[int, ...]) -> bool:
        """Set the address of each slice's gradient; return False if that needs a new instance.

        The gradients must be of the same kind as before: see :func:`kinds_of`. Only if reusable.
        """

    def program(self, problem: Problem, scale: Tensor | None, known: Tensor | None) -> Callable[[], Solution] | None:
        """Return :meth:`gram`, :meth:`solve` and :meth:`apply` as one function if that is faster, else None.

        The function is called again in later steps, and every call overwrites the solution of the previous one.
        """

    def gram(self, *, wide: bool = False, known: Tensor | None = None) -> Tensor:
        """First pass: the inner products of ``[g, b_1, ..., b_size]``, (blocks, 1 + size, 1 + size) float64.

        By default short sums may be formed in float32, with a relative error of 1e-6, which no correction shows. With
        ``wide`` every difference, product and sum is in float64, for measurements.

        With ``known``, a copy of an earlier result, the inner products among fixed vectors are taken from it. The next
        call may overwrite the result.
        """

    @staticmethod
    def solve(
        gram: Tensor, problem: Problem, scale: Tensor | None = None, reuse: dict[object, object] | None = None
    ) -> Solution:
        """Solve all blocks, given the inner products of the step summed over all places.

        Args:
            gram: (blocks, 1 + n, 1 + n) float64, as returned by :meth:`gram`.
            problem: The constraints.
            scale: The loss scale that the gradients still carry (``GradScaler``), if any: with a margin the problem is
                not homogeneous, so it is solved for the unscaled gradient and the correction is scaled.
            reuse: A cache of prepared solvers. A later solution of the same problem then overwrites this one.
        """

    def apply(self, solution: Solution) -> None:
        """Second pass: write ``g + sum_k coefficients_k b_k`` in the blocks that are applied."""

    @staticmethod
    def solve_dual(gram: Tensor, products: Tensor, margins: Tensor) -> Tensor:
        """Like :func:`congruency.solve_dual`, in float64 for shapes (b, n, n), (b, n) and margins (n,) or (b, n)."""

    def agreement(self, rule: ElementRule, decay: Tensor) -> Tensor:
        """For blocks of one element: (slices, 4), the number of unchanged elements, <y, c_1>, <y, y> and <c_1, c_1>.

        Args:
            rule: The rule for the elements. Every slice has its own ``block`` number.
            decay: (slices,) float64 on the device, see :class:`ElementRule`.
        """

    def mask(self, rule: ElementRule, decay: Tensor, scale: Tensor | None = None) -> Tensor:
        """For blocks of one element: write the corrected target; ``scale`` (slices,) multiplies the kept elements.

        Returns:
            The :meth:`agreement` from before the correction; undefined with a scale.
        """

    @staticmethod
    def settle(
        agreement: Tensor, sizes: Tensor, most: float, counts: Tensor | None, means: Tensor,
        reuse: dict[object, object] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """For blocks of one element: return (slices,) scales for :meth:`mask`, and whether all was finite, ().

        Args:
            agreement: (slices, 4), summed over all places.
            sizes: (slices,) float64, number of elements of each.
            most: Upper bound of a scale, which is the inverse of the share of kept elements.
            counts, means: As in :class:`Problem`; the step is added to them.
            reuse: As in :meth:`solve`.
        """
