"""``congruency ablate``: DCL over a grid of its settings, with curves by window and references (Figure 9).

The base is a row of a classification table without its method, or a data set and a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from congruency.classification.augmentation import AUGMENTATIONS
from congruency.classification.image_options import ImageOptions, augmentation, read_sets
from congruency.classification.task import Setup
from congruency.report import charts
from congruency.report.page import Figure
from congruency.studies.classification.cells import Axes, cell_name, cells, variant_of, window_name
from congruency.studies.classification.grids import CONSTRAINT_NOTES, CORRECTED_NOTE, TEST_ERROR
from congruency.studies.classification.jobs import Data, ImageJob, changed, extras, settings_of
from congruency.studies.conduct import Finished
from congruency.studies.curves import curve_charts, setting_series
from congruency.studies.image_tables import TITLES, named_study
from congruency.studies.plan import Column, Row, Study, pick
from congruency.studies.results import Results
from congruency.studies.statistics import mean_interval
from congruency.training.config import Correction
from congruency.training.methods import BASELINE

DEFAULTS: dict[str, Any] = {
    "model": "resnet9", "epochs": 30, "batch_size": 128, "learning_rate": 0.1, "weight_decay": 5e-4,
}  # fmt: skip
"""Training defaults for a data set: as in ``congruency train``, with a cosine schedule without warm-up."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """The common base of all cells: its name on the command line, its texts, and its runs without correction."""

    name: str
    title: str
    lead: str
    jobs: tuple[ImageJob, ...]


def from_options(images: ImageOptions, changes: dict[str, Any]) -> Base:
    """Return the base for a data set and a network, trained as ``congruency train`` would."""
    settings = DEFAULTS | changes
    per_class = settings.pop("per_class", None)
    if images.known:
        augmented = AUGMENTATIONS[images.source]
        augmented = replace(augmented, size=images.size or augmented.size)
    else:
        augmented = augmentation(images, read_sets(images)[0], settings["model"], pretrained=False)
    setup = Setup(augmentation=augmented, schedule="cosine", **settings)
    shown = Path(images.source).name
    data = Data(name=shown, per_class=per_class)
    job = ImageJob(setup=setup, method=Correction(), data=data, columns={TEST_ERROR.key: "error"})
    few = "" if per_class is None else f", {per_class} training images per class"
    lead = (
        f"{setup.model} on {shown}{few}: {setup.epochs} epochs in batches of {setup.batch_size}, SGD with momentum "
        f"{setup.momentum:g}, a rate that falls from {setup.learning_rate:g} to 0 along a cosine, weight decay "
        f"{setup.weight_decay:g}."
    )
    return Base(name=shown, title=f"{setup.model} on {shown}", lead=lead, jobs=(job,))


def from_recipe(name: str, images: str | None, changes: dict[str, Any]) -> Base:
    """Return the base for a table's row, ``TABLE/ROW``, or ``TABLE`` if that is unambiguous, with changed settings.

    Raises:
        ValueError: no row has that name, the name is ambiguous, or the row measures times.
    """
    study, row = _the_row(name)
    if any(job.steps is not None for job in row.jobs):
        raise ValueError(f"{study.name}/{row.name} measures times, not errors; choose a row of another table")
    study = changed(replace(study, rows=(row,)), **changes)
    # not short: even short runs keep their records and resume from checkpoints
    jobs = tuple(replace(job, short=False) for job in study.rows[0].jobs)
    instead = "" if images is None else f", {Path(images).name} instead of its images"
    network = row.name if row.name != BASELINE else study.name
    return Base(
        name=f"{study.name}/{row.name}",
        title=f"{network}{instead}",
        lead=study.lead,
        jobs=jobs,
    )


def _the_row(name: str) -> tuple[Study[ImageJob], Row[ImageJob]]:
    """Return the table and the unique row for a name; rows that differ only in their method count as one."""
    table, _, wanted = name.partition("/")
    if table not in TITLES:
        raise ValueError(
            f"no table of classification is called {table!r}, and ablate is for classification; give TABLE/ROW as "
            f"`congruency reproduce` has them (the tables are {', '.join(TITLES)}), or leave the recipe out and give "
            "--dataset. `congruency saliency osie FILE --method DCL-120-1 --method DCL-inf-1` compares windows in "
            "saliency, `congruency reproduce continual` methods of continual learning"
        )
    study = named_study(table)
    distinct: dict[tuple[str, ...], Row[ImageJob]] = {}
    for row in pick(study, [wanted] if wanted else []).rows:
        if row.jobs:
            plain = replace(row, jobs=tuple(replace(job, method=Correction()) for job in row.jobs))
            distinct.setdefault(tuple(job.digest() for job in plain.jobs), plain)
    if not distinct:
        raise ValueError(f"the paper quotes {name!r} from elsewhere; there is nothing to train")
    if len(distinct) > 1:
        listed = "; ".join(f"{study.name}/{row.name}" for row in distinct.values())
        raise ValueError(f"{name!r} may be one of several runs; give one of: {listed}")
    return study, next(iter(distinct.values()))


_NOTES = (
    *CONSTRAINT_NOTES,
    (
        "Against, p",
        "The paired difference to the baseline, seed by seed (same initial weights, same batches), its 95 % interval "
        "and the p-value of the t-test. Holm's p is the same after correction for all comparisons of the table: below "
        "0.05 it would stay clear however many rows were looked at.",
    ),
    CORRECTED_NOTE,
)


def inactive(cell: Correction) -> str:
    """Return why these settings never correct a step; empty if they do."""
    if cell.window is None or cell.window > cell.references + 1:
        return ""
    if cell.window <= cell.references:
        return "the window is over before all references are recorded"
    returning = cell.floor is not None and cell.returning
    return "the window is over before a step back toward the references is possible" if returning else ""


def ablation_study(base: Base, axes: Axes) -> Study[ImageJob]:
    """Return the study: the base's runs without correction and with the correction of every cell."""
    rows = (
        Row(name=BASELINE, jobs=base.jobs, settings=settings_of(base.jobs)),
        *(_row(base, cell) for cell in cells(axes)),
    )
    keys = dict.fromkeys(key for job in base.jobs for key in job.columns)
    return Study(
        name="ablation",
        title=f"DCL by its window and reference points: {base.title}",
        lead=f"{base.lead} Within a seed all rows begin with the same weights and see the same batches.",
        rows=rows,
        columns=tuple(TEST_ERROR if key == TEST_ERROR.key else Column(key=key, title=f"{key}, %") for key in keys),
        notes=_NOTES,
        extras=tuple(column for column in extras(rows) if not column.speed),
        holm=True,
    )


