"""Gather the tensors of a step: every target with its basis vectors, prepared for the backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from congruency.backends import Basis, ParameterSlice, Passes, RowPasses, kinds_of
from congruency.constraints.base import ConstraintSource
from congruency.distributed import Groups, local, reduction_groups
from congruency.step.selection import Selection
from congruency.step.updates import WeightsBefore, momentum_of

__all__ = ["Gather", "Gathered"]

_MOST_HELD = 8  # prepared steps in the cache


@dataclass(frozen=True)
class Gathered:
    """The prepared passes of a step, reused while no tensor except the gradients changes its address."""

    passes: Passes | RowPasses
    slices: Sequence[tuple[ParameterSlice, Groups]]  # what the passes read and write; empty if the passes are reused
    device: torch.device  # device that solves the problem


class Gather:
    """Prepares the passes of every step, and caches them.

    Args:
        before: The weights before the step if updates are corrected; None for gradients.
        rows: Whether every row is a block.
    """

    def __init__(self, before: WeightsBefore | None, *, rows: bool = False) -> None:
        self._before, self._rows = before, rows
        self._selection: Selection | None = None
        self._seen: dict[Tensor, tuple[object, object, list[Basis], Groups]] = {}
        self._held: dict[tuple[object, ...], Gathered] = {}
        self._known: tuple[tuple[object, ...], list[Tensor]] | None = None

    def begin(self, selection: Selection) -> None:
        """Start a step over these parameters; clear the caches if they are of another selection."""
        if selection is not self._selection:
            self._selection, self._seen, self._held, self._known = selection, {}, {}, None

    def step(
        self, trained: Selection, gradients: Sequence[Tensor], addresses: tuple[int, ...],
        active: Sequence[ConstraintSource],
    ) -> Gathered:  # fmt: skip
        """Return the prepared passes of this step, from the cache if no tensor except the gradients has moved.

        Args:
            trained: The parameters that have a gradient in this step.
            gradients, addresses: The local parts of those gradients, and their addresses.
            active: The sources that constrain this step.
        """
        layouts = [(source.layout, source.active) for source in active]
        key: tuple[object, ...] | None = None
        if not self._rows and None not in [layout for layout, _ in layouts]:
            parameters = trained.parameters
            weights = [local(parameter) for parameter in parameters] if trained.sharded else parameters
            copies = None if self._before is None else self._before.layout
            key = (
                torch.get_num_threads(), copies, *layouts, self._rule_of(active),
                tuple(map(Tensor.data_ptr, weights)), kinds_of(gradients, weights),
                () if trained is self._selection else tuple(map(id, parameters)),
            )  # fmt: skip
            held = self._held.get(key)
            if held is not None and held.passes.point(addresses):
                return held
        made = self._make(trained, active)
        passes = made.passes
        if key is not None and isinstance(passes, Passes) and passes.reusable and not self._follows(made.slices):
            passes.release()
            if len(self._held) >= _MOST_HELD:
                self._held.clear()
            made = self._held[key] = replace(made, slices=())  # slices would keep the gradients alive
        return made

    def _follows(self, slices: Sequence[tuple[ParameterSlice, Groups]]) -> bool:
        """Whether a basis vector is the corrected gradient itself, whose address changes in the next step."""
        return self._before is None and any(
            _same(tensor, item.target) for item, _ in slices for basis in item.bases for tensor in basis.tensors
        )

    def gradients(
        self, trained: Selection, gradients: Sequence[Tensor], addresses: tuple[int, ...]
    ) -> Passes | RowPasses:
        """Return passes over the gradients alone, for a step without constraints."""
        if self._before is None and not self._rows:
            return self.step(trained, gradients, addresses, []).passes
        groups = [reduction_groups(parameter) for parameter in trained.parameters]
        return Passes(zip([ParameterSlice(g, [], 0) for g in gradients], groups, strict=True), 0)

    def known(self, gathered: Gathered, trained: Selection, active: Sequence[ConstraintSource]) -> list[Tensor] | None:
        """Return the inner products among fixed vectors, recomputed when one is recorded or the parameters change.

        They are computed in float64, so that they depend on these vectors alone and a resumed run gets the same bits.
        """
        passes = gathered.passes
        if isinstance(passes, RowPasses) or not passes.fixed:
            return None
        some = None if trained is self._selection else tuple(map(id, trained.parameters))
        key = (some, *((id(source), source.active, source.recorded) for source in active))
        if self._known is None or self._known[0] != key:
            grams = passes.grams(wide=True)
            held = [] if self._known is None else self._known[1]
            if [gram.shape for gram in held] == [gram.shape for gram in grams]:
                torch._foreach_copy_(held, grams)  # in place, since prepared launches refer to these addresses
            else:
                held = [gram.clone() for gram in grams]
            self._known = (key, held)
        return self._known[1]

    def momentum(
        self, optimizer: torch.optim.Optimizer, trained: Selection, active: Sequence[ConstraintSource],
        known: list[Tensor] | None,
    ) -> tuple[Passes | RowPasses, list[Tensor] | None] | None:  # fmt: skip
        """Return passes over the optimizer's momentum, and the known inner products; None without momentum."""
        slices = []
        for parameter, _, block in trained.entries:
            momentum = momentum_of(optimizer, parameter)
            if momentum is not None:
                bases, groups = self._bases(parameter, active)
                slices.append((ParameterSlice(local(momentum), bases, block), groups))
        if not slices:
            return None
        if len(slices) < len(trained.entries):
            known = None
        elif known is not None:  # the same vectors except the update
            known = [torch.cat([gram[:, :, :1], gram[:, :, 2:]], 2) for gram in known]
            known = [torch.cat([gram[:, :1], gram[:, 2:]], 1) for gram in known]
        return self._passes(slices, sum(source.active for source in active), trained.blocks), known

    def __getstate__(self) -> dict[str, object]:
        """Leave out the caches: a copy has its own tensors."""
        return {**self.__dict__, "_selection": None, "_seen": {}, "_held": {}, "_known": None}

    def _rule_of(self, active: Sequence[ConstraintSource]) -> tuple[object, ...]:
        """Return what prepared passes depend on, besides the addresses of the sources' vectors."""
        return ()

    def _make(self, trained: Selection, active: Sequence[ConstraintSource]) -> Gathered:
        """Return passes over every target with its basis vectors and the process groups it is sharded over."""
        slices = []
        for parameter, _, block in trained.entries:
            bases, groups = self._bases(parameter, active)
            if self._before is not None:  # the update, w_before - w, comes first: see Solution.for_update
                now, before = local(parameter), self._before.of(parameter)
                item = placed(ParameterSlice(now, [Basis([now, before], chained=True), *bases], block), parameter)
            else:
                assert parameter.grad is not None
                item = ParameterSlice(local(parameter.grad), bases, block)
            slices.append((item, groups))
        size = sum(source.active for source in active) + (self._before is not None)
        return Gathered(self._passes(slices, size, trained.blocks), slices, slices[0][0].target.device)

    def _passes(self, slices: Sequence[tuple[ParameterSlice, Groups]], size: int, blocks: int) -> Passes | RowPasses:
        if self._rows:
            return RowPasses([item for item, _ in slices], size, blocks)
        return Passes(slices, size, blocks)

    def _bases(self, parameter: Tensor, active: Sequence[ConstraintSource]) -> tuple[list[Basis], Groups]:
        """Return a parameter's basis vectors, checked if they are new, and the process groups it is sharded over."""
        own = [source.basis(parameter) for source in active]
        before = None if self._before is None else self._before.of(parameter)
        now, seen = local(parameter), self._seen.get(parameter)
        given = (before, *own)
        identity = (now.shape, *map(id, given))
        if seen is not None and seen[0] == identity:
            return seen[2], seen[3]
        for source, basis in zip(active, own, strict=True):
            _check_basis(basis, source, now.shape)
        bases = [
            basis if source.recorded is not None else basis._replace(fixed=0)
            for basis, source in zip(own, active, strict=True)
        ]
        if before is not None:  # a basis that contains the parameter means its weights before the step
            bases = [basis._replace(tensors=[before if _same(t, now) else t for t in basis.tensors]) for basis in bases]
        groups = reduction_groups(parameter)
        if all(source.layout is not None and not source.needs_update for source in active):  # none is a gradient
            self._seen[parameter] = (identity, given, bases, groups)  # ``given`` is held to keep its ids unique
        return bases, groups


def placed(item: ParameterSlice, parameter: Tensor) -> ParameterSlice:
    """Return the slice of an update with the index of the gradient among its tensors."""
    assert parameter.grad is not None
    gradient = local(parameter.grad)
    places = [i for i, tensor in enumerate(item.tensors) if _same(tensor, gradient)]
    return item._replace(gradient=-2 if len(places) > 1 else places[0] if places else -1)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both have the same memory: the local part of a sharded parameter is a new tensor object each time."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.numel() > 0 and a.shape == b.shape)


def _check_basis(basis: Basis, source: ConstraintSource, shape: torch.Size) -> None:
    if basis.size != source.active:
        raise ValueError(
            f"{type(source).__name__} has {source.active} active constraint(s) and gave {basis.size} basis vector(s); "
            "ConstraintSource.basis must give one per active constraint"
        )
    # Compiled passes use the gradient's length for all tensors, so other shapes must not reach them.
    for tensor in basis.tensors:
        if tensor.shape != shape:
            raise ValueError(
                f"a constraint source gave a tensor of shape {tuple(tensor.shape)} for a parameter whose gradient here "
                f"has shape {tuple(shape)}; ConstraintSource.basis must give tensors of that shape"
            )
