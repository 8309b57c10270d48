"""One learner through one stream: what it knows of every task after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from congruency.continual.learners import Setting, learner
from congruency.continual.methods import Method, memory_places
from congruency.continual.outcome import Outcome
from congruency.continual.streams import Stream

__all__ = ["run"]

_EVALUATED = 1000  # test images at a time


def run(
    stream: Stream,
    method: Method,
    setting: Setting,
    *,
    batch: int = 10,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], Any] | None = None,
) -> Outcome:
    """Learn a stream by one method, one run; an :class:`Outcome` with S = M = 1.

    Args:
        stream: What to learn.
        method: How.
        setting: The network, and what learners keep; ``setting.make`` decides on which device it is.
        batch: Samples in a step.
        device: Where images go; the network must be there.
        dtype: Precision of images.
        progress: Called with tasks done and tasks in all.
    """
    if method.has_memory:
        memory_places(setting.policy, setting.memory, min(len(task.train) for task in stream.tasks))
    one = learner(method, setting)
    course = _Course(stream, torch.device(device), dtype)
    tasks = len(stream)
    baseline, _ = course.scores(one)
    matrix, losses = torch.zeros(2, tasks, tasks, dtype=torch.float64)
    agreement = torch.full((tasks,), torch.nan, dtype=torch.float64)
    for task in range(tasks):
        agreement[task] = course.learn(one, task, batch)
        matrix[task], losses[task] = course.scores(one)
        if progress is not None:
            progress(task + 1, tasks)
    return Outcome(matrix[None, None], baseline[None], agreement[None, None], losses[None, None])


class _Course:
    """A stream on a device."""

    def __init__(self, stream: Stream, device: torch.device, dtype: torch.dtype) -> None:
        self.stream, self.device, self.dtype = stream, device, dtype
        self._tests = [tuple(part.to(device) for part in stream.testing(task)) for task in range(len(stream))]

    def learn(self, one: Any, task: int, batch: int) -> float:
        """Learn a task; the mean agreement of its updates with the memory."""
        images, labels = (part.to(self.device) for part in self.stream.training(task))
        inputs = self._inputs(images)
        one.begin(task, self._mask(task))
        found = []
        for x, y in zip(inputs.split(batch), labels.split(batch), strict=True):
            one.observe(x, y)
            found.append(one.agreement())
        one.finish(inputs, labels)
        kept = [value for value in found if value is not None]
        return float(torch.stack(kept).nan_to_num(0.0).mean()) if kept else float("nan")

    def scores(self, one: Any) -> Tensor:
        """(2, T): accuracies and losses on all tasks."""
        return torch.stack([self._score(one, task) for task in range(len(self.stream))], -1)

    def _score(self, one: Any, task: int) -> Tensor:
        """(2,): the share of right answers, the mean cross entropy of the outputs behind them."""
        images, labels = self._tests[task]
        mask = self._mask(task)
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for part, wanted in zip(images.split(_EVALUATED), labels.split(_EVALUATED), strict=True):
            guesses, outputs = one.answers(self._inputs(part), task, mask)
            total[0] += (guesses == wanted).sum()
            own = outputs.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
            total[1] += (outputs.logsumexp(-1) - own).sum(dtype=torch.float64)  # a third of cross_entropy's time
        return (total / len(labels)).cpu()

    def _inputs(self, images: Tensor) -> Tensor:
        return images.to(self.dtype) / 255

    def _mask(self, task: int) -> Tensor | None:
        mask = self.stream.mask(task)
        return None if mask is None else mask.to(self.device, self.dtype)
