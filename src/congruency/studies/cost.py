"""The paper's tables of costs (its Tables 10 to 12): milliseconds and parameters per training image.

The only studies with runs of two families: image classifiers, and the paper's SALICON model, which is only timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from congruency.datasets import LabelledImages
from congruency.saliency.data.prepared import Prepared
from congruency.saliency.data.viewings import SaliencyData, Viewing
from congruency.saliency.task import METHODS, Optimizer, build_task
from congruency.saliency.task import Recipe as SaliencyRecipe
from congruency.studies.classification.jobs import Data, ImageJob, ImageSets
from congruency.studies.classification.recipes import Measured, Recipe
from congruency.studies.classification.tables import DCL_NOTE, NOTES, SMALL, Budget, error_job, lead, paper_rows
from congruency.studies.plan import Column, Row, Study
from congruency.training import Build, Correction, SampleOrder

TITLES = {
    "cost": "What a training image costs: parameters in millions, milliseconds",
    "cost_window": "What a training image costs DCL by its window: milliseconds",
    "cost_references": "What a training image costs DCL by its number of reference points: milliseconds",
}

PRINTED: Mapping[str, Mapping[str, float]] = {
    "baseline": {"SALICON params": 23.51, "SALICON ms": 64},
    "gem": {"SALICON params": 23.51, "SALICON ms": 102},
    "dcl": {"SALICON params": 23.51, "SALICON ms": 65},
}
"""The paper's numbers for SALICON, by the method: parameters in millions, milliseconds per image."""

_SALICON_COLUMNS: Mapping[str, Measured] = {"SALICON params": "parameters", "SALICON ms": "ms"}
_FIXATIONS = 50  # of the synthetic image
_STEPS: Mapping[Budget, int] = {"paper": 60, "small": 12}  # of a measurement, after the references were recorded
_SHAPES = {"tiny_imagenet": (3, 64, 64), "imagenet": (3, 224, 224)}
_UNITS: dict[Measured, dict[str, Any]] = {"parameters": {"unit": "million", "compared": False}, "ms": {"unit": "ms"}}

_COST_NOTE = (
    "Milliseconds",
    "(batch time - data time) / batch size, as the paper measures: the median over the steps after the first fifth "
    "and after the references were recorded. The paper's numbers are of another GPU: compare rows with each other, not "
    "with them. A step that leaves the GPU waiting takes as long as the host does, which varies from run to run: read "
    "no difference that lies within the intervals.",
)
_PARAMETERS_NOTE = (
    "Parameters",
    "In millions, of the whole network; GEM and DCL hold one copy of its last layer besides (for the gradient of the "
    "remembered sample, for the reference point) and none of the rest. With the paper's networks that is 42.91 without "
    "and 43.32 with the copy on Tiny ImageNet, 23.512 and 23.516 on SALICON, 25.56 and 27.61 on ImageNet. The paper's "
    "numbers are these less one last layer in every row (ImageNet's cut off, not rounded): its GEM and DCL have as "
    "many as our baseline. SALICON's last layer is a 1x1 convolution of 4097 weights, so few that the paper has 23.51 "
    "in all rows.",
)


def cost_study(name: str, budget: Budget = "paper", *, real_images: bool = False) -> Study[ImageJob]:
    """Return a table of costs, one of :data:`TITLES`.

    A small budget takes minutes on a laptop; ``real_images`` measures on the data sets, not on synthetic images.
    """
    salicon = name == "cost"  # the one table with columns of a saliency network

    def jobs(made: Sequence[Recipe], settings: Mapping[str, Any]) -> tuple[ImageJob, ...]:
        own = [_timed_job(recipe, settings, real_images) for recipe in made]
        if salicon:  # the second, as in the paper
            own.insert(1, _salicon_job(own[0], SETUPS[budget]))
        return tuple(own)

    rows = paper_rows(name, budget, jobs)
    if salicon:
        rows = tuple(replace(row, paper={**row.paper, **PRINTED[row.settings["method"]]}) for row in rows)
    remark = (
        ""
        if real_images
        else " Times do not depend on what images show: these are random ones of the data set's shape."
    )
    steps = f"{_STEPS['small']} steps for {_STEPS['paper']} after the references were recorded"
    salicon_changes = [f"for SALICON {SETUPS['small'].differences(SETUPS['paper'])}"] if salicon else []
    return Study(
        name=name,
        title=TITLES[name] + (SMALL if budget == "small" else ""),
        lead=lead(
            name,
            budget,
            remark + (f" {SETUPS['paper'].description}" if salicon else ""),
            small_changes=(steps, *salicon_changes),
        ),
        rows=rows,
        columns=tuple(_columns(rows, {"cost_window": "window ", "cost_references": "references "}.get(name, ""))),
        caption="Params: millions of parameters; ms: milliseconds per image." if salicon else "Milliseconds per image.",
        notes=(*(NOTES if salicon else (DCL_NOTE,)), _COST_NOTE, *((_PARAMETERS_NOTE,) if salicon else ())),
    )


