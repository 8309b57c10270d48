"""The state of every table and figure: the folders of ``docs/results`` that have it, and how complete they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from congruency.studies.results import RESULTS_FILE, Results, read_results, seeds_of
from replication.catalogue import Entry
from replication.rows import definition

RESULTS = "docs/results"
"""The folder of results, relative to the root of the checkout."""


@dataclass(frozen=True)
class Held:
    """The folders of an entry's result.

    Attributes:
        results: the folders that its commands write.
        smaller: folders with similar results on less data, which do not complete it.
        remark: a remark on these.
    """

    results: tuple[str, ...]
    smaller: tuple[str, ...] = ()
    remark: str = ""


_HELD = {
    "osie": Held(("osie_mit1003",)),
    "icifar100": Held(("icifar100",), ("icifar100_clean", "icifar100_noisy")),
    "class_pairs": Held(
        ("class_pairs",), ("class_pairs_cifar10",), "class_pairs_cifar10 is a small one, over five networks"
    ),
    "ablation": Held(
        ("ablation_windows", "ablation_references"),
        ("ablation_digits",),
        "ablation_digits is a small one, on the embedded digits",
    ),
    "saliency_congruency": Held(
        ("saliency_congruency",),
        ("order_digits",),
        "order_digits is a small one, classifiers of the embedded digits, with its commands in its table",
    ),
    "memory_agreement": Held(("mnist_r", "mnist_p", "icifar100"), ("icifar100_clean", "icifar100_clean_tenth")),
    "congruency_curves": Held(("congruency_cifar", "congruency_tiny")),
    "validation_loss": Held(
        ("validation_loss_tiny", "validation_loss_salicon", "icifar100"), ("icifar100_clean", "icifar100_clean_tenth"),
    ),
    "tiny": Held(("language_tiny",)),
    "10m": Held(("language_10m",)),
    "100m": Held(("language_100m",)),
    "osie_study": Held(("osie",)),
    "saliency_networks": Held(("osie_networks",)),
}  # fmt: skip
"""The entries whose result is not just a folder with the entry's name."""


def held(entry: Entry) -> Held:
    """Return the folders of an entry's result."""
    return _HELD.get(entry.name, Held((entry.name,)))


def found(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the names that have results."""
    return [name for name in dict.fromkeys(names) if (folder / name / RESULTS_FILE).is_file()]


def expected_rows(entry: Entry) -> list[str]:
    """Return the names of the rows that ``congruency reproduce`` runs by default; empty for other entries."""
    study = definition(held(entry).results[0]) if entry.runs else None
    return [row.name for row in study.rows] if study else []


def states(entry: Entry, folder: Path) -> dict[str, str]:
    """Return the state of every folder with a result of the entry, by name."""
    where, rows = held(entry), expected_rows(entry)
    names = found(folder, (*where.results, *where.smaller))
    return {name: _state(_read(folder, name), rows, entry.seeds) for name in names}


def finished(entry: Entry, folder: Path) -> bool:
    """Whether an entry is complete: all its folders exist, with all expected rows and seeds."""
    names, rows = held(entry).results, expected_rows(entry)
    if found(folder, names) != list(names):
        return False
    read = [_read(folder, name) for name in names]
    return all(set(rows) <= one.keys() and min(_counts(one, rows), default=0) >= (entry.seeds or 0) for one in read)


def _read(folder: Path, name: str) -> Results:
    return read_results(folder / name) or {}


def _state(results: Results, rows: Sequence[str], wanted: int | None) -> str:
    if not results:
        return "done"
    counts = _counts(results, rows)
    reached = min(counts, default=0) >= wanted if wanted else False
    seeds = seeds_text(counts) + ("" if reached or not wanted else f" of {wanted}")
    if not rows:
        count = len(_repeated(results))
        return f"{count} row{'s' * (count != 1)}, {seeds}"
    done = sum(name in results for name in rows)
    if done < len(rows):
        return f"incomplete, {done} of {len(rows)} rows, {seeds}"
    return f"complete, {seeds}" if reached else f"all {done} rows, {seeds}"


def _repeated(results: Results) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Return the rows with seeds; all rows if none has seeds."""
    return {name: metrics for name, metrics in results.items() if "seed" in metrics} or results


def _counts(results: Results, rows: Sequence[str]) -> list[int]:
    """Return the rows' numbers of seeds."""
    return [len(seeds_of(metrics)) for name, metrics in _repeated(results).items() if not rows or name in rows]


def seeds_text(counts: Iterable[int]) -> str:
    """Describe the numbers of seeds: ``20 seeds``, or ``9 to 10 seeds`` if rows differ."""
    several = sorted(set(counts))
    if not several:
        return "no seeds"
    return f"{several[0]} to {several[-1]} seeds" if len(several) > 1 else f"{several[0]} seed{'s' * (several[0] != 1)}"
