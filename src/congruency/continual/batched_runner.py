"""All seeds and learners of one kind of stream at once: S x M perceptrons advance as one batched computation.

This is what the MNIST tables run. It is an implementation of its own, beside the learners of
:mod:`congruency.continual.learners` that use :class:`congruency.DCL` and :class:`congruency.GEM`'s corrector;
``tests/continual/test_batched_runner.py`` compares the weights of both after every task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from congruency._validate import check_whole
from congruency.constraints.memory import Policy
from congruency.continual.batched_learners import BatchedConstrainedLearner, BatchedJointLearner, BatchedLearner
from congruency.continual.batched_mlp import BatchedMLP, count_and_loss
from congruency.continual.batched_objectives import OBJECTIVES
from congruency.continual.config import LearnerConfig, memory_slice
from congruency.continual.gem_fast import FastGEM
from congruency.continual.networks import initial_mlp
from congruency.continual.scores import Outcome, warn_of_divergence
from congruency.continual.streams import Stream, Task
from congruency.files import replacing

if TYPE_CHECKING:
    from congruency.datasets import LabelledImages

BATCHED_KINDS = (*OBJECTIVES, "joint", "gem", "agem", "dcl", "dcl_memory")

_ALIGNMENT = 16  # the number of inputs is rounded up to a multiple
_EVALUATION_BYTES = (1 << 29, 1 << 23)  # of a layer's outputs in evaluation: on a GPU, in a CPU's cache


def run_together(
    streams: Sequence[Stream],
    configs: Sequence[LearnerConfig],
    *,
    hidden: Sequence[int] = (100, 100),
    batch: int = 10,
    memory: int = 256,
    policy: Policy = "first",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    agreement: bool = True,
    progress: Callable[[int, int], Any] | None = None,
    resume: Path | None = None,
) -> Outcome:
    """Train every learner, of the kinds in ``BATCHED_KINDS``, on every stream.

    Args:
        streams: One per seed, with the same number of tasks and samples.
        configs: The learners.
        hidden, batch, memory: Sizes of the hidden layers; samples per step; samples kept per task.
        policy: Which samples to keep: the ``"first"`` of a task, or the last (``"ring"``).
        device, dtype: Where, and in which precision, to compute.
        agreement: Measure how far updates agree with the memory. Without it, GEM and DCL with memory take less
            arithmetic on a CPU (:class:`congruency.continual.gem_fast.FastGEM`), one run after the other.
        progress: Called with the number of finished tasks and of all tasks.
        resume: Prefix of the files that hold the state after every task; an interrupted run continues from them.
    """
    _check(streams, configs, memory, policy)
    check_whole("batch", batch, "a whole number of samples per step, at least 1", least=1)
    for width in hidden:
        check_whole("hidden", width, "whole numbers of units per layer, at least 1", least=1)
    settings = (hidden, batch, memory, policy, torch.device(device), dtype)
    runner = BatchedRunner(streams, *settings)
    tasks, done = len(streams[0]), 0
    baseline = runner.scores(runner.initial_weights().unsqueeze(1))[0][:, 0]
    matrix, losses = torch.zeros(2, len(streams), len(configs), tasks, tasks, dtype=torch.float64)
    cosines = torch.full((len(streams), len(configs), tasks), torch.nan, dtype=torch.float64)
    fast = {m for m, c in enumerate(configs) if runner.on_cpu and not agreement and FastGEM.suits(c)}
    everywhere = list(range(len(streams)))
    together = [[m for m in members if m not in fast] for members in group(configs)]
    parts = [(everywhere, members) for members in together if members]
    parts += [([s], [m]) for s in everywhere for m in sorted(fast)]
    for number, (of_streams, members) in enumerate(parts):
        chosen, seeds = [configs[m] for m in members], [streams[s].seed for s in of_streams]
        own = runner if len(of_streams) == len(streams) else BatchedRunner([streams[s] for s in of_streams], *settings)
        learner = learner_for(own.network, chosen, own.initial_weights(), seeds, memory, tasks, fast=members[0] in fast)
        path = None if resume is None else resume.with_name(f"{resume.name}.{number}.pt")
        rows = torch.tensor(of_streams)[:, None]
        for task, accuracies, agreements, entropies in own.learn(learner, path):
            matrix[rows, members, task], losses[rows, members, task] = accuracies, entropies
            cosines[rows, members, task] = agreements
            done += 1
            if progress is not None:
                progress(done, tasks * len(parts))
    outcome = Outcome(matrix, baseline, cosines, losses)
    warn_of_divergence(outcome, configs)
    return outcome


def group(configs: Sequence[LearnerConfig]) -> list[list[int]]:
    """Indices of the learners that advance together: those that need the same work at every step."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, config in enumerate(configs):
        replay = (config.replay, config.replay_order) if config.replays else None
        key = (config.objective, replay, config.has_episodes, config.constrained_by == "agem")
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def learner_for(
    network: BatchedMLP, configs: Sequence[LearnerConfig], start: Tensor, seeds: Sequence[int], memory: int, tasks: int,
    fast: bool = False,
) -> BatchedLearner:  # fmt: skip
    """The batched learner of one :func:`group`; the ``fast`` one takes a single run."""
    if fast:
        return FastGEM(network, configs, start, seeds, memory)
    if configs[0].kind == "joint":
        return BatchedJointLearner(network, configs, start, seeds)
    objective = OBJECTIVES[configs[0].objective](network, configs, start, seeds, memory, tasks)
    return BatchedConstrainedLearner(network, configs, start, seeds, memory, objective)


