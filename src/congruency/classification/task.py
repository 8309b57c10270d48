"""An image classifier as a task of the training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiStepLR

from congruency.classification.augmentation import Augmentation
from congruency.classification.batches import IGNORED, Batches, Order
from congruency.classification.models import check, create
from congruency.classification.optimizers import SGD_NAME, check_optimizer, create_optimizer
from congruency.classification.streamed import StreamedBatches
from congruency.datasets import Catalogue, LabelledImages
from congruency.training.config import Correction, SampleOrder, order_seed
from congruency.training.task import Build, Place, Task

Images = LabelledImages | Catalogue
"""A data set in memory, or one whose files are decoded on the fly."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A network with its batches, optimizer (by default SGD, as in the paper) and schedule.

    The schedule ``"steps"`` multiplies the learning rate by ``decay`` at each milestone (epochs, counted from 0);
    ``"cosine"`` raises it over ``warmup`` epochs, possibly fractional, then lowers it to 0, updating at every step.
    """

    model: str
    augmentation: Augmentation
    epochs: int
    batch_size: int = 128  # over all processes
    learning_rate: float = 0.1  # peak rate
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Literal["steps", "cosine"] = "steps"
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    warmup: float = 0.0
    smoothing: float = 0.0  # label smoothing
    pretrained: str | bool | None = None  # see congruency.classification.create
    seed: int = 0
    order: Order = "shuffled"  # see congruency.classification.Plan
    sample_order: SampleOrder = "seed"  # which runs share their sample order
    order_seed: int | None = None
    drop_last: bool = False
    accumulate: int = 1  # batches per step, as in TrainingConfig
    evaluation_batch_size: int | None = None  # None for batch_size
    workers: int = 4  # processes that decode streamed files
    optimizer: str = SGD_NAME  # or another name in timm.optim; momentum and nesterov are for SGD

    def __post_init__(self) -> None:
        if self.schedule not in ("steps", "cosine"):
            raise ValueError(f"schedule must be 'steps' or 'cosine', got {self.schedule!r}")
        for name in ("epochs", "batch_size", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {self.decay}")
        if not 0 <= self.warmup <= self.epochs:
            raise ValueError(f"warmup must be from 0 to the {self.epochs} epochs, got {self.warmup}")

    def check(self) -> None:
        """Raise, before any data is read, if network, optimizer or pretrained weights are not available."""
        check(self.model)
        check_optimizer(self.optimizer)
        if self.pretrained:
            _check_weights(self.model, self.pretrained)

    def builder(self, images: tuple[Images, Images | None], method: Correction) -> Build:
        """Return the builder of the task, with the sample order for a method."""
        return build(ordered(self, method), *images)


@cache
def _check_weights(model: str, pretrained: str | bool) -> None:
    create(model, 1000, pretrained)


def ordered(setup: Setup, method: Correction) -> Setup:
    """Return the setup with ``order_seed`` set by its sample order; for ``"fixed"`` the default is 0."""
    if setup.sample_order == "seed":
        return setup
    return replace(setup, order_seed=order_seed(setup.sample_order, setup.seed, method, setup.order_seed or 0))


def build(setup: Setup, train: Images, test: Images | None = None) -> Build:
    """Return the builder of the task for :func:`congruency.training.train`.

    Raises:
        ValueError: the two sets, or the images and the augmentation, do not match.
    """
    if test is not None and test.classes != train.classes:
        raise ValueError(
            f"the training set has {len(train.classes)} classes and the test set {len(test.classes)}, or others; "
            "both need the same classes in the same order"
        )
    channels = len(setup.augmentation.mean)
    shape = _shape(setup, train, channels)
    if shape[0] != channels:
        raise ValueError(f"the images have {shape[0]} channels and the augmentation normalises {channels}")

    def make(place: Place) -> Task:
        batches = _batches(setup, train, place, setup.batch_size)
        held_out = None if test is None else _batches(setup, test, place, setup.evaluation_batch_size)
        return Task(
            model=create(setup.model, len(train.classes), setup.pretrained, shape=shape),
            optimizer=lambda model: _optimizer(setup, model, place),
            loss=_loss(setup.smoothing),
            data=batches,
            schedule=lambda optimizer: _schedule(setup, optimizer, len(batches)),
            schedule_every="step" if setup.schedule == "cosine" else "epoch",
            figures=_figures,
            evaluate=None if held_out is None else lambda model: evaluate(model, held_out.evaluation_batches(), place),
            description=describe(setup, train, test),
        )

    return make


def describe(setup: Setup, train: Images, test: Images | None) -> dict[str, Any]:
    """Return the setup and the sizes of the sets, for the run record."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(setup).items()}
    counts = {"classes": len(train.classes), "training_images": len(train)}
    return plain | counts | {"test_images": 0 if test is None else len(test)}


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], place: Place) -> dict[str, float]:
    """Return top-1 and top-5 error in percent and the mean loss over the batches of all processes."""
    totals = torch.zeros(4, dtype=torch.float64, device=place.device)
    for images, labels in batches:
        totals += error_counts(model(images).float(), labels)
    wrong, wrong_in_five, loss, count = place.sum(totals).tolist()
    return {"error": 100 * wrong / count, "top5_error": 100 * wrong_in_five / count, "loss": loss / count}


