"""How each table and figure stands: whether its data is at hand, and what its result is like."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from congruency.experiments.catalogue import CATALOGUE, DATA_TITLES, Entry, command_of
from congruency.experiments.results import Results, find_results, read_results, seeds_of

__all__ = ["data_at_hand", "expected_rows", "lines", "state"]

_SALIENCY = ("SALICON", "OSIE", "MIT1003")
_WIDTH = 78


def lines(data: Path | None, results: Path) -> Iterator[str]:
    """The listing, for a terminal: a paragraph an entry."""
    for entry in CATALOGUE:
        name = f"{entry.name}, " if entry.commands else ""
        yield f"{entry.place or 'Ours'}: {name}{entry.title}"
        for command in command_of(entry):
            yield f"    {command}"
        told = [entry.remark[0].upper() + entry.remark[1:]] if entry.remark else []
        if entry.commands:
            told = [
                f"Data: {data_at_hand(entry, data)}",
                f"Takes: {entry.takes}",
                f"Result: {state(entry, results)}",
                *told,
            ]
        yield textwrap.fill(". ".join(told) + ".", _WIDTH, initial_indent="    ", subsequent_indent="    ")
        yield ""


def data_at_hand(entry: Entry, data: Path | None) -> str:
    """Which of an entry's sets the loaders find, and in what file; the folder as for ``--data``."""
    if not entry.data:
        return "none is needed"
    return ", ".join(f"{DATA_TITLES[name]} {_found(name, data)}" for name in entry.data)


def _found(name: str, data: Path | None) -> str:
    from congruency.datasets.loading import find
    from congruency.experiments.saliency.command import find_set

    try:
        place = find_set(name, data) if name in _SALIENCY else find(name, data)
    except FileNotFoundError:
        return "is missing"
    except ValueError:
        return "is missing: no data folder was named"
    return f"is at hand ({place.name})"


def state(entry: Entry, results: Path) -> str:
    """What the folder of results holds of an entry."""
    if not results.is_dir():
        return "not at hand"
    found = [read for name in find_results(results, entry.results) if (read := read_results(results, name)) is not None]
    if not found:
        return "not yet measured"
    return "; ".join(f"{read.folder} ({_told(read, expected_rows(entry))})" for read in found)


def _told(read: Results, expected: list[str]) -> str:
    if not read.rows:
        return "done"
    repeated = {name: metrics for name, metrics in read.rows.items() if "seed" in metrics} or read.rows
    counts = sorted({len(seeds_of(metrics)) for name, metrics in repeated.items() if not expected or name in expected})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0]) if counts else "no"
    if not expected:
        return f"{len(repeated)} rows, {seeds} seeds"
    done = sum(name in read.rows for name in expected)
    whole = "complete" if done == len(expected) else f"incomplete, {done} of {len(expected)} rows"
    return f"{whole}, {seeds} {'seed' if seeds == '1' else 'seeds'}"


def expected_rows(entry: Entry) -> list[str]:
    """The rows of a table that ``congruency reproduce`` runs if not told otherwise; empty for anything else."""
    if not entry.runs:
        return []
    if entry.family == "continual learning":
        from congruency.experiments.continual.tables import TABLES, pick

        return [row.name for row in pick(TABLES[entry.name], ())]
    if entry.family == "saliency":
        from congruency.experiments.saliency.recipes import paper_recipes

        return [recipe.name for recipe in paper_recipes(entry.name)]  # type: ignore[arg-type]
    from congruency.experiments.classification.grids import GRIDS, grid
    from congruency.experiments.classification.tables import paper_table

    table = grid(entry.name) if entry.name in GRIDS else paper_table(entry.name)
    return [row.name for row in table.rows if row.jobs]
