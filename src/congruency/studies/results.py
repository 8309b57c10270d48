"""Results as they lie on disk: ``results.json`` in a folder each, row by row, one value a seed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from congruency.studies.evidence import Difference, paired_difference

__all__ = [
    "FILE", "Results", "compare", "find_results", "never_corrected", "read_results", "seeds_of", "told_seeds",
]  # fmt: skip

FILE = "results.json"


@dataclass(frozen=True)
class Results:
    """What a folder holds.

    Attributes:
        folder: its name, within the folder of all results.
        rows: ``{row: {metric: [one value a seed]}}``, nan where a run has none; empty where the file has another form,
            as those of single analyses do.
    """

    folder: str
    rows: Mapping[str, Mapping[str, Sequence[float]]]


def find_results(root: Path, names: Iterable[str]) -> list[str]:
    """Which folders below ``root`` hold results, of those called so; ``audit/*`` stands for all in ``audit``."""
    found = [path.parent for name in names for path in sorted(root.glob(f"{name}/{FILE}"))]
    return list(dict.fromkeys(folder.relative_to(root).as_posix() for folder in found))


def read_results(root: Path, name: str) -> Results | None:
    """The results of one folder below ``root``, None where there are none."""
    path = root / name / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as reason:
        raise ValueError(f"{path} is not JSON ({reason}); make it again") from None
    return Results(name, _rows(content))


def _rows(content: Any) -> dict[str, dict[str, list[float]]]:
    if not isinstance(content, dict):
        return {}
    rows: dict[str, dict[str, list[float]]] = {}
    for row, metrics in content.items():
        if not isinstance(metrics, dict) or not all(isinstance(values, list) for values in metrics.values()):
            return {}
        found = {metric: [_number(value) for value in values] for metric, values in metrics.items()}
        if any(value is None for values in found.values() for value in values):
            return {}
        rows[row] = {metric: [value for value in values if value is not None] for metric, values in found.items()}
    return rows


def _number(value: Any) -> float | None:
    """null is a value that could not be had, which is nan; anything but a number is None."""
    if value is None:
        return math.nan
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def seeds_of(metrics: Mapping[str, Sequence[float]]) -> list[float]:
    """The seeds of a row; where they are not written down, the values stand in their order."""
    if "seed" in metrics:
        return list(metrics["seed"])
    return [float(place) for place in range(max((len(values) for values in metrics.values()), default=0))]


def compare(
    results: Results, row: str, against: str, metric: str, against_metric: str | None = None
) -> Difference | None:
    """``row`` less ``against`` in a metric, paired by seed; None where one of them does not have it.

    ``against_metric`` is the other row's, where it is not the same: a table by window has a column a window.
    """
    pair = [(results.rows.get(row, {}), metric), (results.rows.get(against, {}), against_metric or metric)]
    if not all(name in metrics for metrics, name in pair):
        return None
    ours, theirs = (dict(zip(seeds_of(metrics), metrics[name], strict=True)) for metrics, name in pair)
    both = sorted(ours.keys() & theirs.keys())
    return paired_difference([ours[seed] for seed in both], [theirs[seed] for seed in both]) if both else None


def never_corrected(results: Results, row: str) -> bool:
    """Whether a row of DCL or GEM left every gradient of every seed alone, and so is plain training."""
    shares = results.rows.get(row, {}).get("corrected_share")
    corrects = "DCL" in row or "GEM" in row
    return corrects and bool(shares) and all(share == 0 for share in shares or ())


def told_seeds(counts: Iterable[int]) -> str:
    """How many seeds there are: ``20 seeds``, or ``9 to 10 seeds`` where it differs."""
    found = sorted(set(counts))
    if not found:
        return "no seeds"
    return f"{found[0]} to {found[-1]} seeds" if len(found) > 1 else f"{found[0]} seed{'s' * (found[0] != 1)}"
