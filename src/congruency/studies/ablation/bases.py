"""The run that an ablation varies: a row of a table, or an image set and a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from congruency.classification.augmentation import AUGMENTATIONS
from congruency.classification.image_options import ImageOptions, augmentation, read_sets
from congruency.classification.task import Setup
from congruency.studies.classification.grids import TEST_ERROR
from congruency.studies.classification.jobs import Data, ImageJob, changed
from congruency.studies.classification.tables import Budget
from congruency.studies.image_tables import TITLES, named_study
from congruency.studies.plan import Row, Study, pick
from congruency.training.config import Correction

__all__ = ["DEFAULTS", "Base", "from_options", "from_recipe"]

DEFAULTS: dict[str, Any] = {
    "model": "resnet9", "epochs": 30, "batch_size": 128, "learning_rate": 0.1, "weight_decay": 5e-4,
}  # fmt: skip
"""Of an image set: as in ``congruency train``, with a cosine from the first step to the last."""

Candidate = tuple[Study[ImageJob], Row[ImageJob]]


@dataclass(frozen=True, kw_only=True)
class Base:
    """What all cells have in common.

    Attributes:
        name: on the command line.
        jobs: the runs, without correction.
        channels: of the images, None for as they are.
        size: images of a path are scaled to this side.
    """

    name: str
    title: str
    lead: str
    jobs: tuple[ImageJob, ...]
    channels: int | None = None
    size: int | None = None


def from_options(images: ImageOptions, changes: dict[str, Any]) -> Base:
    """Return an image set and a network, trained as ``congruency train`` would."""
    settings = DEFAULTS | {name: value for name, value in changes.items() if value is not None}
    if images.known:
        augmented = AUGMENTATIONS[images.source]
        augmented = replace(augmented, size=images.size or augmented.size)
    else:
        augmented = augmentation(images, read_sets(images)[0], settings["model"], pretrained=False)
    setup = Setup(augmentation=augmented, schedule="cosine", **settings)
    shown = Path(images.source).name
    data = Data(name=shown, per_class=images.per_class)
    job = ImageJob(setup=setup, method=Correction(), data=data, columns={TEST_ERROR.key: "error"})
    few = "" if images.per_class is None else f", {images.per_class} training images per class"
    lead = (
        f"{setup.model} on {shown}{few}: {setup.epochs} epochs in batches of {setup.batch_size}, SGD with momentum "
        f"{setup.momentum:g}, a rate that falls from {setup.learning_rate:g} to 0 along a cosine, weight decay "
        f"{setup.weight_decay:g}."
    )
    return Base(name=shown, title=f"{setup.model} on {shown}", lead=lead, jobs=(job,), size=images.size)


def from_recipe(name: str, budget: Budget, images: str | None, per_class: int | None, changes: dict[str, Any]) -> Base:
    """Return a row by its name, ``TABLE/ROW``, ``ROW`` or ``TABLE`` where that is clear, with other settings if given.

    Raises:
        ValueError: no row has that name, several runs have, or the row measures times.
    """
    study, row = _the_row(_candidates(name, budget), name)
    if any(job.steps is not None for job in row.jobs):
        raise ValueError(f"{study.name}/{row.name} measures times, not errors; choose a row of another table")
    study = changed(replace(study, rows=(row,)), **changes)
    jobs = tuple(_resumable(job, per_class) for job in study.rows[0].jobs)
    few = "" if per_class is None else f" Changed by options: {per_class} training images per class."
    instead = "" if images is None else f", {Path(images).name} instead of its images"
    network = row.name if row.name != "baseline" else study.name
    return Base(
        name=f"{study.name}/{row.name}",
        title=f"{network}{' (small budget)' if budget == 'small' else ''}{instead}",
        lead=study.lead + few,
        jobs=jobs,
        channels=3,
    )


def _candidates(name: str, budget: Budget) -> list[Candidate]:
    """The rows that a name may stand for."""
    first, slash, rest = name.partition("/")
    if slash and first in TITLES:
        study = named_study(first, budget)
        return [(study, row) for row in pick(study, [rest]).rows]
    if name in TITLES:
        study = named_study(name, budget)
        return [(study, row) for row in study.rows]
    found = []
    for each in TITLES:
        try:
            study = named_study(each, budget)
        except ValueError:  # it has no small budget
            continue
        found += [(study, row) for row in study.rows if row.name == name or row.name.startswith(f"{name}, ")]
    if not found:
        raise ValueError(
            f"no row of classification is called {name!r}, and ablate is for classification; give TABLE/ROW as "
            f"`congruency reproduce` has them (the tables are {', '.join(TITLES)}), or leave the recipe out and give "
            "--dataset. `congruency saliency osie FILE --method DCL-120-1 --method DCL-inf-1` compares windows in "
            "saliency, `congruency reproduce continual` methods of continual learning"
        )
    return found


def _the_row(candidates: list[Candidate], name: str) -> Candidate:
    """The only run among them: rows that differ in their method alone are one."""
    distinct: dict[tuple[str, ...], Candidate] = {}
    for study, row in candidates:
        if row.jobs:
            plain = replace(row, jobs=tuple(replace(job, method=Correction()) for job in row.jobs))
            distinct.setdefault(tuple(job.digest() for job in plain.jobs), (study, plain))
    if not distinct:
        raise ValueError(f"the paper quotes {name!r} from elsewhere; there is nothing to train")
    if len(distinct) > 1:
        listed = "; ".join(f"{study.name}/{row.name}" for study, row in distinct.values())
        raise ValueError(f"{name!r} may be one of several runs; give one of: {listed}")
    return next(iter(distinct.values()))


def _resumable(job: ImageJob, per_class: int | None) -> ImageJob:
    """Cells keep their records and resume from their checkpoints, however short they are."""
    data = job.data if per_class is None else replace(job.data, per_class=per_class)
    return replace(job, data=data, short=False)
