"""A saliency run that is only timed: the paper's SALICON model on one synthetic image, seen many times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from congruency.datasets import Catalogue, LabelledImages
from congruency.saliency.data.prepared import Prepared
from congruency.saliency.data.viewings import SaliencyData, Viewing
from congruency.saliency.task import METHODS, Optimizer, Recipe, build_task
from congruency.training import Build, Correction, SampleOrder

__all__ = ["PRINTED", "SETUPS", "WINDOW", "TimedSetup", "made_up", "method_name"]

PRINTED: Mapping[str, Mapping[str, float]] = {
    "baseline": {"SALICON params": 23.51, "SALICON ms": 64},
    "gem": {"SALICON params": 23.51, "SALICON ms": 102},
    "dcl": {"SALICON params": 23.51, "SALICON ms": 65},
}
"""SALICON in the paper's table of costs, by method: parameters in millions, milliseconds per image."""

WINDOW = None
"""DCL's window there: beta_w is infinity."""

_FIXATIONS = 50  # of the synthetic image


@dataclass(frozen=True, kw_only=True)
class TimedSetup:
    """The ResNet-50 rows of the table ``salicon``, to be timed.

    The attributes have the names of those of a classifier's setup, so that the same options change both.

    Attributes:
        model: the backbone, a timm network.
        size: (height, width) of the images: what the table ``salicon`` trains at.
        optimizer: that of the table's first rows.
        epochs: through the images.
        batch_size: of all processes together.
        learning_rate: None for the paper's.
        seed: of the order.
        sample_order: which runs share it, see :data:`congruency.training.SampleOrder`.
        order_seed: of the fixed order.
    """

    accumulate: ClassVar[int] = 1

    model: str = "resnet50"
    size: tuple[int, int] = (240, 320)
    optimizer: Optimizer = "rmsprop"
    epochs: int = 1
    batch_size: int = 8
    learning_rate: float | None = None
    seed: int = 0
    sample_order: SampleOrder = "seed"
    order_seed: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be a positive number, got {self.batch_size}")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        self.recipe("baseline")  # refuses an unknown order

    def recipe(self, method: str) -> Recipe:
        """Return it as a recipe of the saliency tables; from scratch, since times do not depend on weights."""
        return Recipe(
            model="salicon",
            backbone=self.model,
            optimizer=self.optimizer,
            method=method,
            epochs=self.epochs,
            batch=self.batch_size,
            lr=self.learning_rate,
            sample_order=self.sample_order,
            order_seed=self.order_seed or 0,
        )

    @property
    def told(self) -> str:
        """The sentence of a table about its columns."""
        height, width = self.size
        return (
            "SALICON's columns: the rows ResNet-50 RMSP of the table salicon (which of its optimizers the paper does "
            f"not say), batches of {self.batch_size}, always on random images, of {height}x{width}: the size that the "
            "table salicon trains at."
        )

    def differences(self, whole: TimedSetup) -> str:
        """How the setup of a small budget differs from the paper's."""
        small, large = ("x".join(map(str, setup.size)) for setup in (self, whole))
        return f"{self.model} for {whole.model} and images of {small} for {large}"

    def check(self) -> None:
        """Refuse a network that cannot be a backbone, before anything is trained."""
        _check_backbone(self.model)

    def builder(
        self, images: tuple[LabelledImages | Catalogue, LabelledImages | Catalogue | None], method: Correction
    ) -> Build:
        """Return the task on these images, whose labels do not matter; nothing is evaluated."""
        train = images[0]
        if not isinstance(train, LabelledImages):
            raise TypeError(f"the images of a saliency run must be in memory, got {type(train).__name__}")
        return build_task(self.recipe(method_name(method)), made_up(train.images), self.seed)


SETUPS: Mapping[Literal["paper", "small"], TimedSetup] = {
    "paper": TimedSetup(),
    "small": TimedSetup(model="resnet18", size=(60, 80)),
}
"""By the budget."""


def method_name(method: Correction) -> str:
    """Return a method's name in :data:`congruency.saliency.task.METHODS`."""
    for name, known in METHODS.items():
        if replace(known, margin=known.effective_margin) == replace(method, margin=method.effective_margin):
            return name
    raise ValueError(f"the saliency tables have no such method: {method}")


def made_up(images: Tensor) -> Prepared:
    """Return images as a saliency set: on each of them the same random fixations, drawn from a fixed seed.

    Args:
        images: (N, 3, height, width) uint8; one image repeated by ``expand`` stays one.
    """
    height, width = images.shape[-2:]
    random = torch.Generator().manual_seed(0)
    points = torch.rand(_FIXATIONS, 2, generator=random, dtype=torch.float64) * torch.tensor([width - 1, height - 1])
    one = Viewing(Path("made-up"), height, width, (points,))
    return Prepared(SaliencyData("made-up images", (one,) * len(images)), images)


@cache
def _check_backbone(name: str) -> None:
    from congruency.saliency.models import create

    try:
        with torch.device("meta"):  # no memory, no time
            create("salicon", name)
    except ValueError as reason:
        raise ValueError(f"SALICON's columns need a network that can be a backbone: {reason}") from None
