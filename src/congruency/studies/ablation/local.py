"""Cells on this machine: one after the other in this process, or several processes at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from congruency.studies.ablation.runs import Outcome, attempt
from congruency.studies.classification.running import Run, Work, many_runs, run_all

__all__ = ["run_here"]


def run_here(runs: Sequence[Run], work: Work, *, threads: int) -> Iterator[tuple[Run, Outcome]]:
    """Each run with what it came to, as they end."""
    with many_runs():
        yield from run_all(runs, work, partial(attempt, threads=threads))
