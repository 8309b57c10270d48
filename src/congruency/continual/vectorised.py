"""All seeds and methods of one stream at once: S x M perceptrons advance together as one batched computation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from congruency.continual.methods import Method, Policy, memory_places
from congruency.continual.networks import initial_mlp
from congruency.continual.outcome import Outcome
from congruency.continual.stacked import StackedMLP
from congruency.continual.stacked_learners import StackedLearner, learner_for
from congruency.continual.streams import Stream

__all__ = ["STACKED_KINDS", "run_together"]

STACKED_KINDS = ("single", "ewc", "gem", "agem", "dcl", "dcl_memory")
_EVALUATED = (1 << 29, 1 << 21)  # bytes that a layer's outputs may take in scoring: on a GPU, in a CPU's cache


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
        path = None if resume is None else resume.with_name(f"{resume.name}.{number}.pt")
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
        self._shared_tests = all(s.test_images is streams[0].test_images and _scores_by_all(s) for s in streams)

    def learn(self, learner: StackedLearner, path: Path | None) -> Any:
        """Yield (task, accuracies (S, M, T), agreement (S, M)) after every task, those of a resumed run first."""
        past = None
        if path is not None and path.exists():
            past = torch.load(path, weights_only=True, map_location="cpu")
        first = 0
        history: list[tuple[Tensor, Tensor]] = []
        if past is not None:
            _check_same(past.get("run"), self._described(learner), path)
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
                    _save({"run": self._described(learner), "learner": learner.state_dict(), "history": history}, path)
            yield task, *history[task]

    def _described(self, learner: StackedLearner) -> str:
        """All that tells a run from others."""
        streams = [
            (s.name, s.seed, s.shape, len(s.train_images), [(t.name, len(t.train), len(t.test)) for t in s.tasks])
            for s in self.streams
        ]
        memory = (self.memory, self.policy) if learner.methods[0].has_memory else None
        return repr((learner.methods, learner.network.shapes, self.batch, memory, self.dtype, streams))

    def accuracies(self, network: StackedMLP, weights: Tensor) -> Tensor:
        """(S, M, T) on all tasks."""
        if self._shared_tests:
            return self._shared_accuracies(network, weights).cpu()
        found = [self._accuracy(network, weights, task) for task in range(len(self.streams[0]))]
        return torch.stack(found, -1).cpu()

    def _shared_accuracies(self, network: StackedMLP, weights: Tensor) -> Tensor:
        """All tasks at once, where they score by the same images with their pixels moved."""
        images = self._on_device(self.streams[0].test_images.images).flatten(1)
        labels = self.streams[0].test_images.labels.to(self.device)
        pixels = torch.stack([torch.stack([t.pixels for t in s.tasks if t.pixels is not None]) for s in self.streams])
        lit = functional.pad((images != 0).any(0), (0, 1), value=True)  # pixels dark in all images cost nothing
        first = network.moved_first_layer(weights, pixels.to(self.device))[..., lit]
        size = self._images_at_once(network, weights, pixels.shape[1])
        right = torch.zeros(first.shape[:3], dtype=torch.int64, device=self.device)
        for x, y in zip(images.split(size), labels.split(size), strict=True):
            inputs = functional.pad(x.to(self.dtype) / 255, (0, 1), value=1.0)[:, lit]
            right += (network.logits_behind(first, weights, inputs).argmax(-1) == y).sum(-1)
        return right.double() / len(labels)

    def _images_at_once(self, network: StackedMLP, weights: Tensor, tasks: int = 1) -> int:
        each = weights[..., 0].numel() * tasks * max(out for out, _ in network.shapes) * weights.element_size()
        return int(max(1, _EVALUATED[self.device.type == "cpu"] // each))

    def _accuracy(self, network: StackedMLP, weights: Tensor, task: int) -> Tensor:
        labels, mask = self.labels("testing", task), self._mask(task)
        size = self._images_at_once(network, weights)
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


def _scores_by_all(stream: Stream) -> bool:
    """Whether every task scores by all test images in their order, with nothing done but moving their pixels."""
    everything = torch.arange(len(stream.test_images))
    return all(t.pixels is not None and t.classes is None and torch.equal(t.test, everything) for t in stream.tasks)


def _common_shape(
    streams: Sequence[Stream], methods: Sequence[Method], memory: int, policy: Policy
) -> tuple[int, int, int]:
    """(tasks, samples, inputs), the same for all streams."""
    for method in methods:
        if method.kind not in STACKED_KINDS:
            raise ValueError(f"{method.name} ({method.kind}) cannot run stacked; use congruency.continual.run")
    if not streams:
        raise ValueError("there is nothing to learn: give at least one stream")
    shapes = {
        (tuple((len(t.train), len(t.test), t.classes is None) for t in s.tasks), s.shape, s.classes) for s in streams
    }
    if len(shapes) != 1:
        raise ValueError(
            f"the streams must have the same tasks, samples, classes and image size, got {len(shapes)} kinds"
        )
    ((tasks, shape, _),) = shapes
    samples = [train for train, _, _ in tasks]
    if any(method.has_memory for method in methods):
        memory_places(policy, memory, min(samples))
    return len(tasks), samples[0], shape[0] * shape[1] * shape[2]


def _check_same(found: str | None, wanted: str, path: Path | None) -> None:
    if found != wanted:
        raise ValueError(
            f"{path} holds another run, of other methods, streams or settings; remove it or choose another file"
        )


def _save(state: dict[str, Any], path: Path) -> None:
    aside = path.with_name(path.name + ".part")
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
