"""Blocks of one element: constraints as single vectors, and options for the kept elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from congruency.backends import Basis, ElementRule, ParameterSlice, Passes
from congruency.constraints.base import ConstraintSource
from congruency.distributed import local
from congruency.step.gather import Gather, Gathered, placed
from congruency.step.selection import Entry, Selection
from congruency.step.updates import WeightsBefore, group_factors, skipped_step

__all__ = ["ElementGather", "GatheredElements", "Masking"]

_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Masking:
    """Options beyond the projection, off by default; see :class:`congruency.Cautious`."""

    strict: bool = False  # keep only elements with y_j c_j > 0 for every constraint, instead of >= 0
    mask_decay: bool = False  # no weight decay where it opposes the update
    rescale: bool = False  # divide the kept elements of a tensor by their share
    max_rescale: float | None = None

    @property
    def most_rescale(self) -> float:
        """Upper bound of the factor for kept elements: their share counts as at least a thousandth."""
        return min(1 / _LEAST_SHARE, math.inf if self.max_rescale is None else self.max_rescale)


@dataclass(frozen=True)
class GatheredElements(Gathered):
    """The prepared passes of a step on blocks of one element, and the rule that corrects them."""

    rule: ElementRule
    groups: tuple[int, ...]  # the parameter group of each slice
    sizes: Tensor  # (slices,) float64: number of elements of each
    elements: int  # number of elements of all slices


class ElementGather(Gather):
    """Prepares the passes of steps on blocks of one element.

    Args:
        before: As in :class:`Gather`.
        optimizer: The optimizer, for its learning rates and weight decay.
        only_violated: Do not change elements that oppose no constraint, even with margins.
        masking: Options beyond the projection.
    """

    def __init__(
        self, before: WeightsBefore | None, optimizer: torch.optim.Optimizer, only_violated: bool, masking: Masking
    ) -> None:
        super().__init__(before)
        self._optimizer, self._only_violated, self._masking = optimizer, only_violated, masking
        self._constants: dict[tuple[object, ...], Tensor] = {}
        self._decays: tuple[tuple[object, ...], Tensor, dict[int, Tensor], dict[int, float]] | None = None

    def _rule_of(self, active: Sequence[ConstraintSource]) -> tuple[object, ...]:
        return tuple((source.sign, source.margin) for source in active)

    def _make(self, trained: Selection, active: Sequence[ConstraintSource]) -> GatheredElements:
        """Return the passes, with every constraint as a single vector, and the rule."""
        update, entries = self._before is not None, trained.entries
        first = self._bases(entries[0].parameter, active)[0]
        made = any(_mixes(basis, source) for basis, source in zip(first, active, strict=True))
        signs = [source.sign * factor for source in active for factor in _factors_of(source.combination())]
        slices = []
        for i, (parameter, _, _) in enumerate(entries):
            bases, groups = self._bases(parameter, active)
            single = [part for basis, source in zip(bases, active, strict=True) for part in _one_by_one(basis, source)]
            if self._before is not None:
                before = Basis([self._before.of(parameter)])
                item = placed(ParameterSlice(local(parameter), [before, *single], i), parameter)
            else:
                assert parameter.grad is not None
                item = ParameterSlice(local(parameter.grad), single, i)
            slices.append((item, groups))
        device = slices[0][0].target.device
        margins = [source.margin for source in active for _ in range(source.active)]
        shifts = torch.outer(self._rates(entries, device), self._constant(device, margins)) if any(margins) else None
        rule = ElementRule(
            signs=self._constant(device, signs),
            margins=shifts,
            update=update,
            only_violated=self._only_violated,
            strict=self._masking.strict,
            mask_decay=self._masking.mask_decay,
        )
        # plain passes are not reused: new vectors have other addresses in the next step, and margins may change
        passes = Passes(slices, len(signs) + update, len(entries), plain=made or any(margins))
        sizes, of = [parameter.numel() for parameter in trained.parameters], tuple(entry.group for entry in entries)
        return GatheredElements(passes, slices, device, rule, of, self._constant(device, sizes), sum(sizes))

    def _rates(self, entries: Sequence[Entry], device: torch.device) -> Tensor:
        """Return what margins are multiplied by, (slices,) float64.

        For updates it is the learning rate, 0 in a step that GradScaler skipped, and for gradients the loss scale that
        they still carry, if any.
        """
        if self._before is None:
            scale: Tensor | None = getattr(self._optimizer, "grad_scale", None)
            return _as_tensor([1.0 if scale is None else scale], device).expand(len(entries))
        skipped = skipped_step(self._optimizer)
        rates = _as_tensor([self._optimizer.param_groups[entry.group]["lr"] for entry in entries], device)
        return rates if skipped is None else rates * (1.0 - skipped.to(rates))

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_decays": None, "_constants": {}}

    def _constant(self, device: torch.device, values: Sequence[float]) -> Tensor:
        """Return (n,) float64 on the device, copied once: a copy synchronizes and CUDA graphs cannot capture it."""
        key = (device, *values)
        if key not in self._constants:
            self._constants[key] = torch.tensor(values, dtype=torch.float64).to(device)
        return self._constants[key]

    def decay(self, gathered: GatheredElements, active: Sequence[ConstraintSource]) -> Tensor:
        """Return what decoupled weight decay multiplied each parameter by, (slices,) float64.

        It is 1 for gradients, and where the weights before the step have already been multiplied. Plain numbers are
        written to the same buffer at every step.
        """
        device, groups = gathered.device, gathered.groups
        decays = gathered.rule.update and all(source.needs_update for source in active)
        factors = group_factors(self._optimizer) if decays else [1.0] * len(self._optimizer.param_groups)
        if any(isinstance(factor, Tensor) for factor in factors):
            return _as_tensor([factors[group] for group in groups], device)
        if self._decays is None or self._decays[0] != (device, groups):
            spans = {
                group: slice(groups.index(group), len(groups) - groups[::-1].index(group)) for group in set(groups)
            }
            decay = torch.empty(len(groups), dtype=torch.float64, device=device)
            self._decays = ((device, groups), decay, {group: decay[span] for group, span in spans.items()}, {})
        _, decay, parts, last = self._decays
        captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()  # fill_ is recorded, not run
        for group, part in parts.items():
            if captured or last.get(group) != factors[group]:  # changed by a scheduler; fill_ does not synchronize
                part.fill_(factors[group])
                last[group] = math.nan if captured else float(factors[group])
        return decay


def _suffix_sign(combination: Tensor) -> float | None:
    """Return s if the combination is s times an upper triangle of ones (suffix sums), else None."""
    sign = float(combination[0, -1])
    return sign if torch.equal(combination, sign * torch.ones_like(combination).triu()) else None


def _factors_of(combination: Tensor) -> list[float]:
    """Return the factors that turn the vectors of :func:`_one_by_one` into accumulated gradients."""
    if torch.equal(combination, combination.diag().diag()):
        return [float(value) for value in combination.diag()]
    sign = _suffix_sign(combination)
    return [1.0 if sign is None else sign] * len(combination)


def _mixes(basis: Basis, source: ConstraintSource) -> bool:
    """Whether :func:`_one_by_one` has to compute new vectors."""
    combination = source.combination()
    diagonal = torch.equal(combination, combination.diag().diag())
    return not diagonal and not (basis.chained and _suffix_sign(combination) is not None)


def _one_by_one(basis: Basis, source: ConstraintSource) -> list[Basis]:
    """Return each accumulated gradient as a single basis vector, up to its factor."""
    combination, parts = source.combination(), basis.tensors
    if len(combination) == 1 or torch.equal(combination, combination.diag().diag()):
        return [basis]
    if basis.chained and _suffix_sign(combination) is not None:
        return [Basis([parts[i], parts[-1]], chained=True) for i in range(len(combination))]
    vectors = [b - a for a, b in pairwise(parts)] if basis.chained else list(parts)
    if _suffix_sign(combination) is not None:
        combination = torch.ones_like(combination).triu()
    return [Basis(list(torch.einsum("ik,k...->i...", combination.to(vectors[0]), torch.stack(vectors))))]


def _as_tensor(values: Sequence[float | Tensor], device: torch.device) -> Tensor:
    """Return (n,) float64 on the device; numbers are filled in, since copying them would synchronize."""
    parts = [
        value if isinstance(value, Tensor) else torch.full((), value, dtype=torch.float64, device=device)
        for value in values
    ]
    return torch.stack([part.to(device, torch.float64).reshape(()) for part in parts])