def _columns(rows: Sequence[Row[ImageJob]], prefix: str) -> list[Column]:
    """Four decimals: a network for small images costs fractions of a millisecond."""
    figures = {key: figure for row in rows for job in row.jobs for key, figure in job.columns.items()}
    return [
        Column(key=key, title=f"{prefix}{key}", digits=4, paper_digits=2, **_UNITS[figure])
        for key, figure in figures.items()
    ]


def _timed_job(recipe: Recipe, settings: Mapping[str, Any], real_images: bool) -> ImageJob:
    job = error_job(recipe, settings)
    return replace(
        job,
        setup=replace(job.setup, epochs=1, milestones=(), pretrained=None, drop_last=True),
        data=replace(job.data, synthetic=not real_images, shape=_SHAPES[recipe.data]),
        short=True,
        steps=_STEPS[recipe.budget] + recipe.references,
    )


def _salicon_job(job: ImageJob, setup: TimedSetup) -> ImageJob:
    """A saliency network timed as another job is, with the same method but an infinite window, as the paper has it."""
    return replace(
        job,
        setup=setup,
        method=replace(job.method, window=None),
        data=Data(name="SALICON", synthetic=True, shape=(3, *setup.size)),
        columns=_SALICON_COLUMNS,
        label="SALICON",
    )


@dataclass(frozen=True, kw_only=True)
class TimedSetup:
    """The ResNet-50 rows of the table ``salicon``, set up to be timed on one synthetic image, seen many times.

    The attributes are named as those of a classifier's setup, so that the same options change both.

    Attributes:
        model: the backbone, a timm network.
        size: (height, width) of the images: what the table ``salicon`` trains at.
        optimizer: that of the table's first rows.
        batch_size: of all processes together.
        learning_rate: None for the optimizer's own.
    """

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
        self.recipe("baseline")  # which refuses an unknown order

    @property
    def accumulate(self) -> int:
        return 1

    def recipe(self, method: str) -> SaliencyRecipe:
        """Return the recipe of the saliency tables; from scratch, for times do not depend on weights."""
        return SaliencyRecipe(
            model="salicon", backbone=self.model, optimizer=self.optimizer, method=method, epochs=self.epochs,
            batch=self.batch_size, lr=self.learning_rate, sample_order=self.sample_order,
            order_seed=self.order_seed or 0,
        )  # fmt: skip

    @property
    def description(self) -> str:
        """What SALICON's columns are, for the table."""
        height, width = self.size
        return (
            "SALICON's columns: the rows ResNet-50 RMSP of the table salicon (which of its optimizers the paper does "
            f"not say), batches of {self.batch_size}, always on random images, of {height}x{width}: the size that the "
            "table salicon trains at."
        )

    def differences(self, whole: TimedSetup) -> str:
        """Return how a small budget's setup differs from the whole one."""
        small, large = ("x".join(map(str, setup.size)) for setup in (self, whole))
        return f"{self.model} for {whole.model} and images of {small} for {large}"

    def check(self) -> None:
        """Refuse a network that cannot be a backbone, before anything is trained."""
        _check_backbone(self.model)

    def builder(self, images: ImageSets, method: Correction) -> Build:
        """Return what the training loop trains: on these images, whose labels do not matter; nothing is evaluated."""
        train = images[0]
        if not isinstance(train, LabelledImages):
            raise TypeError(f"the images of a saliency run must be in memory, got {type(train).__name__}")
        return build_task(self.recipe(method_name(method)), synthetic_set(train.images), self.seed)


SETUPS: Mapping[Literal["paper", "small"], TimedSetup] = {
    "paper": TimedSetup(),
    "small": TimedSetup(model="resnet18", size=(60, 80)),
}
"""By the budget."""


def method_name(method: Correction) -> str:
    """Return the name of a method in :data:`congruency.saliency.task.METHODS`."""
    for name, known in METHODS.items():
        if replace(known, margin=known.effective_margin) == replace(method, margin=method.effective_margin):
            return name
    raise ValueError(f"the saliency tables have no such method: {method}")


def synthetic_set(images: Tensor) -> Prepared:
    """Return images as a saliency set: the same random fixations, drawn from a fixed seed, on each of them.

    Args:
        images: (N, 3, height, width) uint8; one image repeated by ``expand`` stays one.
    """
    height, width = images.shape[-2:]
    random = torch.Generator().manual_seed(0)
    points = torch.rand(_FIXATIONS, 2, generator=random, dtype=torch.float64) * torch.tensor([width - 1, height - 1])
    one = Viewing(Path("synthetic"), height, width, (points,))
    return Prepared(SaliencyData("synthetic images", (one,) * len(images)), images)


@cache
def _check_backbone(name: str) -> None:
    from congruency.saliency.models import create

    try:
        with torch.device("meta"):  # no memory, no time
            create("salicon", name)
    except ValueError as reason:
        raise ValueError(f"SALICON's columns need a network that can be a backbone: {reason}") from None
