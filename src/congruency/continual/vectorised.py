"""All seeds and methods of one stream at once: S x M perceptrons advance together as one batched computation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from congruency.continual.methods import Method, Policy, memory_places
from congruency.continual.networks import initial_mlp
from congruency.continual.outcome import Outcome
from congruency.continual.stacked import StackedMLP
from congruency.continual.stacked_learners import StackedLearner, learner_for
from congruency.continual.streams import Stream

__all__ = ["STACKED_KINDS", "run_together"]

STACKED_KINDS = ("single", "ewc", "gem", "agem", "dcl", "dcl_memory")
_EVALUATED = 2 << 30  # bytes that the activations of an evaluation should take at most


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
    """
    shape = _common_shape(streams, methods, memory, policy)
    network = StackedMLP((shape[2], *hidden, streams[0].classes))
    start = torch.zeros(len(streams), network.width, dtype=dtype)
    for row, stream in zip(start, streams, strict=True):
        row[: network.parameters] = initial_mlp((shape[2], *hidden, streams[0].classes), stream.seed).to(dtype)
    course = _Course(streams, batch, memory, policy, torch.device(device), dtype)
    groups = group(methods)
    tasks = len(streams[0])
    done = 0
    baseline = course.accuracies(network, start.to(device).unsqueeze(1))[:, 0]
    matrix = torch.zeros(len(streams), len(methods), tasks, tasks, dtype=torch.float64)
    agreement = torch.full((len(streams), len(methods), tasks), torch.nan, dtype=torch.float64)
    for number, places in enumerate(groups):
        learner = learner_for(
            network, [methods[i] for i in places], start.to(device), [s.seed for s in streams], memory
        )
        path = None if resume is None else resume.with_suffix(f".{number}.pt")
        for task, accuracies, cosines in course.learn(learner, path):
            matrix[:, places, task] = accuracies
            agreement[:, places, task] = cosines
            done += 1
            if progress is not None:
                progress(done, tasks * len(groups))
    return Outcome(matrix, baseline, agreement)


def group(methods: Sequence[Method]) -> list[list[int]]:
    """Places of the methods that advance together: those that need the same work at every step."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, method in enumerate(methods):
        key = (method.kind in ("ewc", "agem") and method.kind, method.has_memory)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


class _Course:
    """The streams of all seeds on the device, task by task."""

    def __init__(
        self, streams: Sequence[Stream], batch: int, memory: int, policy: Policy, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.streams, self.batch, self.memory, self.policy = streams, batch, memory, policy
        self.device, self.dtype = device, dtype
        self._moved: dict[int, Tensor] = {}

    def learn(self, learner: StackedLearner, path: Path | None) -> Any:
        """Yield (task, accuracies (S, M, T), agreement (S, M)) after every task, those of a resumed run first."""
        past = torch.load(path, weights_only=True) if path is not None and path.exists() else None
        first = 0
        history: list[tuple[Tensor, Tensor]] = []
        if past is not None:
            _check_same(past["methods"], repr((learner.methods, [s.seed for s in self.streams])), path)
            learner.load_state_dict(past["learner"])
            history, first = past["history"], len(past["history"])
        for task in range(len(self.streams[0])):
            inputs, labels = self.inputs("training", task), self.labels("training", task)
            mask = self._mask(task)
            if task >= first:
                learner.begin(task, -(-inputs.shape[1] // self.batch))
                for x, y in zip(inputs.split(self.batch, 1), labels.split(self.batch, 1), strict=True):
                    learner.step(x, y, mask)
            kept = memory_places(self.policy, min(self.memory, inputs.shape[1]), inputs.shape[1])
            learner.remember(inputs[:, kept].clone(), labels[:, kept], mask)
            if task >= first:
                learner.finish(inputs, mask)
                history.append((self.accuracies(learner.network, learner.weights), learner.agreement()))
                if path is not None:
                    _save({"methods": repr((learner.methods, [s.seed for s in self.streams])),
                           "learner": learner.state_dict(), "history": history}, path)  # fmt: skip
            yield task, *history[task]

    def accuracies(self, network: StackedMLP, weights: Tensor) -> Tensor:
        """(S, M, T) on all tasks."""
        found = [self._accuracy(network, weights, task) for task in range(len(self.streams[0]))]
        return torch.stack(found, -1).cpu()

    def _accuracy(self, network: StackedMLP, weights: Tensor, task: int) -> Tensor:
        labels, mask = self.labels("testing", task), self._mask(task)
        widest = max(out for out, _ in network.shapes)
        size = max(1, _EVALUATED // (weights[..., 0].numel() * widest * weights.element_size() * len(network.shapes)))
        right = torch.zeros(weights.shape[:2], dtype=torch.int64, device=weights.device)
        for start in range(0, labels.shape[1], size):
            part = slice(start, start + size)
            guesses = network.logits(weights, self.inputs("testing", task, part), mask).argmax(-1)
            right += (guesses == labels[:, part].unsqueeze(1)).sum(-1)
        return right.double() / labels.shape[1]

    def inputs(self, split: str, task: int, part: slice = slice(None)) -> Tensor:
        """(S, n, in): pixels of a task from 0 to 1."""
        found = []
        for stream in self.streams:
            own = stream.tasks[task]
            images = stream.train_images.images if split == "training" else stream.test_images.images
            places = (own.train if split == "training" else own.test)[part]
            chosen = self._on_device(images).flatten(1)[places.to(self.device)]
            if own.pixels is not None:
                pixels = own.pixels.to(self.device)
                chosen = chosen[:, pixels.clamp(min=0)] * (pixels >= 0)
            found.append(chosen)
        return torch.stack(found).to(self.dtype) / 255

    def labels(self, split: str, task: int) -> Tensor:
        """(S, n)."""
        found = []
        for stream in self.streams:
            own = stream.tasks[task]
            of_split = stream.train_images.labels if split == "training" else stream.test_images.labels
            found.append(of_split[(own.train if split == "training" else own.test)])
        return torch.stack(found).to(self.device)

    def _on_device(self, images: Tensor) -> Tensor:
        if id(images) not in self._moved:
            self._moved[id(images)] = images.to(self.device)
        return self._moved[id(images)]

    def _mask(self, task: int) -> Tensor | None:
        masks = [stream.mask(task) for stream in self.streams]
        if masks[0] is None:
            return None
        return torch.stack([mask for mask in masks if mask is not None]).to(self.device, self.dtype)


def _common_shape(
    streams: Sequence[Stream], methods: Sequence[Method], memory: int, policy: Policy
) -> tuple[int, int, int]:
    """(tasks, samples, inputs), the same for all streams."""
    for method in methods:
        if method.kind not in STACKED_KINDS:
            raise ValueError(f"{method.name} ({method.kind}) cannot run stacked; use congruency.continual.run")
    shapes = {
        (len(s), tuple(len(task.train) for task in s.tasks), tuple(len(task.test) for task in s.tasks), s.shape)
        for s in streams
    }
    if len(shapes) != 1:
        raise ValueError(f"the streams must have the same tasks, samples and image size, got {len(shapes)} kinds")
    ((tasks, samples, _, shape),) = shapes
    if any(method.has_memory for method in methods):
        memory_places(policy, memory, min(samples))
    return tasks, samples[0], shape[0] * shape[1] * shape[2]


def _check_same(found: str, wanted: str, path: Path | None) -> None:
    if found != wanted:
        raise ValueError(f"{path} holds another run, of other methods or seeds; remove it or choose another folder")


def _save(state: dict[str, Any], path: Path) -> None:
    aside = path.with_name(path.name + ".part")
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
