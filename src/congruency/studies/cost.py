"""The paper's cost tables (Tables 10 to 12): milliseconds per training image, and parameters.

The only studies with runs of two task families: image classifiers, and the paper's SALICON model, which is only timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from congruency.datasets import LabelledImages
from congruency.saliency.data.prepared import Prepared
from congruency.saliency.data.viewings import SaliencyData, Viewing
from congruency.saliency.task import METHODS, Optimizer, build_task, method_named
from congruency.saliency.task import Recipe as SaliencyRecipe
from congruency.studies.classification import tables
from congruency.studies.classification.jobs import Data, ImageJob, ImageSets, Measured
from congruency.studies.plan import Column, Row, Study
from congruency.training import Build, Correction

TITLES = {
    "cost": "What a training image costs: parameters in millions, milliseconds",
    "cost_window": "What a training image costs DCL by its window: milliseconds",
    "cost_references": "What a training image costs DCL by its number of reference points: milliseconds",
}

STEPS = 60  # per measurement, after the references were recorded
_FIXATIONS = 50  # per synthetic image
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


def _cost() -> Study[ImageJob]:
    """Tables 10 and 11: each row has a run on Tiny ImageNet, one of the SALICON network, and one on ImageNet."""
    plain = "baseline (ResNet-101 / ResNet-50 / ResNet-50)"
    printed: list[tuple[str, Correction, Correction, str | None, tuple[float, ...]]] = [
        (plain, tables.PLAIN, tables.PLAIN, None, (42.50, 47, 23.51, 64, 23.50, 6)),
        ("GEM", tables.GEM, tables.GEM, plain, (42.91, 78, 23.51, 102, 25.55, 10)),
        ("DCL", tables.dcl(60), tables.dcl(5), plain, (42.91, 49, 23.51, 65, 25.55, 8)),
    ]
    columns: dict[str, Mapping[str, Measured]] = {
        data: {f"{data} params": "parameters", f"{data} ms": "ms"} for data in ("Tiny ImageNet", "SALICON", "ImageNet")
    }
    names = [column for own in columns.values() for column in own]
    rows = []
    for name, on_tiny, on_imagenet, against, numbers in printed:
        tiny = _timed("tiny_imagenet", "resnet101", on_tiny, columns["Tiny ImageNet"], "Tiny ImageNet")
        jobs = (
            tiny,
            _salicon(tiny, columns["SALICON"]),
            _timed("imagenet", "resnet50", on_imagenet, columns["ImageNet"], "ImageNet"),
        )
        rows += tables.paper_row(name, jobs, dict(zip(names, numbers, strict=True)), against)
    study = _study("cost", rows, (tables.TINY_CROPS, *tables.IMAGENET_ASSUMED))
    return replace(
        study, lead=f"{study.lead} {TimedSetup().description}", notes=(*tables.NOTES, _COST_NOTE, _PARAMETERS_NOTE),
        caption="Params: millions of parameters; ms: milliseconds per image.",
    )  # fmt: skip


def _cost_window() -> Study[ImageJob]:
    windows = {str(window): tables.dcl(window) for window in (10, 20, 30, 40, 50)}
    return _cost_by("cost_window", "window ", windows, (49, 49, 49, 49, 49))


def _cost_references() -> Study[ImageJob]:
    references = {str(count): tables.dcl(50, count) for count in (1, 5, 10, 15, 20)}
    return _cost_by("cost_references", "references ", references, (49, 51, 53, 54, 54))


TABLES: dict[str, Callable[[], Study[ImageJob]]] = {
    "cost": _cost, "cost_window": _cost_window, "cost_references": _cost_references,
}  # fmt: skip


def _cost_by(name: str, prefix: str, methods: Mapping[str, Correction], ms: Sequence[float]) -> Study[ImageJob]:
    """One half of Table 12: one row, with one column per setting of DCL."""
    jobs = [_timed("tiny_imagenet", "resnet101", one, {column: "ms"}, column) for column, one in methods.items()]
    return _study(
        name, tables.paper_row("DCL", jobs, dict(zip(methods, ms, strict=True))), (tables.TINY_CROPS,), prefix
    )


def _study(name: str, rows: Sequence[Row[ImageJob]], assumed: Sequence[str], prefix: str = "") -> Study[ImageJob]:
    """A study of times, shown with four decimals since small networks take fractions of a millisecond."""
    figures = {key: figure for row in rows for job in row.jobs for key, figure in job.columns.items()}
    return Study(
        name=name,
        title=TITLES[name],
        lead=f"{tables.paper_lead(assumed)} Times do not depend on what images show: these are random ones of the data "
        "set's shape.",
        rows=tuple(rows),
        columns=tuple(
            Column(key=key, title=f"{prefix}{key}", digits=4, paper_digits=2, **_UNITS[figure])
            for key, figure in figures.items()
        ),
        caption="Milliseconds per image.",
        notes=(tables.DCL_NOTE, _COST_NOTE),
    )


def _timed(data: str, model: str, method: Correction, columns: Mapping[str, Measured], label: str) -> ImageJob:
    """A run with the paper's settings that is only timed, on synthetic images."""
    setup = replace(tables.paper_setup(data, model, 224), epochs=1, milestones=(), drop_last=True)
    job = tables.paper_job(data, setup, method, columns, label)
    held = replace(job.data, synthetic=True, shape=_SHAPES[data])
    return replace(job, data=held, short=True, steps=STEPS + method.references)


