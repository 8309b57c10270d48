"""A study as plain data: rows of training runs to compare, and the columns measured."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

PaperNumber = float | tuple[float, float]
"""A number of the paper, or a mean and a standard deviation over its runs."""


class Job(Protocol):
    """A training run without its seed: plain data with everything that determines its result."""

    @property
    def label(self) -> str:
        """What distinguishes the job from the row's other jobs; empty if it is the only one."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Map each column key to the name of the run's figure that fills it."""

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
        """The run's key in the store: digest and seed."""
        return self.job.digest(), self.seed

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.row, self.job.label, f"seed {self.seed}")))


@dataclass(frozen=True, kw_only=True)
class Column:
    """A measured quantity.

    Attributes:
        key: its name in ``results.json``.
        title: its heading; the key if empty.
        unit: unit of its differences in sentences.
        digits: decimals shown.
        paper_digits: decimals of the paper's numbers; None for ``digits``.
        scale: factor applied to values when shown.
        compared: whether rows are compared in this column, paired by seed.
        in_table: whether the table shows it; if not, only the findings mention it.
        speed: whether it is a speed, which varies between otherwise identical runs.
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
        jobs: the runs of the row, without seeds; empty for numbers that the paper quotes.
        paper: the paper's numbers by column key, as the paper prints them.
        against: the row it is compared with, paired by seed; None for no comparison.
        settings: the row's settings by name (``mode``, ``window``, ...), by which other code finds rows.
        inactive: why its runs are known in advance to equal those of ``against``; empty otherwise.
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
        name: its name on the command line.
        title: what it shows, in one line.
        lead: how it is made, in a few sentences.
        caption: explanation of the columns, for the table.
        notes: terms and their explanations.
        extras: columns shown last, without comparison.
        holm: whether to add a column with Holm-corrected p-values.
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
        """Return all runs ordered by seed, so that an unfinished study compares all rows; shared jobs run once."""
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
    """Return the study with only the named rows, or all rows if no name is given.

    A name that is not a row's selects all rows that begin with ``NAME,``.

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
