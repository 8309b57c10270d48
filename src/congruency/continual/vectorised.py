"""All seeds and methods of one stream at once: S x M perceptrons advance together as one batched computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from congruency.continual.course import Course
from congruency.continual.methods import Method, Policy, memory_places
from congruency.continual.outcome import Outcome
from congruency.continual.sparing import SparingGEM, spares
from congruency.continual.stacked import StackedMLP
from congruency.continual.stacked_learners import Consolidating, Constrained, StackedLearner
from congruency.continual.streams import Stream

__all__ = ["STACKED_KINDS", "learner_for", "run_together", "stream_shape"]

STACKED_KINDS = ("single", "ewc", "gem", "agem", "dcl", "dcl_memory")


def run_together(
    streams: Sequence[Stream],
    methods: Sequence[Method],
    *,
    hidden: Sequence[int] = (100, 100),
    batch: int = 10,
    memory: int = 256,
    policy: Policy = "first",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], Any] | None = None,
    resume: Path | None = None,
    agreement: bool = True,
) -> Outcome:
    """Learn one stream a seed with every method.

    Args:
        streams: One a seed, all of one kind: the same number of tasks and samples.
        methods: Of the kinds in ``STACKED_KINDS``.
        hidden: Sizes of the hidden layers.
        batch: Samples in a step.
        memory: Samples kept of every task.
        policy: Which: the last or the first seen.
        device: Where to compute.
        dtype: Precision of weights and inputs.
        progress: Called with tasks done and tasks in all.
        resume: A file that holds the state after every task; an interrupted run goes on from it.
        agreement: Follow the cosines between the updates and the memory's gradients. Without them they are nan, and a
            single run of GEM on a CPU does with less arithmetic.
    """
    _check(streams, methods, memory, policy)
    if batch < 1 or min(hidden, default=1) < 1:
        raise ValueError(f"batch and hidden layers must be of at least 1, got batch {batch}, hidden {tuple(hidden)}")
    course = Course(streams, hidden, batch, memory, policy, torch.device(device), dtype)
    start = course.start()
    groups = group(methods)
    tasks = len(streams[0])
    done = 0
    baseline = course.scores(start.unsqueeze(1))[0][:, 0]
    matrix, losses = torch.zeros(2, len(streams), len(methods), tasks, tasks, dtype=torch.float64)
    agreements = torch.full((len(streams), len(methods), tasks), torch.nan, dtype=torch.float64)
    for number, places in enumerate(groups):
        chosen = [methods[i] for i in places]
        learner = learner_for(course.network, chosen, start, [s.seed for s in streams], memory, agreement)
        path = None if resume is None else resume.with_name(f"{resume.name}.{number}.pt")
        for task, accuracies, cosines, entropies in course.learn(learner, path):
            matrix[:, places, task] = accuracies
            if agreement:
                agreements[:, places, task] = cosines
            losses[:, places, task] = entropies
            done += 1
            if progress is not None:
                progress(done, tasks * len(groups))
    return Outcome(matrix, baseline, agreements, losses)


def group(methods: Sequence[Method]) -> list[list[int]]:
    """Places of the methods that advance together: those that need the same work at every step."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, method in enumerate(methods):
        key = (method.kind in ("ewc", "agem") and method.kind, method.has_memory)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def learner_for(
    network: StackedMLP,
    methods: Sequence[Method],
    start: Tensor,
    seeds: Sequence[int],
    memory: int,
    agreement: bool = True,
) -> StackedLearner:
    """The learner that advances these methods, which need the same work at every step."""
    if methods[0].kind == "ewc":
        return Consolidating(network, methods, start)
    kind = SparingGEM if spares(methods, start) and not agreement else Constrained
    return kind(network, methods, start, seeds, sample=memory)


def stream_shape(stream: Stream) -> tuple[Any, ...]:
    """All that streams which are learned together must have in common."""
    tasks = tuple((len(task.train), len(task.test), task.classes is None) for task in stream.tasks)
    return tasks, stream.shape, stream.classes


def _check(streams: Sequence[Stream], methods: Sequence[Method], memory: int, policy: Policy) -> None:
    """Refuse what cannot be learned together."""
    for method in methods:
        if method.kind not in STACKED_KINDS:
            raise ValueError(f"{method.name} ({method.kind}) cannot run stacked; use congruency.continual.run")
    if not streams:
        raise ValueError("there is nothing to learn: give at least one stream")
    shapes = {stream_shape(stream) for stream in streams}
    if len(shapes) != 1:
        raise ValueError(
            f"the streams must have the same tasks, samples, classes and image size, got {len(shapes)} kinds; "
            "run those of each kind by themselves"
        )
    if any(method.has_memory for method in methods):
        memory_places(policy, memory, min(len(task.train) for task in streams[0].tasks))