def _salicon(job: ImageJob, columns: Mapping[str, Measured]) -> ImageJob:
    """A timed run of the saliency network like ``job``, with an infinite window as in the paper."""
    setup = TimedSetup()
    data = Data(name="SALICON", synthetic=True, shape=(3, *setup.size))
    method = replace(job.method, window=None)
    return replace(job, setup=setup, method=method, data=data, columns=columns, label="SALICON")


@dataclass(frozen=True, kw_only=True)
class TimedSetup:
    """The ResNet-50 rows of the table ``salicon``, to be timed on one repeated synthetic image.

    The attributes have the names of a classifier's setup, so that the same options change both.

    Attributes:
        model: the backbone, a timm network.
        size: (height, width) of the images, as in the table ``salicon``.
        optimizer: the optimizer of the table's first rows.
        batch_size: over all processes together.
        learning_rate: None for the optimizer's default.
    """

    model: str = "resnet50"
    size: tuple[int, int] = (240, 320)
    optimizer: Optimizer = "rmsprop"
    epochs: int = 1
    batch_size: int = 8
    learning_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be a positive number, got {self.batch_size}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        self.recipe("baseline")  # raises for an unknown optimizer

    @property
    def accumulate(self) -> int:
        return 1

    def recipe(self, method: str) -> SaliencyRecipe:
        """Return the recipe of the saliency tables, without pretrained weights: times do not depend on them."""
        return SaliencyRecipe(
            model="salicon", backbone=self.model, optimizer=self.optimizer, method=method, epochs=self.epochs,
            batch=self.batch_size, lr=self.learning_rate,
        )  # fmt: skip

    @property
    def description(self) -> str:
        """Explanation of the SALICON columns, for the table."""
        height, width = self.size
        return (
            "SALICON's columns: the rows ResNet-50 RMSP of the table salicon (which of its optimizers the paper does "
            f"not say), batches of {self.batch_size}, always on random images, of {height}x{width}: the size that the "
            "table salicon trains at."
        )

    def check(self) -> None:
        """Raise ValueError, before any training, if the network cannot be a backbone."""
        _check_backbone(self.model)

    def builder(self, images: ImageSets, method: Correction) -> Build:
        """Return the builder of the training task on these images; labels are ignored and nothing is evaluated."""
        train = images[0]
        if not isinstance(train, LabelledImages):
            raise TypeError(f"the images of a saliency run must be in memory, got {type(train).__name__}")
        return build_task(self.recipe(method_name(method)), synthetic_set(train.images), self.seed)


def method_name(method: Correction) -> str:
    """Return the name of a cost table's method in :func:`congruency.saliency.task.method_named`."""
    for name in (*METHODS, "DCL-inf-1", "DCL-inf-1 anchor"):
        known = method_named(name)
        if replace(known, margin=known.effective_margin) == replace(method, margin=method.effective_margin):
            return name
    raise ValueError(f"the saliency tables have no such method: {method}")


def synthetic_set(images: Tensor) -> Prepared:
    """Return images as a saliency set, all with the same random fixations, drawn from a fixed seed.

    Args:
        images: (N, 3, height, width) uint8; one image repeated by ``expand`` is not copied.
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