def error_counts(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the counts of top-1 and top-5 errors, the summed loss and the sample count: float64, (4,).

    Samples labelled :data:`IGNORED` do not count.
    """
    counted = labels != IGNORED
    best = outputs.topk(min(5, outputs.shape[1]), 1).indices
    hits = best == labels[:, None]
    loss = functional.cross_entropy(outputs, labels, ignore_index=IGNORED, reduction="sum")
    wrong = (~hits[:, 0] & counted).sum()
    wrong_in_five = (~hits.any(1) & counted).sum()
    return torch.stack([part.to(torch.float64) for part in (wrong, wrong_in_five, loss, counted.sum())])


def _batches(setup: Setup, images: Images, place: Place, batch_size: int | None) -> Batches | StreamedBatches:
    size = batch_size or setup.batch_size
    settings: dict[str, Any] = {
        "seed": setup.seed, "order": setup.order, "order_seed": setup.order_seed, "device": place.device,
        "rank": place.rank, "world_size": place.world_size, "drop_last": setup.drop_last and len(images) >= size,
    }  # fmt: skip
    if isinstance(images, Catalogue):
        return StreamedBatches(images, size, setup.augmentation, workers=setup.workers, **settings)
    return Batches(images, size, setup.augmentation, **settings)


def _shape(setup: Setup, images: Images, channels: int) -> tuple[int, int, int]:
    side = setup.augmentation.size
    if isinstance(images, LabelledImages):
        own, height, width = images.images.shape[1:]
        return own, side or height, side or width
    if side is None:
        raise ValueError("the augmentation needs a size for a set that is not in memory; for ImageNet it is 224")
    return channels, side, side


def _optimizer(setup: Setup, model: nn.Module, place: Place) -> Optimizer:
    return create_optimizer(
        setup.optimizer, model, learning_rate=setup.learning_rate, momentum=setup.momentum,
        weight_decay=setup.weight_decay, nesterov=setup.nesterov, fused=place.fused_optimizer,
    )  # fmt: skip


def _schedule(setup: Setup, optimizer: Optimizer, batches: int) -> LRScheduler:
    if setup.schedule == "steps":
        return MultiStepLR(optimizer, list(setup.milestones), setup.decay)
    per_epoch = math.ceil(batches / setup.accumulate)
    rising, total = setup.warmup * per_epoch, setup.epochs * per_epoch

    def rate(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / max(1.0, total - rising))))

    return LambdaLR(optimizer, rate)


def _loss(smoothing: float) -> Callable[[Any, Any], Tensor]:
    return lambda outputs, labels: functional.cross_entropy(outputs, labels, label_smoothing=smoothing)


def _figures(outputs: Any, labels: Any) -> dict[str, Tensor]:
    return {"error": 100 * (outputs.argmax(1) != labels).float().mean()}
