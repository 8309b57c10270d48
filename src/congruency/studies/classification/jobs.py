"""The runs of a classification study as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

from congruency.classification.optimizers import SGD_NAME
from congruency.classification.task import Images
from congruency.studies.plan import Column, Row, Study
from congruency.training.config import LATER_FIELDS, Correction
from congruency.training.task import Build

Measured = Literal["error", "top5_error", "ms", "parameters"]
"""Figures of a finished run that a column can show."""

ImageSets = tuple[Images, Images | None]
"""Training images, and test images or None if nothing is evaluated."""


class TrainingSetup(Protocol):
    """A training setup without the correction: :class:`congruency.classification.task.Setup` or a similar dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def model(self) -> str: ...
    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def accumulate(self) -> int: ...

    def check(self) -> None:
        """Raise ValueError if the network does not exist, before any data is read."""

    def builder(self, images: ImageSets, method: Correction) -> Build:
        """Return the builder of the task for the training loop."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The images of a run.

    Attributes:
        classes: number of classes that the set must have; None for any.
        per_class: number of training images per class; None for all.
        synthetic: use random images of the set's shape, for measuring times.
        shape: (C, H, W) of synthetic images.
    """

    name: str
    classes: int | None = None
    per_class: int | None = None
    synthetic: bool = False
    shape: tuple[int, int, int] = (3, 32, 32)


@dataclass(frozen=True, kw_only=True)
class ImageJob:
    """A training run of a row, without its seed.

    Attributes:
        setup: network, batches and schedule; its seed is replaced by the run's.
        columns: the figure of a finished run that fills each column.
        label: what distinguishes it from the row's other jobs, such as ``"CIFAR-10"``; empty if it is the only one.
        short: keep no record, write checkpoints only in runs of minutes, evaluate only at the end unless ``curves``.
        curves: evaluate after every epoch and store the curves with the result.
        steps: number of steps of a time measurement, which evaluates nothing; None for a normal run.
    """

    setup: TrainingSetup
    method: Correction
    data: Data
    columns: Mapping[str, Measured]
    label: str = ""
    short: bool = False
    steps: int | None = None
    curves: bool = False

    def digest(self) -> str:
        """Hash everything that changes the result except the seed and the machine."""
        setup = {name: value for name, value in asdict(self.setup).items() if name not in ("seed", "workers")}
        if setup.get("sample_order") == "seed":  # the only order in older releases: keeps their digests valid
            del setup["sample_order"], setup["order_seed"]
        if setup.get("optimizer") == SGD_NAME:
            del setup["optimizer"]
        data = asdict(self.data) | {"test_per_class": None}  # a field of older releases
        data["made_up"] = data.pop("synthetic")  # its name in older releases
        described = [setup, self.method.settings(), data, dict(self.columns), self.steps]
        return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:12]


def settings_of(jobs: Sequence[ImageJob]) -> dict[str, Any]:
    """Return the settings shared by the jobs of a row, for :attr:`congruency.studies.plan.Row.settings`."""
    described = [{"model": job.setup.model, "data": job.data.name, **correction_settings(job.method)} for job in jobs]
    return {
        name: value
        for name, value in (described[0] if described else {}).items()
        if all(name in other and other[name] == value for other in described)
    }


def correction_settings(method: Correction) -> dict[str, Any]:
    """Return those settings of a correction that its method uses."""
    found: dict[str, Any] = {"method": method.name}
    if method.name != "baseline":
        found |= {"scope": method.scope, "margin": method.effective_margin}
    if method.name == "dcl":
        found |= {"window": method.window, "references": method.references, "mode": method.mode}
    return found | {name: value for name, value in method.settings().items() if name in LATER_FIELDS}


def extras(rows: Sequence[Row[ImageJob]]) -> tuple[Column, ...]:
    """Return the columns without comparison: share of corrected steps and speed, per job label."""
    return tuple(
        Column(key=f"{label} {key}".strip(), title=f"{label} {title}".strip(), scale=scale, digits=0, speed=scale == 1)
        for label in dict.fromkeys(job.label for row in rows for job in row.jobs)
        for key, title, scale in (("corrected_share", "corrected, %", 100), ("images_per_second", "images/s", 1))
    )


def changed(study: Study[ImageJob], **changes: Any) -> Study[ImageJob]:
    """Return the study with changed settings in all runs: attributes of the setup, or ``per_class`` images."""
    if not changes:
        return study
    rows = []
    for row in study.rows:
        jobs = tuple(changed_job(job, changes) for job in row.jobs)
        rows.append(replace(row, jobs=jobs, settings={**row.settings, **settings_of(jobs)}))
    return replace(study, rows=tuple(rows), lead=f"{study.lead} {describe_changes(changes)}".strip())


def describe_changes(given: Mapping[str, Any]) -> str:
    """Describe the changed options as a sentence; ``pretrained`` is not mentioned."""
    parts = [
        f"{value} training images per class" if name == "per_class" else f"{name.replace('_', ' ')} {value}"
        for name, value in given.items()
        if name != "pretrained"
    ]
    return f"Changed by options: {', '.join(parts)}." if parts else ""


def changed_job(job: ImageJob, given: Mapping[str, Any]) -> ImageJob:
    """Return the job with changed settings.

    Milestones and warm-up scale with the number of epochs; another model drops the pretrained weights.
    """
    setup, epochs = job.setup, given.get("epochs")
    if job.steps is not None:  # times depend on none of these
        given = {name: value for name, value in given.items() if name not in ("epochs", "pretrained", "per_class")}
        return replace(job, setup=replace(setup, **given))
    data = replace(job.data, per_class=given.get("per_class", job.data.per_class))
    given = {name: value for name, value in given.items() if name != "per_class"}
    held = asdict(setup)
    moved: dict[str, Any] = {}
    if epochs is not None:
        moved["milestones"] = tuple(max(1, round(m * epochs / setup.epochs)) for m in held["milestones"])
        moved["warmup"] = held["warmup"] * epochs / setup.epochs
    if "model" in given and "pretrained" not in given:
        moved["pretrained"] = None
    if held["pretrained"] is None:
        given = {name: value for name, value in given.items() if name != "pretrained"}
    return replace(job, setup=replace(setup, **moved, **given), data=data)
