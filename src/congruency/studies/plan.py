"""A study as plain data: rows of training runs to compare, and what is measured in them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

PaperNumber = float | tuple[float, float]
"""A number of the paper, or a mean and a standard deviation over its runs."""


class Job(Protocol):
    """One training run except for its seed: plain data with everything that changes its result."""

    @property
    def label(self) -> str:
        """What distinguishes it from the row's other jobs; empty where there is one."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Which figure of a finished run fills which column of the study, by the column's key."""

    def digest(self) -> str:
        """Identify the job: equal digests and equal seeds give equal results."""


JobT = TypeVar("JobT", bound=Job)


@dataclass(frozen=True)
class Run(Generic[JobT]):
    """A job with a seed, run for a row."""

    row: str
    job: JobT
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        """What the store knows it by."""
        return self.job.digest(), self.seed

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.row, self.job.label, f"seed {self.seed}")))


@dataclass(frozen=True, kw_only=True)
class Column:
    """Something measured.

    Attributes:
        key: its name in ``results.json``.
        title: its heading; the key where empty.
        unit: of differences, in sentences.
        digits: decimals shown.
        paper_digits: decimals of the paper's number; as many as ``digits`` where None.
        scale: values are multiplied by it when shown.
        compared: whether rows are compared in it, seed by seed.
        in_table: whether the table shows it; if not, only the findings name it.
        speed: it is a speed, which differs between runs that are equal otherwise.
    """

    key: str
    title: str = ""
    unit: str = "points"
    digits: int = 2
    paper_digits: int | None = None
    scale: float = 1.0
    compared: bool = True
    in_table: bool = True
    speed: bool = False

    @property
    def heading(self) -> str:
        return self.title or self.key

    @property
    def short(self) -> str:
        """The heading without its unit."""
        return self.heading.partition(",")[0]


@dataclass(frozen=True, kw_only=True)
class Row(Generic[JobT]):
    """A row of a study.

    Attributes:
        name: its name in tables and in ``results.json``.
        jobs: the runs that fill it, but for their seeds; none for numbers that the paper quotes.
        paper: the paper's numbers by column key, as the paper prints them.
        against: the row it is compared with, seed by seed; None for none.
        settings: what the row stands for, by name (``mode``, ``window``, ...): other code finds rows by these.
        inactive: why its runs equal those it is compared with, where that is known beforehand; else empty.
    """

    name: str
    jobs: tuple[JobT, ...]
    paper: Mapping[str, PaperNumber] = field(default_factory=dict)
    against: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    inactive: str = ""


@dataclass(frozen=True, kw_only=True)
class Study(Generic[JobT]):
    """Rows to run and compare.

    Attributes:
        name: on the command line.
        title: what it shows, in a line.
        lead: how it is made, in a few sentences.
        caption: what the columns are, for the table.
        notes: terms and their explanations.
        extras: figures shown at the end of a line, without comparison.
        holm: give every comparison its p-value after Holm's correction, in a column.
    """

    name: str
    title: str
    lead: str
    rows: tuple[Row[JobT], ...]
    columns: tuple[Column, ...]
    caption: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    extras: tuple[Column, ...] = ()
    holm: bool = False

    def runs(self, seeds: Iterable[int]) -> list[Run[JobT]]:
        """All runs, seed by seed, so that what is finished at any time compares all rows; a shared job runs once."""
        found: dict[tuple[str, int], Run[JobT]] = {}
        for seed in seeds:
            for row in self.rows:
                for job in row.jobs:
                    run = Run(row.name, job, seed)
                    found.setdefault(run.key, run)
        return list(found.values())

    def find(self, **settings: Any) -> list[Row[JobT]]:
        """Return the rows whose settings have these values."""
        return [row for row in self.rows if all(row.settings.get(name) == v for name, v in settings.items())]


def pick(study: Study[JobT], names: Sequence[str]) -> Study[JobT]:
    """Return the study with only these rows: by name, or all whose name begins with ``NAME,``; all where none is given.

    Raises:
        ValueError: no row has such a name.
    """
    if not names:
        return study
    known = [row.name for row in study.rows]
    chosen: set[str] = set()
    for name in names:
        found = {each for each in known if each == name} or {each for each in known if each.startswith(f"{name},")}
        if not found:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"similar: {'; '.join(near)}" if near else f"the rows are {'; '.join(known)}"
            raise ValueError(f"{study.name} has no row {name!r}; {hint}")
        chosen |= found
    return replace(study, rows=tuple(row for row in study.rows if row.name in chosen))
