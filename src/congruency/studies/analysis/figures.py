"""The figures of runs as plain data: row by row, one value a seed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from congruency.studies.analysis.runs import Group, Run, number

__all__ = ["as_json", "figures", "mean_over_epochs"]

_LAST = ("loss", "error")
_MEANS = ("congruency", "congruency_previous", "corrected_congruency")


def as_json(groups: Sequence[Group]) -> str:
    """``{row: {"seed": [...], figure: [one value a seed], ...}}``; null where a seed does not have the figure."""
    rows = {one.name: {"seed": one.seeds, **_by_seed(one)} for one in groups}
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _by_seed(one: Group) -> dict[str, list[float | None]]:
    runs = [figures(run) for run in one.runs]
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: [run.get(name) for run in runs] for name in names}


def figures(run: Run) -> dict[str, float]:
    """What a run came to, as far as its record has it.

    The scores after training; the last evaluation's figures (``test_``); the last epoch's training loss and error
    (``training_``) and magnitude; means over all epochs of the congruencies and of the share of steps corrected.
    """
    last = run.epochs[-1]
    found = dict(run.scores)
    evaluation: Mapping[str, Any] = next(
        (line["evaluation"] for line in reversed(run.epochs) if line.get("evaluation")), {}
    )
    found |= {f"test_{name}": number(evaluation, name) for name in evaluation}
    found |= {f"training_{name}": number(last, name) for name in _LAST}
    found |= {name: mean_over_epochs(run, name) for name in _MEANS}
    found |= {"magnitude": number(last, "magnitude"), "corrected_share": mean_over_epochs(run, "corrected_share")}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def mean_over_epochs(run: Run, name: str) -> float:
    """Of the epochs that have the figure; nan where none has."""
    values = [value for line in run.epochs if math.isfinite(value := number(line, name))]
    return statistics.fmean(values) if values else math.nan
