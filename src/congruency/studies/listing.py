"""How each table and figure stands: whether its data is at hand, and what its result is like."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from congruency.studies.catalogue import CATALOGUE, DATA_TITLES, Entry, command_of
from congruency.studies.results import Results, find_results, read_results, seeds_of, told_seeds

__all__ = ["data_at_hand", "expected_rows", "finished", "lines", "partial_set", "state"]

_SALIENCY = ("SALICON", "OSIE", "MIT1003")
_WIDTH = 78
_PARTIAL = {"subset": "a subset", "noisy": "its training labels noisy"}  # what names of files tell about a set


def lines(data: Path | None, results: Path) -> Iterator[str]:
    """The listing, for a terminal: a paragraph an entry."""
    for entry in CATALOGUE:
        name = f"{entry.name}, " if entry.commands else ""
        yield f"{entry.place or 'Ours'}: {name}{entry.title}"
        for command in command_of(entry):
            yield f"    {command}"
        told = [_sentence(entry)] if entry.remark else []
        if entry.commands:
            told = [
                f"Data: {data_at_hand(entry, data)}",
                f"Takes: {entry.takes}",
                f"Result: {state(entry, results)}",
                *told,
            ]
        yield textwrap.fill(". ".join(told) + ".", _WIDTH, initial_indent="    ", subsequent_indent="    ")
        yield ""


def _sentence(entry: Entry) -> str:
    """The remark as a sentence; names of folders are left as they are."""
    remark = entry.remark
    return remark if remark.split()[0] in (*entry.results, *entry.smaller) else remark[0].upper() + remark[1:]


def data_at_hand(entry: Entry, data: Path | None) -> str:
    """Which of an entry's sets the loaders find, and in what file; the folder as for ``--data``."""
    if not entry.data:
        return "none is needed"
    return ", ".join(f"{DATA_TITLES[name]} {_found(name, data)}" for name in entry.data)


def partial_set(name: str, data: Path | None) -> str:
    """What the name of its file tells about a set that is not whole, and the file's name; empty where nothing."""
    try:
        place = _find(name, data)
    except (FileNotFoundError, ValueError):
        return ""
    partial = _partial(place)
    return f"{', '.join(partial)} ({place.name})" if partial else ""


def _found(name: str, data: Path | None) -> str:
    try:
        place = _find(name, data)
    except FileNotFoundError:
        return "is missing"
    except ValueError:
        return "is missing: no data folder was named"
    return ", ".join(["is at hand", *_partial(place)]) + f" ({place.name})"


def _find(name: str, data: Path | None) -> Path:
    from congruency.datasets.loading import find
    from congruency.studies.saliency.command import find_set

    return find_set(name, data) if name in _SALIENCY else find(name, data)


def _partial(place: Path) -> list[str]:
    return [words for part, words in _PARTIAL.items() if part in place.name.lower()]


def state(entry: Entry, results: Path) -> str:
    """What the folder of results holds of an entry."""
    if not results.is_dir():
        return "not at hand"
    found = _read(results, *entry.results, *entry.smaller)
    if not found:
        return "not yet measured"
    return "; ".join(f"{read.folder} ({_told(read, expected_rows(entry), entry.seeds)})" for read in found)


def finished(entry: Entry, results: Path) -> bool:
    """Whether its commands have nothing left to run: every folder is there, with all rows and seeds that are fixed."""
    expected = expected_rows(entry)
    found = [_read(results, name) for name in entry.results]
    return all(found) and all(
        all(row in read.rows for row in expected) and min(_counts(read, expected), default=0) >= (entry.seeds or 0)
        for reads in found
        for read in reads
    )


def _read(results: Path, *names: str) -> list[Results]:
    found = [read_results(results, name) for name in find_results(results, names)]
    return [read for read in found if read is not None]


def _told(read: Results, expected: list[str], wanted: int | None) -> str:
    if not read.rows:
        return "done"
    counts = _counts(read, expected)
    reached = min(counts, default=0) >= wanted if wanted else False
    seeds = told_seeds(counts) + ("" if reached or not wanted else f" of {wanted}")
    if not expected:
        rows = len(_repeated(read))
        return f"{rows} row{'s' * (rows != 1)}, {seeds}"
    done = sum(name in read.rows for name in expected)
    if done < len(expected):
        return f"incomplete, {done} of {len(expected)} rows, {seeds}"
    return f"complete, {seeds}" if reached else f"all {done} rows, {seeds}"


def _repeated(read: Results) -> dict[str, Mapping[str, Sequence[float]]]:
    """Rows over seeds; where none says its seeds, all."""
    return {name: metrics for name, metrics in read.rows.items() if "seed" in metrics} or dict(read.rows)


def _counts(read: Results, expected: list[str]) -> list[int]:
    """The numbers of seeds of the rows."""
    return [len(seeds_of(metrics)) for name, metrics in _repeated(read).items() if not expected or name in expected]


def expected_rows(entry: Entry) -> list[str]:
    """The rows of a table that ``congruency reproduce`` runs if not told otherwise; empty for anything else."""
    if not entry.runs:
        return []
    if entry.family == "continual learning":
        from congruency.studies.continual.tables import TABLES, pick

        return [row.name for row in pick(TABLES[entry.name], ())]
    if entry.family == "saliency":
        from congruency.studies.saliency.recipes import paper_recipes

        return [recipe.name for recipe in paper_recipes(entry.name)]  # type: ignore[arg-type]
    from congruency.studies.image_tables import named_study

    return [row.name for row in named_study(entry.name).rows if row.jobs]
