"""Streams of tasks made from one labelled image set: rotations, permutations, incremental classes.

A stream is drawn from its seed by :class:`numpy.random.RandomState`, whose sequences are frozen: it is the same on
every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from congruency._validate import check_choice

if TYPE_CHECKING:
    from congruency.datasets import LabelledImages


Scenario = Literal["domain", "task", "class"]
"""What tasks differ in, and whether a test image comes with its task (van de Ven and Tolias, 2019).

- ``"domain"``: all tasks have the same classes, the images differ. The task is not given, and not needed.
- ``"task"``: every task has its own classes and outputs. The task is given: predictions are among its classes.
- ``"class"``: every task has its own classes. The task is not given: predictions are among all classes.
"""


@dataclass(frozen=True, eq=False)
class Task:
    """One task: its images, their order, and the permutation of their pixels.

    Attributes:
        name: what distinguishes it from the other tasks.
        train: indices of the training images, (n,), in training order.
        test: indices of the test images.
        pixels: (C*H*W,) int64, the source of each pixel; -1 is black. None leaves the images unchanged.
        classes: the labels that occur; outputs for others are masked out. None: all of them.
    """

    name: str
    train: Tensor
    test: Tensor
    pixels: Tensor | None = None
    classes: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Stream:
    """A sequence of tasks, each sample seen once."""

    name: str
    seed: int
    tasks: tuple[Task, ...]
    train_images: LabelledImages
    test_images: LabelledImages
    scenario: Scenario = "domain"

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        channels, height, width = self.train_images.images.shape[1:]
        return channels, height, width

    @property
    def classes(self) -> int:
        """Number of classes over all tasks."""
        return len(self.train_images.classes)

    def training(self, task: int) -> tuple[Tensor, Tensor]:
        """Images (n, C, H, W) in uint8 and labels (n,) of a task, in training order."""
        return _select(self.train_images, self.tasks[task].train, self.tasks[task].pixels)

    def testing(self, task: int) -> tuple[Tensor, Tensor]:
        """Test images and labels of a task."""
        return _select(self.test_images, self.tasks[task].test, self.tasks[task].pixels)

    def batches(self, task: int, size: int = 10) -> Iterator[tuple[Tensor, Tensor]]:
        """The training samples of a task in their order, ``size`` at a time."""
        images, labels = self.training(task)
        return zip(images.split(size), labels.split(size), strict=True)

    def mask(self, task: int) -> Tensor | None:
        """(classes,): 0 for the outputs of the task's classes, -inf for others; None if the task has all classes."""
        classes = self.tasks[task].classes
        if classes is None:
            return None
        mask = torch.full((self.classes,), -math.inf)
        mask[list(classes)] = 0.0
        return mask


def rotations(
    train: LabelledImages, test: LabelledImages, *, tasks: int = 20, samples: int = 1000, seed: int = 0,
    degrees: float = 180.0,
) -> Stream:  # fmt: skip
    """Task k rotates all images by one angle, drawn from the k-th of ``tasks`` equal bins of 0 to ``degrees``.

    Nearest-neighbour interpolation, black corners.
    """
    state = _state(train, tasks, samples, seed)
    width = degrees / tasks
    angles = [(k + float(state.random_sample())) * width for k in range(tasks)]
    shape = tuple(train.images.shape[1:])
    return _same_classes(
        "rotations", train, test, samples, seed, state,
        [(f"{angle:.1f} degrees", rotated_pixels(shape, angle)) for angle in angles],
    )  # fmt: skip


def permutations(
    train: LabelledImages, test: LabelledImages, *, tasks: int = 20, samples: int = 1000, seed: int = 0
) -> Stream:
    """Task k permutes the pixels of all images by one random permutation."""
    state = _state(train, tasks, samples, seed)
    size = train.images[0].numel()
    shuffles = [torch.from_numpy(state.permutation(size).astype(np.int64)) for _ in range(tasks)]
    return _same_classes(
        "permutations", train, test, samples, seed, state,
        [(f"permutation {k}", pixels) for k, pixels in enumerate(shuffles)],
    )  # fmt: skip