def _row(base: Base, cell: Correction) -> Row[ImageJob]:
    jobs = tuple(replace(job, method=cell) for job in base.jobs)
    return Row(
        name=cell_name(cell), jobs=jobs, against=BASELINE, settings=settings_of(jobs), inactive=inactive(cell)
    )  # fmt: skip


def curves(study: Study[ImageJob], results: Results, finished: Finished) -> tuple[list[Figure], str]:
    """Return charts of every column and variant by window and by number of references, and a note on reading them."""
    made = []
    rows = study.find(method="dcl")
    for column in study.columns:
        for variant in dict.fromkeys(variant_of(row.settings) for row in rows):
            chosen = [row for row in rows if variant_of(row.settings) == variant]
            windows = sorted({row.settings["window"] for row in chosen}, key=lambda w: math.inf if w is None else w)
            counts = sorted({row.settings["references"] for row in chosen})
            by_cell = {(row.settings["window"], row.settings["references"]): row.name for row in chosen}
            by_window = {
                "1 reference" if count == 1 else f"{count} references": [by_cell.get((w, count)) for w in windows]
                for count in counts
            }
            by_count = {f"window {window_name(w)}": [by_cell.get((w, count)) for count in counts] for w in windows}
            names, numbers = list(map(window_name, windows)), list(map(str, counts))
            made += _charts(by_window, results, column, names, "window, steps", f"by window: {variant}")
            made += _charts(by_count, results, column, numbers, "reference points", f"by references: {variant}")
    note = (
        "Dots: means over the seeds; bars: their 95 % intervals. Grey: the baseline and its interval. Hover over a "
        "point to see its values."
    )
    return made, note


def _charts(
    lines: dict[str, list[str | None]], results: Results, column: Column, places: Sequence[str], x_label: str, by: str
) -> list[Figure]:
    """Draw each line's rows by setting, with the baseline as a band; a row is None if its cell is not in the grid."""
    plain = mean_interval(results.get(BASELINE, {}).get(column.key, []))
    count = len(places)
    band = charts.Series(BASELINE, list(range(count)), [plain.mean] * count, [plain.margin] * count)
    made = [
        setting_series(name, [results.get(row or "", {}).get(column.key, []) for row in rows])
        for name, rows in lines.items()
    ]
    return curve_charts(
        [band, *made], title=f"{column.short} {by}", x_label=x_label, y_label=column.heading,
        x_names=places, possible=(0.0, 100.0), group=column.key,
    )  # fmt: skip
