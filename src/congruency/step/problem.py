"""Stack the constraints of all sources into one problem for the backends."""

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
    """Builds the problem of every step, once per combination of active sources.

    Args:
        only_violated: Do not change y unless it violates a constraint.
        counts, means: What the solver adds its counts and measures to.
    """

    def __init__(self, only_violated: bool, counts: Counts, means: RunningMeans) -> None:
        self._only_violated, self._counts, self._means = only_violated, counts, means
        self._made: dict[tuple[object, ...], Problem] = {}
        self.distances = Distances()  # Problem.previous

    def of(
        self, sources: Sequence[ConstraintSource], left_out: dict[int, int], blocks: int, device: torch.device
    ) -> Problem:
        """Return the problem of ``blocks`` blocks with the constraints of the active sources.

        ``left_out`` maps the position of each parameter without a gradient in this step to its block.
        """
        active = [source for source in sources if source.active]
        key = (device, blocks, *((id(source), _mixture(source), *settings_of(source)) for source in active))
        if key not in self._made and len(self._made) >= _MOST_MADE:  # for example if a margin changes at every step
            self._made.clear()
        problem = self._made.get(key) or self._make(active, device)
        if problem.floors is None:  # no constraint compares distances
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
        return {**self.__dict__, "_made": {}}  # its keys are ids of sources

    def _make(self, active: Sequence[ConstraintSource], device: torch.device) -> Problem:
        each = [source for source in active for _ in range(source.active)]
        # a floor of 1 excludes nothing; with inf, rounding at nu = -1 (rows of one element) does not matter
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
    """Return the problem with the current gates of its sources."""
    gates = [  # torch.ones only where needed, since it is a kernel launch at every step
        (torch.ones((), dtype=torch.bool, device=device) if source.gate is None else source.gate).expand(source.active)
        for source in active
    ]
    if len(gates) == 1:
        same = problem.gate is not None and problem.gate.data_ptr() == gates[0].data_ptr()
        return problem if same else replace(problem, gate=gates[0])
    if problem.gate is None:
        return replace(problem, gate=torch.cat(gates))
    problem.gate.copy_(torch.cat(gates))  # in place, since prepared launches refer to its address
    return problem


def _mixture(source: ConstraintSource) -> object:
    """Return a value that stays equal while the source's combination does."""
    return tuple(source.combination().flatten().tolist()) if source.layout is None else source.layout


def settings_of(source: ConstraintSource) -> tuple[object, ...]:
    """Return what a problem depends on and a source may change between steps."""
    return source.active, source.sign, source.margin, source.floor, source.returning, source.gate is None


def sizes_of(sources: Sequence[ConstraintSource]) -> list[tuple[int, int]]:
    """Return the capacity of each source and the number of its constraints on the current step."""
    return [(source.capacity, source.active) for source in sources]


def spans_of(sizes: Sequence[tuple[int, int]]) -> Spans:
    """Return the number of constraints and, per source, where its active ones are among all and among the active."""
    start = active = 0
    spans = []
    for capacity, count in sizes:
        spans.append((slice(start, start + count), slice(active, active + count)))
        start += capacity
        active += count
    return start, spans