def stream_shape(stream: Stream) -> tuple[Any, ...]:
    """All that streams must have in common to be learned together."""
    tasks = tuple((len(task.train), len(task.test), task.classes is None) for task in stream.tasks)
    return tasks, stream.shape, stream.classes


def _check(streams: Sequence[Stream], configs: Sequence[LearnerConfig], memory: int, policy: Policy) -> None:
    """Refuse what cannot be learned together."""
    for config in configs:
        if config.kind not in BATCHED_KINDS:
            raise ValueError(f"{config.name} ({config.kind}) cannot run batched; use congruency.continual.run")
        if config.cautious:
            raise ValueError(f"{config.name}: cautious=True needs an optimizer with momentum; use continual.run")
    if not streams or not configs:
        raise ValueError("there is nothing to learn: give at least one stream and one learner")
    shapes = {stream_shape(stream) for stream in streams}
    if len(shapes) != 1:
        raise ValueError(
            f"the streams must have the same tasks, samples, classes and image size, got {len(shapes)} kinds; "
            "run those of each kind by themselves"
        )
    if any(config.has_episodes for config in configs):
        memory_slice(policy, memory, min(len(task.train) for task in streams[0].tasks))


class BatchedRunner:
    """The streams of all seeds on one device: training and evaluation, task by task.

    Weights of inputs that are 0 in all training images never move, so training leaves them out: the trained networks
    (``network``) have fewer inputs than the evaluated ones (``whole``). The arguments are :func:`run_together`'s.
    """

    def __init__(
        self, streams: Sequence[Stream], hidden: Sequence[int], batch: int, memory: int, policy: Policy,
        device: torch.device, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.streams, self.batch, self.memory, self.policy = streams, batch, memory, policy
        self.device, self.dtype, self.on_cpu = device, dtype, device.type == "cpu"
        self._on_device: dict[int, Tensor] = {}
        self._active = _aligned(torch.stack([_nonzero_inputs(stream) for stream in streams]).any(0)).to(device)
        sizes = (math.prod(streams[0].shape), *hidden, streams[0].classes)
        self.whole, self.network = BatchedMLP(sizes), BatchedMLP((len(self._active), *sizes[1:]))
        self._initial = torch.zeros(len(streams), self.whole.width, dtype=dtype)
        for weights, stream in zip(self._initial, streams, strict=True):
            weights[: self.whole.parameters] = initial_mlp(sizes, stream.seed).to(dtype)
        self._initial = self._initial.to(device)
        self._tests = self._shared_tests()

    def initial_weights(self) -> Tensor:
        """(S, width): the initial weights of every seed, for training."""
        start = self._initial.new_zeros(len(self.streams), self.network.width)
        for (to, to_bias), (weight, bias) in self._paired_layers(start, self._initial):
            to.copy_(weight if to.shape == weight.shape else weight[..., self._active])
            to_bias.copy_(bias)
        return start

    def widened(self, weights: Tensor) -> Tensor:
        """(S, M, width) -> (S, M, width of whole): with the initial weights of the inputs that training leaves out."""
        wide = self._initial.unsqueeze(1).repeat(1, weights.shape[1], 1)
        for (narrow, narrow_bias), (weight, bias) in self._paired_layers(weights, wide):
            if narrow.shape == weight.shape:
                weight.copy_(narrow)
            else:
                weight[..., self._active] = narrow
            bias.copy_(narrow_bias)
        return wide

    def _paired_layers(self, narrow: Tensor, wide: Tensor) -> Iterator[tuple[tuple[Tensor, Tensor], ...]]:
        return zip(self.network.layers(narrow), self.whole.layers(wide), strict=True)

    def learn(self, learner: BatchedLearner, path: Path | None) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield (task, accuracies (S, M, T), agreement (S, M), losses (S, M, T)) after every task.

        With a ``path`` the state is saved there after every task, and a saved state is resumed: its results come first.
        """
        described = self._described(learner)
        history: list[tuple[Tensor, Tensor, Tensor]] = []
        if path is not None and path.exists():
            past = torch.load(path, weights_only=True, map_location="cpu")
            if past.get("run") != described:
                raise ValueError(
                    f"{path} holds another run (of other learners, streams or settings); remove it or choose another"
                )
            learner.load_state_dict(past["learner"])
            history = past["history"]
        first = len(history)
        for task in range(len(self.streams[0])):
            inputs, labels = self.training_samples(task)
            mask = self._mask(task)
            if task >= first:
                learner.begin(task, inputs, self.batch)
                for x, y in zip(inputs.split(self.batch, 1), labels.split(self.batch, 1), strict=True):
                    learner.step(x, y, mask)
            kept = memory_slice(self.policy, max(1, min(self.memory, inputs.shape[1])), inputs.shape[1])
            learner.remember(inputs[:, kept], labels[:, kept], mask)
            if task >= first:
                learner.finish(inputs, labels, mask)
                accuracies, losses = self.scores(learner.weights)
                history.append((accuracies, learner.agreement(), losses))
                if path is not None:
                    with replacing(path) as file:
                        torch.save({"run": described, "learner": learner.state_dict(), "history": history}, file)
            else:
                learner.restore(task, inputs, labels, mask)
            yield task, *history[task]

    def _described(self, learner: BatchedLearner) -> str:
        """All that distinguishes a run from others."""
        streams = [
            (s.name, s.seed, s.shape, len(s.train_images), [(t.name, len(t.train), len(t.test)) for t in s.tasks])
            for s in self.streams
        ]
        configs = [astuple(config) for config in learner.configs]
        memory = (self.memory, self.policy) if learner.configs[0].has_memory else None
        return repr((type(learner).__name__, configs, self.whole.shapes, self.batch, memory, self.dtype, streams))

    def scores(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(S, M, width) -> (S, M, T) twice: accuracies and losses on all tasks."""
        wide = self.widened(weights)
        if self._tests is None:
            found = torch.stack([self._scores(wide, task) for task in range(len(self.streams[0]))], -1)
        elif self.on_cpu:  # run by run: the first layers of one fit into the cache
            runs = [torch.cat([self._shared_scores(run[None, None], sources[None]) for run in of_seed], 2)
                    for of_seed, sources in zip(wide, self._tests[1], strict=True)]  # fmt: skip
            found = torch.cat(runs, 1)
        else:
            found = self._shared_scores(wide, self._tests[1])
        accuracies, losses = found.cpu()
        return accuracies, losses

    def _shared_tests(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Test images (N, pixels + 1), the last column ones, each input's pixel (S, T, in), labels (N,).

        Pixels that are 0 in all images are left out, -1 stands for them. None if the tasks do not share their images.
        """
        first = self.streams[0].test_images
        if not all(s.test_images is first and _tests_on_all(s) for s in self.streams):
            return None
        images = self._cached(first.images).flatten(1)
        active = functional.pad(images.amax(0) > 0, (0, 1), value=False)  # and one for inputs without a pixel
        inputs = functional.pad(images[:, active[:-1]].to(self.dtype) / 255, (0, 1), value=1.0)
        places = torch.where(active, active.cumsum(0) - 1, -1)
        pixels = [[task.pixels for task in stream.tasks if task.pixels is not None] for stream in self.streams]
        sources = places[torch.stack([torch.stack(of_stream) for of_stream in pixels]).to(self.device)]
        return inputs, sources, first.labels.to(self.device)

    def _shared_scores(self, wide: Tensor, sources: Tensor) -> Tensor:
        """(2, S, M, T): all tasks at once, if they are tested on the same images with permuted pixels."""
        assert self._tests is not None
        inputs, _, labels = self._tests
        first = self.whole.permuted_first_layer(wide, sources, inputs.shape[1] - 1)
        size = self._images_at_once(wide, sources.shape[1])
        sums = torch.zeros(2, *first.shape[:3], dtype=torch.float64, device=self.device)
        for x, y in zip(inputs.split(size), labels.split(size), strict=True):
            sums += count_and_loss(self.whole.logits_from_first_layer(first, wide, x), y)
        return sums / len(labels)

    def _images_at_once(self, wide: Tensor, tasks: int = 1) -> int:
        each = wide[..., 0].numel() * tasks * max(out for out, _ in self.whole.shapes) * wide.element_size()
        return int(max(1, _EVALUATION_BYTES[self.on_cpu] // each))

    def _scores(self, wide: Tensor, task: int) -> Tensor:
        """(2, S, M): one task."""
        mask, count = self._mask(task), len(self.streams[0].tasks[task].test)
        size = self._images_at_once(wide)
        sums = torch.zeros(2, *wide.shape[:2], dtype=torch.float64, device=self.device)
        for start in range(0, count, size):
            inputs, labels = self._samples(
                [(s.test_images, s.tasks[task].test[start : start + size], s.tasks[task]) for s in self.streams]
            )
            sums += count_and_loss(self.whole.logits(wide, inputs, mask), labels.unsqueeze(1))
        return sums / count

    def training_samples(self, task: int) -> tuple[Tensor, Tensor]:
        """Inputs (S, n, active) from 0 to 1 and labels (S, n) of a task."""
        return self._samples([(s.train_images, s.tasks[task].train, s.tasks[task]) for s in self.streams], self._active)

    def _samples(
        self, chosen: Sequence[tuple[LabelledImages, Tensor, Task]], kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Inputs (S, n, in), or of the ``kept`` inputs alone, and labels (S, n)."""
        inputs = [self._inputs(images.images, indices, task.pixels, kept) for images, indices, task in chosen]
        labels = [images.labels[indices] for images, indices, _ in chosen]
        return torch.stack(inputs).div_(255), torch.stack(labels).to(self.device)

    def _inputs(self, images: Tensor, indices: Tensor, pixels: Tensor | None, kept: Tensor | None) -> Tensor:
        chosen = self._cached(images).flatten(1).index_select(0, indices.to(self.device)).to(self.dtype)
        if pixels is None:
            return chosen if kept is None else chosen.index_select(1, kept)
        pixels = pixels.to(self.device) if kept is None else pixels.to(self.device)[kept]
        return chosen.index_select(1, pixels.clamp(min=0)).mul_(pixels >= 0)

    def _cached(self, images: Tensor) -> Tensor:
        if id(images) not in self._on_device:
            self._on_device[id(images)] = images.to(self.device)
        return self._on_device[id(images)]

    def _mask(self, task: int) -> Tensor | None:
        masks = [stream.mask(task) for stream in self.streams]
        if masks[0] is None:
            return None
        return torch.stack([mask for mask in masks if mask is not None]).to(self.device, self.dtype)


def _aligned(active: Tensor) -> Tensor:
    """Indices of the active inputs, filled up with inactive ones to a number that suits matrix products."""
    wanted = min(-(-int(active.sum()) // _ALIGNMENT) * _ALIGNMENT, len(active))
    indices = torch.cat([active.nonzero().flatten(), (~active).nonzero().flatten()])[: max(wanted, 1)]
    return indices.sort().values


def _nonzero_inputs(stream: Stream) -> Tensor:
    """(in,): whether an input is above 0 in any training image of any task."""
    active = torch.zeros(math.prod(stream.shape), dtype=torch.bool)
    for task in stream.tasks:
        nonzero = stream.train_images.images.flatten(1).index_select(0, task.train).amax(0).cpu() > 0
        active |= nonzero if task.pixels is None else nonzero[task.pixels.clamp(min=0)] & (task.pixels >= 0)
    return active


def _tests_on_all(stream: Stream) -> bool:
    """Whether every task is tested on all test images in order, changed only by moving their pixels."""
    everything = torch.arange(len(stream.test_images))
    return all(t.pixels is not None and t.classes is None and torch.equal(t.test, everything) for t in stream.tasks)
