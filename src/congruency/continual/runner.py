"""One learner on one stream: train on every task in turn, evaluate on all tasks after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from congruency._validate import check_whole
from congruency.continual.config import LearnerConfig, memory_slice
from congruency.continual.learners import Learner, Setting, learner
from congruency.continual.scores import Outcome, warn_of_divergence
from congruency.continual.streams import Stream

_EVALUATION_BATCH = 1000


def run(
    stream: Stream,
    config: LearnerConfig,
    setting: Setting,
    *,
    batch: int = 10,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    agreement: bool = True,
    progress: Callable[[int, int], Any] | None = None,
) -> Outcome:
    """Train one learner on one stream; an :class:`Outcome` with S = M = 1.

    Where the network is in the ``channels_last`` memory format, images are too.

    Args:
        stream: The tasks.
        config: The learner.
        setting: The network and the size of the memory; ``setting.make`` must build the network on ``device``.
        batch: Samples per step.
        device, dtype: Of the images.
        agreement: Measure how far updates agree with the memory, which takes some time at every step.
        progress: Called with the number of finished tasks and of all tasks.
    """
    check_whole("batch", batch, "a whole number of samples per step, at least 1", least=1)
    if setting.tasks != len(stream):
        raise ValueError(f"the setting is for {setting.tasks} tasks and the stream has {len(stream)}; make them equal")
    if config.has_episodes or config.kind == "icarl":
        memory_slice(setting.policy, setting.memory, min(len(task.train) for task in stream.tasks))
    one = learner(config, setting)
    runner = _Runner(stream, torch.device(device), dtype, _memory_format(one.model))
    runner.check_outputs(one)
    tasks = len(stream)
    baseline, _ = runner.scores(one)
    matrix, losses = torch.zeros(2, tasks, tasks, dtype=torch.float64)
    cosines = torch.full((tasks,), torch.nan, dtype=torch.float64)
    for task in range(tasks):
        cosines[task] = runner.learn(one, task, batch, agreement)
        matrix[task], losses[task] = runner.scores(one)
        if progress is not None:
            progress(task + 1, tasks)
    outcome = Outcome(matrix[None, None], baseline[None], cosines[None, None], losses[None, None])
    warn_of_divergence(outcome, [config])
    return outcome


def _memory_format(model: nn.Module) -> torch.memory_format:
    weights = [p for p in model.parameters() if p.ndim == 4 and not p.is_contiguous()]
    last = any(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    return torch.channels_last if last else torch.contiguous_format


class _Runner:
    """A stream on a device."""

    def __init__(
        self, stream: Stream, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format
    ) -> None:
        self.stream, self.device, self.dtype, self.memory_format = stream, device, dtype, memory_format
        self._tests = [tuple(part.to(device) for part in stream.testing(task)) for task in range(len(stream))]

    def learn(self, one: Learner, task: int, batch: int, agreement: bool) -> float:
        """Train on a task; the mean agreement of its updates with the memory, nan where it is not measured."""
        images, labels = (part.to(self.device) for part in self.stream.training(task))
        inputs = self._inputs(images)
        one.begin(task, self._mask(task))
        cosines = []
        for x, y in zip(inputs.split(batch), labels.split(batch), strict=True):
            one.observe(x, y)
            if agreement:
                cosines.append(one.agreement())
        one.finish(inputs, labels)
        defined = [cosine for cosine in cosines if cosine is not None]
        return float(torch.stack(defined).nan_to_num(0.0).mean()) if defined else float("nan")

    def check_outputs(self, one: Learner) -> None:
        """Refuse a network with fewer outputs than the stream has classes, or with others where tasks mask classes."""
        one.model.eval()
        with torch.no_grad():
            shape = tuple(one.outputs(self._inputs(self._tests[0][0][:1]), 0).shape)
        classes, masked = self.stream.classes, self._mask(0) is not None
        if len(shape) != 2 or shape[1] < classes or (masked and shape[1] != classes):
            raise ValueError(
                f"the network gives outputs of shape {shape} for one image, and the stream has {classes} classes; let "
                f"setting.make build a network with {classes} outputs"
            )

    def scores(self, one: Learner) -> Tensor:
        """(2, T): accuracies and losses on all tasks; the device is waited for once."""
        return torch.stack([self._score(one, task) for task in range(len(self.stream))], -1).cpu()

    def _score(self, one: Learner, task: int) -> Tensor:
        """(2,): accuracy of the predictions, and mean cross entropy of the outputs."""
        images, labels = self._tests[task]
        mask = self._mask(task)
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for part, wanted in zip(images.split(_EVALUATION_BATCH), labels.split(_EVALUATION_BATCH), strict=True):
            predicted, outputs = one.predict(self._inputs(part), task, mask)
            total[0] += (predicted == wanted).sum()
            own = outputs.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
            total[1] += (outputs.logsumexp(-1) - own).sum(dtype=torch.float64)  # a third of cross_entropy's time
        return total / len(labels)

    def _inputs(self, images: Tensor) -> Tensor:
        return images.to(self.dtype, memory_format=self.memory_format) / 255

    def _mask(self, task: int) -> Tensor | None:
        mask = self.stream.mask(task)
        return None if mask is None else mask.to(self.device, self.dtype)
