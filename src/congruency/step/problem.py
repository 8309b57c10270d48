"""Which constraints: those of all sources stacked into one problem for the backends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from congruency.backends import Problem
from congruency.constraints.base import ConstraintSource
from congruency.step.counts import Counts, RunningMeans
from congruency.step.distances import Distances

__all__ = ["Problems", "Spans", "settings_of", "sizes_of", "spans_of"]

Spans = tuple[int, list[tuple[slice, slice]]]

_MOST_MADE = 64


class Problems:
    """The problem of every step, made once per combination of active sources.

    Args:
        only_violated: Leave y alone unless it violates a constraint.
        counts, means: Where solving counts, and adds what it measures.
    """

    def __init__(self, only_violated: bool, counts: Counts, means: RunningMeans) -> None:
        self._only_violated, self._counts, self._means = only_violated, counts, means
        self._made: dict[tuple[object, ...], Problem] = {}
        self.distances = Distances()  # Problem.previous

    def of(
        self, sources: Sequence[ConstraintSource], left_out: dict[int, int], blocks: int, device: torch.device
    ) -> Problem:
        """The problem of ``blocks`` blocks with the constraints of the sources that are active.

        ``left_out`` are the places of the parameters without a gradient in this step, and their blocks.
        """
        active = [source for source in sources if source.active]
        key = (device, blocks, *((id(source), _mixture(source), *settings_of(source)) for source in active))
        if key not in self._made and len(self._made) >= _MOST_MADE:  # a margin that changes at every step
            self._made.clear()
        problem = self._made.get(key) or self._make(active, device)
        if problem.floors is None:  # nothing is compared with this step
            self.distances.forget()
        else:
            previous = self.distances.before(sources, left_out, blocks, device)
            if problem.previous is not previous:
                problem = replace(problem, previous=previous)
        if any(source.gate is not None for source in active):
            problem = _gated(problem, active, device)
        self._made[key] = problem
        return problem

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


def _gated(problem: Problem, active: Sequence[ConstraintSource], device: torch.device) -> Problem:
    """The problem with the gates of its sources as they are now."""
    gates = [  # no constant is made without need: it would be a launch at every step
        (torch.ones((), dtype=torch.bool, device=device) if source.gate is None else source.gate).expand(source.active)
        for source in active
    ]
    if len(gates) == 1:
        same = problem.gate is not None and problem.gate.data_ptr() == gates[0].data_ptr()
        return problem if same else replace(problem, gate=gates[0])
    if problem.gate is None:
        return replace(problem, gate=torch.cat(gates))
    problem.gate.copy_(torch.cat(gates))  # in place: launches are prepared for where it lies
    return problem


def _mixture(source: ConstraintSource) -> object:
    """Equal as long as the source's combination is."""
    return tuple(source.combination().flatten().tolist()) if source.layout is None else source.layout


def settings_of(source: ConstraintSource) -> tuple[object, ...]:
    """What a problem depends on of a source, and may change between steps."""
    return source.active, source.sign, source.margin, source.floor, source.returning, source.gate is None


def sizes_of(sources: Sequence[ConstraintSource]) -> list[tuple[int, int]]:
    """How many constraints each source has, and how many of them constrain the step that has begun."""
    return [(source.capacity, source.active) for source in sources]


def spans_of(sizes: Sequence[tuple[int, int]]) -> Spans:
    """How many constraints there are, and where the active ones stand among all and among themselves."""
    start = active = 0
    spans = []
    for capacity, count in sizes:
        spans.append((slice(start, start + count), slice(active, active + count)))
        start += capacity
        active += count
    return start, spans
