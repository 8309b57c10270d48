"""The streams of all seeds on one device, learned and scored task by task by stacked networks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from congruency.continual.methods import Policy, memory_places
from congruency.continual.networks import initial_mlp
from congruency.continual.stacked import StackedMLP
from congruency.continual.stacked_learners import StackedLearner
from congruency.continual.streams import Stream
from congruency.continual.tally import tally

__all__ = ["Course"]

_ROUND = 16  # inputs
_EVALUATED = (1 << 29, 1 << 23)  # bytes that a layer's outputs may take in scoring: on a GPU, in a CPU's cache


class Course:
    """The streams of all seeds on the device, task by task.

    Inputs that no training image lights have weights that never move, so learning leaves them out: the networks learned
    (``network``) have fewer inputs than those that are scored (``whole``).

    Args:
        streams: One a seed, all of one shape.
        hidden: Sizes of the hidden layers.
        batch: Samples in a step.
        memory: Samples kept of every task.
        policy: Which: the last or the first seen.
        device: Where to compute.
        dtype: Precision of weights and inputs.
    """

    def __init__(
        self, streams: Sequence[Stream], hidden: Sequence[int], batch: int, memory: int, policy: Policy,
        device: torch.device, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.streams, self.batch, self.memory, self.policy = streams, batch, memory, policy
        self.device, self.dtype = device, dtype
        self._on_device: dict[int, Tensor] = {}
        self._lit = _aligned(torch.stack([_lit(stream) for stream in streams]).any(0)).to(device)
        sizes = (math.prod(streams[0].shape), *hidden, streams[0].classes)
        self.whole, self.network = StackedMLP(sizes), StackedMLP((len(self._lit), *sizes[1:]))
        self._first_weights = torch.zeros(len(streams), self.whole.width, dtype=dtype)
        for row, stream in zip(self._first_weights, streams, strict=True):
            row[: self.whole.parameters] = initial_mlp(sizes, stream.seed).to(dtype)
        self._first_weights = self._first_weights.to(device)
        self._tests = self._shared_tests()

    def start(self) -> Tensor:
        """(S, width): the first weights of every seed, for learning."""
        start = self._first_weights.new_zeros(len(self.streams), self.network.width)
        for (to, to_bias), (weight, bias) in self._paired_layers(start, self._first_weights):
            to.copy_(weight if to.shape == weight.shape else weight[..., self._lit])
            to_bias.copy_(bias)
        return start

    def _widened(self, weights: Tensor) -> Tensor:
        """(S, M, width) -> (S, M, width of whole): with the weights of dark inputs, which are the first ones."""
        wide = self._first_weights.unsqueeze(1).repeat(1, weights.shape[1], 1)
        for (narrow, narrow_bias), (weight, bias) in self._paired_layers(weights, wide):
            if narrow.shape == weight.shape:
                weight.copy_(narrow)
            else:
                weight[..., self._lit] = narrow
            bias.copy_(narrow_bias)
        return wide

    def _paired_layers(self, narrow: Tensor, wide: Tensor) -> Iterator[tuple[tuple[Tensor, Tensor], ...]]:
        return zip(self.network.layers(narrow), self.whole.layers(wide), strict=True)

    def learn(self, learner: StackedLearner, path: Path | None) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield (task, accuracies (S, M, T), agreement (S, M), losses (S, M, T)) after every task.

        Those of a resumed run come first; the losses are nan of tasks that a state from before losses were kept holds.
        """
        past = None
        if path is not None and path.exists():
            past = torch.load(path, weights_only=True, map_location="cpu")
        first = 0
        history: list[tuple[Tensor, Tensor, Tensor]] = []
        if past is not None:
            _check_same(past.get("run"), self._described(learner), path)
            learner.load_state_dict(past["learner"])
            history, first = [_with_losses(*after) for after in past["history"]], len(past["history"])
        for task in range(len(self.streams[0])):
            inputs, labels = self._training_inputs(task), self._labels("training", task)
            mask = self._mask(task)
            if task >= first:
                learner.begin(task, inputs, self.batch)
                for x, y in zip(inputs.split(self.batch, 1), labels.split(self.batch, 1), strict=True):
                    learner.step(x, y, mask)
            kept = memory_places(self.policy, min(self.memory, inputs.shape[1]), inputs.shape[1])
            learner.remember(inputs[:, kept].clone(), labels[:, kept], mask)
            if task >= first:
                learner.finish(inputs, mask)
                accuracies, losses = self.scores(learner.weights)
                history.append((accuracies, learner.agreement(), losses))
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
        return repr(
            (type(learner).__name__, learner.methods, self.whole.shapes, self.batch, memory, self.dtype, streams)
        )

    def scores(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(S, M, width) -> (S, M, T) twice: accuracies and losses on all tasks."""
        wide = self._widened(weights)
        if self._tests is not None:
            accuracies, losses = self._shared_scores(wide, *self._tests)
        else:
            of_tasks = [self._scores(wide, task) for task in range(len(self.streams[0]))]
            accuracies, losses = (torch.stack(part, -1) for part in zip(*of_tasks, strict=True))
        return accuracies.cpu(), losses.cpu()

    def _shared_tests(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Inputs (N, lit + 1) with a last column of ones, which inputs are lit, labels: where all tasks share them."""
        first = self.streams[0].test_images
        if not all(s.test_images is first and _scores_by_all(s) for s in self.streams):
            return None
        images = self._moved(first.images).flatten(1)
        lit = functional.pad((images != 0).any(0), (0, 1), value=True)  # pixels dark in all images cost nothing
        inputs = functional.pad(images.to(self.dtype) / 255, (0, 1), value=1.0)[:, lit]
        return inputs, lit, first.labels.to(self.device)

    def _shared_scores(self, wide: Tensor, inputs: Tensor, lit: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """All tasks at once, where they score by the same images with their pixels moved."""
        pixels = torch.stack([torch.stack([t.pixels for t in s.tasks if t.pixels is not None]) for s in self.streams])
        first = self.whole.moved_first_layer(wide, pixels.to(self.device))[..., lit]
        size = self._images_at_once(wide, pixels.shape[1])
        sums = torch.zeros(2, *first.shape[:3], dtype=torch.float64, device=self.device)
        for x, y in zip(inputs.split(size), labels.split(size), strict=True):
            _add(sums, tally(self.whole.logits_behind(first, wide, x), y))
        return _means(sums, len(labels))

    def _images_at_once(self, wide: Tensor, tasks: int = 1) -> int:
        each = wide[..., 0].numel() * tasks * max(out for out, _ in self.whole.shapes) * wide.element_size()
        return int(max(1, _EVALUATED[self.device.type == "cpu"] // each))

    def _scores(self, wide: Tensor, task: int) -> tuple[Tensor, Tensor]:
        labels, mask = self._labels("testing", task), self._mask(task)
        size = self._images_at_once(wide)
        sums = torch.zeros(2, *wide.shape[:2], dtype=torch.float64, device=self.device)
        for start in range(0, labels.shape[1], size):
            part = slice(start, start + size)
            logits = self.whole.logits(wide, self._testing_inputs(task, part), mask)
            _add(sums, tally(logits, labels[:, part].unsqueeze(1)))
        return _means(sums, labels.shape[1])

    def _training_inputs(self, task: int) -> Tensor:
        """(S, n, lit): pixels of a task from 0 to 1."""
        found = [
            self._pixels(s.train_images.images, s.tasks[task].train, s.tasks[task].pixels, self._lit)
            for s in self.streams
        ]
        return torch.stack(found).to(self.dtype) / 255

    def _testing_inputs(self, task: int, part: slice) -> Tensor:
        """(S, n, in)."""
        found = [
            self._pixels(s.test_images.images, s.tasks[task].test[part], s.tasks[task].pixels) for s in self.streams
        ]
        return torch.stack(found).to(self.dtype) / 255

    def _pixels(self, images: Tensor, places: Tensor, pixels: Tensor | None, kept: Tensor | None = None) -> Tensor:
        chosen = self._moved(images).flatten(1)[places.to(self.device)]
        if pixels is None:
            return chosen if kept is None else chosen[:, kept]
        pixels = pixels.to(self.device) if kept is None else pixels.to(self.device)[kept]
        return chosen[:, pixels.clamp(min=0)] * (pixels >= 0)

    def _labels(self, split: str, task: int) -> Tensor:
        """(S, n)."""
        found = []
        for stream in self.streams:
            own = stream.tasks[task]
            if split == "training":
                found.append(stream.train_images.labels[own.train])
            else:
                found.append(stream.test_images.labels[own.test])
        return torch.stack(found).to(self.device)

    def _moved(self, images: Tensor) -> Tensor:
        if id(images) not in self._on_device:
            self._on_device[id(images)] = images.to(self.device)
        return self._on_device[id(images)]

    def _mask(self, task: int) -> Tensor | None:
        masks = [stream.mask(task) for stream in self.streams]
        if masks[0] is None:
            return None
        return torch.stack([mask for mask in masks if mask is not None]).to(self.device, self.dtype)


def _aligned(lit: Tensor) -> Tensor:
    """The places that are lit, and as many dark ones as make a round number, which matrix products like."""
    wanted = min(-(-int(lit.sum()) // _ROUND) * _ROUND, len(lit))
    places = torch.cat([lit.nonzero().flatten(), (~lit).nonzero().flatten()])[: max(wanted, 1)]
    return places.sort().values


def _lit(stream: Stream) -> Tensor:
    """(in,): whether an input is ever above 0 in training."""
    lit = torch.zeros(math.prod(stream.shape), dtype=torch.bool)
    for task in stream.tasks:
        bright = (stream.train_images.images[task.train] != 0).any(0).flatten().cpu()
        lit |= bright if task.pixels is None else bright[task.pixels.clamp(min=0)] & (task.pixels >= 0)
    return lit


def _scores_by_all(stream: Stream) -> bool:
    """Whether every task scores by all test images in their order, with nothing done but moving their pixels."""
    everything = torch.arange(len(stream.test_images))
    return all(t.pixels is not None and t.classes is None and torch.equal(t.test, everything) for t in stream.tasks)


def _add(sums: Tensor, parts: tuple[Tensor, Tensor]) -> None:
    for total, part in zip(sums, parts, strict=True):
        total += part


def _means(sums: Tensor, count: int) -> tuple[Tensor, Tensor]:
    accuracies, losses = sums / count
    return accuracies, losses


def _with_losses(accuracies: Tensor, agreement: Tensor, losses: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """What a state holds of a task; states from before losses were kept have none."""
    return accuracies, agreement, torch.full_like(accuracies, torch.nan) if losses is None else losses


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
