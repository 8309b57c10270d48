"""What a table of classification is made of: rows, and the trainings that fill them; plain data."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from congruency.classification.task import Setup
from congruency.studies.classification.recipes import Figure
from congruency.studies.saliency.timed import TimedSetup
from congruency.training.config import Correction

__all__ = ["Data", "Job", "Measured", "Row", "Table", "changed", "pick", "told_changes"]

Measured = Literal["error", "top5_error", "ms", "parameters"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The images of a training.

    Attributes:
        name: of the set.
        classes: how many the set must have, None for any.
        per_class: only so many training images of every class.
        test_per_class: only so many test images of every class.
        made_up: random images of the set's shape instead, for times that do not depend on what images show.
        shape: (C, H, W) of made-up images.
    """

    name: str
    classes: int | None = None
    per_class: int | None = None
    test_per_class: int | None = None
    made_up: bool = False
    shape: tuple[int, int, int] = (3, 32, 32)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training of a row.

    Attributes:
        label: what tells it from the row's others, such as ``"CIFAR-10"``; empty where the row has one.
        setup: network, batches and schedule, which knows how to build its task; its seed is replaced by that of each
            run. A saliency training's is only timed.
        method: how gradients are corrected.
        data: the images.
        columns: what it measures, by the name of the column.
        short: so short that it is begun anew rather than resumed, and keeps no checkpoint.
        steps: made for times: so many steps are trained, nothing is evaluated.
    """

    setup: Setup | TimedSetup
    method: Correction
    data: Data
    columns: Mapping[str, Measured]
    label: str = ""
    short: bool = False
    steps: int | None = None

    def digest(self) -> str:
        """Tells trainings apart: of everything that changes what comes out, but for the seed and the machine."""
        setup = {name: value for name, value in asdict(self.setup).items() if name not in ("seed", "workers")}
        if self.setup.sample_order == "seed":  # as it was before there were others, so that finished runs stay finished
            del setup["sample_order"], setup["order_seed"]
        described = [setup, asdict(self.method), asdict(self.data), dict(self.columns), self.steps]
        return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table.

    Attributes:
        name: what the table calls it.
        jobs: the trainings that fill it; none for numbers that the paper quotes.
        paper: the paper's numbers, by column.
        against: the row it is compared with, seed by seed; None for none.
    """

    name: str
    jobs: tuple[Job, ...]
    paper: Mapping[str, Figure] = field(default_factory=dict)
    against: str | None = None

    @property
    def columns(self) -> list[str]:
        """All columns that its trainings or the paper fill."""
        return list(dict.fromkeys([*(name for job in self.jobs for name in job.columns), *self.paper]))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table to run.

    Attributes:
        name: on the command line.
        title: what it shows, in a line.
        lead: how it is made, in a few sentences.
        rows: from top to bottom.
        unit: of the columns.
        notes: terms and what they mean.
    """

    name: str
    title: str
    lead: str
    rows: tuple[Row, ...]
    unit: str = "error, %"
    notes: tuple[tuple[str, str], ...] = ()


def pick(table: Table, names: Sequence[str]) -> Table:
    """The table with only the rows called so, or whose names begin so: ``DCL-50-1`` picks its modes and margins."""
    if not names:
        return table
    known = [row.name for row in table.rows]
    chosen: set[str] = set()
    for name in names:
        found = {each for each in known if each == name} or {each for each in known if each.startswith(name + ",")}
        if not found:
            raise ValueError(f"table {table.name!r} has no row {name!r}; {_near(name, known)}")
        chosen |= found
    return replace(table, rows=tuple(row for row in table.rows if row.name in chosen))


def changed(table: Table, **changes: Any) -> Table:
    """The table with other settings in all its trainings: attributes of :class:`Setup`; None leaves as it is."""
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        return table
    rows = tuple(replace(row, jobs=tuple(_changed(job, given) for job in row.jobs)) for row in table.rows)
    return replace(table, rows=rows, lead=f"{table.lead} {told_changes(given)}".strip())


def told_changes(given: Mapping[str, Any]) -> str:
    """What options changed, as a sentence; empty where nothing that changes what a table is about."""
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items() if name != "pretrained")
    return f"Changed by options: {told}." if told else ""


def _changed(job: Job, given: Mapping[str, Any]) -> Job:
    """Milestones and warm-up move with the number of epochs; the weights of one network are none of another's."""
    setup, epochs = job.setup, given.get("epochs")
    if job.steps is not None or isinstance(setup, TimedSetup):  # times depend on neither
        given = {name: value for name, value in given.items() if name not in ("epochs", "pretrained")}
        return replace(job, setup=replace(setup, **given))
    moved: dict[str, Any] = {}
    if epochs is not None:
        moved["milestones"] = tuple(max(1, round(m * epochs / setup.epochs)) for m in setup.milestones)
        moved["warmup"] = setup.warmup * epochs / setup.epochs
    if "model" in given and "pretrained" not in given:
        moved["pretrained"] = None
    if setup.pretrained is None:
        given = {name: value for name, value in given.items() if name != "pretrained"}
    return replace(job, setup=replace(setup, **moved, **given))


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"near are {'; '.join(near)}" if near else f"the rows are {'; '.join(known)}"