def incremental(
    train: LabelledImages, test: LabelledImages, *, tasks: int = 20, samples: int = 2500, seed: int = 0,
    scenario: Scenario = "task", shuffle: bool = True,
) -> Stream:  # fmt: skip
    """Task k has classes that no other task has: the classes in ``tasks`` equal parts.

    A task with fewer than ``samples`` images uses all of them.

    Args:
        scenario: ``"task"``: a task's outputs are those of its classes, at test time too; ``"class"``: learned and
            tested among all classes, without the task's identity.
        shuffle: Assign the classes to tasks by the seed; otherwise in their order, as in split MNIST.
    """
    if check_choice("scenario", scenario, get_args(Scenario)) == "domain":
        raise ValueError("tasks with classes of their own are scenario 'task' or 'class', not 'domain'")
    classes = len(train.classes)
    if tasks < 1 or classes % tasks:
        raise ValueError(
            f"{classes} classes cannot be split evenly into {tasks} tasks; "
            f"take a number of tasks that divides {classes}"
        )
    state = _state(train, tasks, samples, seed)
    found = []
    for part in np.split(state.permutation(classes) if shuffle else np.arange(classes), tasks):
        own = tuple(sorted(int(label) for label in part))
        chosen = [torch.isin(data.labels.cpu(), torch.tensor(own)).nonzero().flatten() for data in (train, test)]
        for indices, kind in zip(chosen, ("training", "test"), strict=True):
            if not len(indices):
                raise ValueError(f"a task of classes {own} has no {kind} samples; leave these classes out")
        order = torch.from_numpy(state.permutation(len(chosen[0]))[:samples].astype(np.int64))
        outputs = own if scenario == "task" else None
        names = ", ".join(train.classes[label] for label in own)
        found.append(Task(names, chosen[0][order], chosen[1], classes=outputs))
    return Stream("incremental", seed, tuple(found), train, test, scenario)


STREAMS: dict[str, Callable[..., Stream]] = {make.__name__: make for make in (rotations, permutations, incremental)}


def rotated_pixels(shape: tuple[int, ...], degrees: float) -> Tensor:
    """The source of each pixel in images of ``shape`` (C, H, W) rotated counterclockwise about their centre."""
    channels, height, width = shape
    angle = math.radians(degrees)
    y = np.arange(height)[:, None] + 0.5 - height / 2
    x = np.arange(width)[None, :] + 0.5 - width / 2
    from_x = np.floor(math.cos(angle) * x - math.sin(angle) * y + width / 2).astype(np.int64)
    from_y = np.floor(math.sin(angle) * x + math.cos(angle) * y + height / 2).astype(np.int64)
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    plane = np.where(inside, from_y * width + from_x, -1).ravel()
    planes = [np.where(plane >= 0, plane + c * height * width, -1) for c in range(channels)]
    return torch.from_numpy(np.concatenate(planes))


def permuted_pixels(images: Tensor, pixels: Tensor) -> Tensor:
    """``images`` (N, C, H, W) with every pixel taken from the index in ``pixels``, black where that is -1."""
    permuted = images.flatten(1)[:, pixels.clamp(min=0)]
    return (permuted * (pixels >= 0)).view(images.shape)


def _select(images: LabelledImages, indices: Tensor, pixels: Tensor | None) -> tuple[Tensor, Tensor]:
    indices = indices.to(images.labels.device)
    chosen, labels = images.images[indices], images.labels[indices]
    return (chosen if pixels is None else permuted_pixels(chosen, pixels.to(chosen.device))), labels


def _same_classes(
    name: str, train: LabelledImages, test: LabelledImages, samples: int, seed: int,
    state: np.random.RandomState, kinds: list[tuple[str, Tensor]],
) -> Stream:  # fmt: skip
    """Every task has ``samples`` random training images and all test images."""
    if not len(test):
        raise ValueError("a task without samples cannot be evaluated: the test set is empty")
    everything = torch.arange(len(test))
    tasks = tuple(
        Task(kind, torch.from_numpy(state.permutation(len(train))[:samples].astype(np.int64)), everything, pixels)
        for kind, pixels in kinds
    )
    return Stream(name, seed, tasks, train, test)


def _state(train: LabelledImages, tasks: int, samples: int, seed: int) -> np.random.RandomState:
    if tasks < 1:
        raise ValueError(f"a stream needs at least one task, got {tasks}")
    if samples < 1:
        raise ValueError(f"a task needs at least one sample, got samples={samples}")
    if not len(train):
        raise ValueError("a task without samples cannot be learned: the training set is empty")
    return np.random.RandomState(seed)
