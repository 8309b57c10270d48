"""Which constraints: those of all sources stacked into one problem for the backends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from congruency.backends import Problem
from congruency.constraints.base import ConstraintSource
from congruency.step.counts import Counts, RunningMeans

__all__ = ["Constants", "Problems", "Spans", "spans_of"]

Spans = tuple[int, list[tuple[slice, slice]]]


class Constants:
    """Small float64 tensors on a device, copied there once: a copy waits, and cannot be captured in a CUDA graph."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], Tensor] = {}

    def on(self, device: torch.device, values: Sequence[float]) -> Tensor:
        """(n,) float64 on the device."""
        key = (device, *values)
        if key not in self._held:
            self._held[key] = torch.tensor(values, dtype=torch.float64).to(device)
        return self._held[key]

    def __getstate__(self) -> dict[str, object]:
        return {"_held": {}}


class Problems:
    """The problem of every step, made once per combination of active sources.

    Args:
        only_violated: Leave y alone unless it violates a constraint.
        counts, means: Where solving counts, and adds what it measures.
        constants: Where small tensors are kept.
    """

    def __init__(self, only_violated: bool, counts: Counts, means: RunningMeans, constants: Constants) -> None:
        self._only_violated, self._counts, self._means, self._constants = only_violated, counts, means, constants
        self._made: dict[tuple[object, ...], Problem] = {}
        self.lengths: Tensor | None = None  # (blocks, constraints): Problem.previous

    def begin(self, active: Sequence[ConstraintSource]) -> None:
        """Forget the distances where no source has a floor: the references start over."""
        if self.lengths is not None and all(source.floor is None for source in active):
            self.lengths = None

    def of(self, active: Sequence[ConstraintSource], blocks: int, device: torch.device) -> Problem:
        """The problem of ``blocks`` blocks with the constraints of the active sources."""
        key = (device, blocks, *((id(source), source.active, source.sign, source.margin) for source in active))
        problem = self._made.get(key) or self._make(active, device)
        if problem.floors is not None:
            if self.lengths is None or self.lengths.shape != (blocks, len(problem.signs)):
                rules = [0.0 if source.returning else math.inf for source in active for _ in range(source.active)]
                self.lengths = self._constants.on(device, rules).repeat(blocks, 1)
            if problem.previous is not self.lengths:
                problem = replace(problem, previous=self.lengths)
        gates = [source.gate for source in active if source.gate is not None]
        if gates and (len(active) > 1 or problem.gate is None or problem.gate.data_ptr() != gates[0].data_ptr()):
            always = torch.ones((), dtype=torch.bool, device=device)
            each_gate = [(always if source.gate is None else source.gate).expand(source.active) for source in active]
            problem = replace(problem, gate=torch.cat(each_gate) if len(each_gate) > 1 else each_gate[0])
        self._made[key] = problem
        return problem

    def load(self, lengths: Tensor | None, device: torch.device) -> None:
        """Continue from saved lengths; in place where they fit, since a captured step reads these very numbers."""
        if lengths is not None and self.lengths is not None and self.lengths.shape == lengths.shape:
            self.lengths.copy_(lengths)
        else:
            self.lengths = None if lengths is None else lengths.to(device, torch.float64, copy=True)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": {}}  # by the identity of the sources

    def _make(self, active: Sequence[ConstraintSource], device: torch.device) -> Problem:
        each = [source for source in active for _ in range(source.active)]
        # a floor of 1 excludes nothing, and rounding must not decide at nu = -1 (rows of one element)
        floors = [math.inf if source.floor in (None, 1.0) else source.floor for source in each]
        return Problem(
            combination=torch.block_diag(*(source.combination() for source in active)).to(device),
            signs=torch.tensor([source.sign for source in each], dtype=torch.float64).to(device),
            margins=torch.tensor([source.margin for source in each], dtype=torch.float64).to(device),
            only_violated=self._only_violated,
            floors=torch.tensor(floors, dtype=torch.float64).to(device) if any(s.floor for s in each) else None,
            counts=self._counts.tally(device),
            means=self._means.on(device),
        )


def spans_of(sources: Sequence[ConstraintSource]) -> Spans:
    """How many constraints there are, and where the active ones stand among all and among themselves."""
    start = active = 0
    spans = []
    for source in sources:
        spans.append((slice(start, start + source.active), slice(active, active + source.active)))
        start += source.capacity
        active += source.active
    return start, spans
