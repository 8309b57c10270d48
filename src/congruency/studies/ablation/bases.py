"""The training that an ablation varies: a row of a table, or a set of images and a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from congruency.classification.augmentation import AUGMENTATIONS
from congruency.classification.image_options import ImageOptions, augmentation, read_sets
from congruency.classification.task import Setup
from congruency.studies.classification.grids import GRIDS, grid
from congruency.studies.classification.jobs import Data, Job, Row, Table, changed, pick
from congruency.studies.classification.tables import TITLES, paper_table
from congruency.training.config import Correction

__all__ = ["DEFAULTS", "Base", "from_options", "from_recipe"]

DEFAULTS: dict[str, Any] = {
    "model": "resnet9",
    "epochs": 30,
    "batch_size": 128,
    "learning_rate": 0.1,
    "weight_decay": 5e-4,
}
"""Of a set of images: as in ``congruency train``, with its cosine from the first step to the last."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """What every cell has in common.

    Attributes:
        name: on the command line.
        title: what is trained, in a line.
        lead: how, in a few sentences.
        jobs: the trainings, plainly.
        channels: of the images, None for as they are.
        size: images of a path are scaled to this side.
    """

    name: str
    title: str
    lead: str
    jobs: tuple[Job, ...]
    channels: int | None = None
    size: int | None = None


def from_options(images: ImageOptions, changes: dict[str, Any]) -> Base:
    """Images and a network, trained as ``congruency train`` would."""
    settings = DEFAULTS | {name: value for name, value in changes.items() if value is not None}
    if images.known:
        augmented = AUGMENTATIONS[images.source]
        augmented = replace(augmented, size=images.size or augmented.size)
    else:
        augmented = augmentation(images, read_sets(images)[0], settings["model"], pretrained=False)
    setup = Setup(augmentation=augmented, schedule="cosine", **settings)
    shown = Path(images.source).name
    data = Data(name=shown, per_class=images.per_class)
    job = Job(setup=setup, method=Correction(), data=data, columns={"test error": "error"})
    few = "" if images.per_class is None else f", {images.per_class} training images a class"
    lead = (
        f"{setup.model} on {shown}{few}: {setup.epochs} epochs in batches of {setup.batch_size}, SGD with momentum "
        f"{setup.momentum:g}, a rate that falls from {setup.learning_rate:g} to 0 along a cosine, weight decay "
        f"{setup.weight_decay:g}."
    )
    return Base(name=shown, title=f"{setup.model} on {shown}", lead=lead, jobs=(job,), size=images.size)


def from_recipe(
    name: str, budget: str | None, images: str | None, per_class: int | None, changes: dict[str, Any]
) -> Base:
    """A row by its name, ``TABLE/ROW``, ``ROW`` or ``TABLE`` where that is clear; with other settings where asked.

    Raises:
        ValueError: no row is called so, several trainings are, or the row measures times.
    """
    table, row = _the_row(_candidates(name, budget), name)
    if any(job.steps is not None for job in row.jobs):
        raise ValueError(f"{table.name}/{row.name} measures times, not errors; choose a row of another table")
    table = changed(replace(table, rows=(row,)), **changes)
    jobs = tuple(_resumable(job, per_class) for job in table.rows[0].jobs)
    few = "" if per_class is None else f" Changed by options: {per_class} training images a class."
    instead = "" if images is None else f", {Path(images).name} instead of its images"
    network = row.name if row.name != "baseline" else table.name
    return Base(
        name=f"{table.name}/{row.name}",
        title=f"{network}{' (small budget)' if budget == 'small' else ''}{instead}",
        lead=table.lead + few,
        jobs=jobs,
        channels=3,
    )


def _candidates(name: str, budget: str | None) -> list[tuple[Table, Row]]:
    """The rows that a name may stand for."""
    known = [*TITLES, *GRIDS]
    first, slash, rest = name.partition("/")
    if slash and first in known:
        return [(table, row) for table in [_table(first, budget)] for row in pick(table, [rest]).rows]
    if name in known:
        return [(table, row) for table in [_table(name, budget)] for row in table.rows]
    found = []
    for each in known:
        if each in GRIDS and budget == "small":
            continue
        table = _table(each, budget)
        found += [(table, row) for row in table.rows if row.name == name or row.name.startswith(f"{name}, ")]
    if not found:
        _not_of_another_task(name)
        raise ValueError(
            f"no row of a table is called {name!r}; give TABLE/ROW as `congruency reproduce` has them (the tables are "
            f"{', '.join(known)}), or leave the recipe off and give --data"
        )
    return found


def _not_of_another_task(name: str) -> None:
    """Say where to go with a row of the paper that is no classifier's."""
    from congruency.studies.continual.tables import TABLES
    from congruency.studies.saliency.recipes import paper_recipes

    first = name.partition("/")[0]
    if first in ("salicon", "osie") or name in [recipe.paper_row for recipe in paper_recipes("salicon")]:
        raise ValueError(
            f"{name!r} trains saliency, and ablate is for classification; `congruency saliency osie FILE --method "
            "DCL-120-1 --method DCL-inf-1` compares windows there"
        )
    if first in TABLES or name in [row.name for table in TABLES.values() for row in table.rows]:
        raise ValueError(
            f"{name!r} is of continual learning, and ablate is for classification; `congruency reproduce "
            f"{first if first in TABLES else 'TABLE'}` compares the methods there"
        )


def _the_row(candidates: list[tuple[Table, Row]], name: str) -> tuple[Table, Row]:
    """The only training among them: rows that differ in their method alone are one."""
    distinct: dict[tuple[str, ...], tuple[Table, Row]] = {}
    for table, row in candidates:
        if row.jobs:
            plain = replace(row, jobs=tuple(replace(job, method=Correction()) for job in row.jobs))
            distinct.setdefault(tuple(job.digest() for job in plain.jobs), (table, plain))
    if not distinct:
        raise ValueError(f"the paper quotes {name!r} from elsewhere; there is nothing to train")
    if len(distinct) > 1:
        told = "; ".join(f"{table.name}/{row.name}" for table, row in distinct.values())
        raise ValueError(f"{name!r} may be one of several trainings; give one of: {told}")
    return next(iter(distinct.values()))


def _table(name: str, budget: str | None) -> Table:
    if name not in GRIDS:
        return paper_table(name, "small" if budget == "small" else "paper")
    if budget == "small":
        raise ValueError(f"{name} has no small budget; give fewer --seeds or --epochs")
    return grid(name)


def _resumable(job: Job, per_class: int | None) -> Job:
    """Cells keep their records and go on from their checkpoints, however short they are."""
    data = job.data if per_class is None else replace(job.data, per_class=per_class)
    return replace(job, data=data, short=False)
