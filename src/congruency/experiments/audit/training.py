"""Trainings on labels as they are given: one that is followed, and those that leave samples out."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from congruency.classification.batches import Batches, generator
from congruency.datasets import LabelledImages
from congruency.experiments.audit.following import Followed, Follower, last_layer, observe
from congruency.experiments.classification.task import Setup, build
from congruency.training import Method, TrainingConfig, train
from congruency.training.task import Place, Task

__all__ = ["Training", "check_folds", "folds", "follow", "held_out_probabilities"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a network is trained: what ``congruency train`` trains, corrected by what method, and where."""

    setup: Setup
    method: Method = field(default_factory=Method)
    device: str = "auto"


def follow(training: Training, images: LabelledImages, seed: int) -> Followed:
    """Train once on all images, and measure each of them at the end of every epoch, in evaluation mode."""
    made: list[Follower] = []

    def watch(network: nn.Module, place: Place) -> Callable[[nn.Module], None]:
        follower = Follower(network, images.labels, training.setup.smoothing)
        made.append(follower)
        return lambda model: follower(model, _batches(training, images, place))

    _train(training, images, seed, watch, every=1)
    return made[0].followed()


def held_out_probabilities(
    training: Training, images: LabelledImages, seed: int, count: int, tell: Callable[[int], None] | None = None
) -> Tensor:
    """What networks that did not see a sample think of it: (n, K), by ``count``-fold cross-validation.

    It takes ``count`` trainings, each on the samples of all folds but one, with the same epochs. ``tell`` is called
    with the number of each that is done.
    """
    probabilities = torch.full((len(images), len(images.classes)), torch.nan)
    for number, left_out in enumerate(folds(images.labels, count, seed)):
        kept = torch.ones(len(images), dtype=torch.bool)
        kept[left_out] = False
        rest, others = images.subset(left_out), images.subset(kept)
        probabilities[left_out] = _probabilities(training, others, rest, seed)
        if tell is not None:
            tell(number + 1)
    return probabilities


def check_folds(count: int, samples: int) -> None:
    """Refuse more parts than there are samples."""
    if not 2 <= count <= samples:
        raise ValueError(f"--folds must be from 2 to the {samples} samples, got {count}")


def folds(labels: Tensor, count: int, seed: int) -> list[Tensor]:
    """Disjoint parts of the samples that differ by one in size at most, and by one in the samples of each label."""
    check_folds(count, len(labels))
    mixed = torch.randperm(len(labels), generator=generator("folds", seed))
    by_label = mixed[labels.cpu()[mixed].argsort(stable=True)]
    return [by_label[start::count].sort().values for start in range(count)]


def _probabilities(training: Training, images: LabelledImages, rest: LabelledImages, seed: int) -> Tensor:
    found: list[Tensor] = []

    def watch(network: nn.Module, place: Place) -> Callable[[nn.Module], None]:
        layer = last_layer(network)
        return lambda model: found.append(observe(model, layer, _batches(training, rest, place)).logits.softmax(1))

    _train(training, images, seed, watch, every=training.setup.epochs)
    return found[-1]


def _batches(training: Training, images: LabelledImages, place: Place) -> Iterable[tuple[Tensor, Tensor]]:
    setup = training.setup
    return Batches(images, setup.batch_size, setup.augmentation, device=place.device).evaluation_batches()


def _train(
    training: Training,
    images: LabelledImages,
    seed: int,
    watch: Callable[[nn.Module, Place], Callable[[nn.Module], None]],
    every: int,
) -> None:
    """Train; what ``watch`` makes of the untrained network is called with the network every so many epochs."""
    setup = replace(training.setup, seed=seed)
    made = build(setup, images)

    def watched(place: Place) -> Task:
        if place.world_size > 1:
            raise ValueError("an audit runs in one process; start it without torchrun")
        task = made(place)
        look = watch(task.model, place)

        def evaluate(model: nn.Module) -> dict[str, float]:
            look(model)
            return {}

        return replace(task, evaluate=evaluate)

    cuda = training.device == "cuda" or (training.device == "auto" and torch.cuda.is_available())
    config = TrainingConfig(
        epochs=setup.epochs, seed=seed, method=training.method, accelerator=training.device,  # type: ignore[arg-type]
        channels_last=cuda, tf32=cuda, measure="none", evaluate_every=every, record_steps=0, checkpoint_epochs=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="congruency-audit-") as folder, _quiet():
        if not train(watched, config, folder).finished:
            raise KeyboardInterrupt  # SIGTERM: nothing of an audit can be resumed


@contextmanager
def _quiet() -> Iterator[None]:
    """Fabric's remarks on devices, of many short trainings, are left out."""
    loggers = [logging.getLogger(name) for name in ("lightning.fabric", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
