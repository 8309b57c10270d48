"""Tuning: learning rates, strengths and margins, searched on seeds that no table uses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

from congruency.continual.config import LearnerConfig
from congruency.files import write_together
from congruency.report.numbers import fixed
from congruency.report.tables import Table
from congruency.studies.continual.parts import (
    FURTHER_MARGINS,
    MARGINS,
    SINGLE_RATES,
    WINDOWS,
    gem_with_margin,
    single_at,
    with_margins_apart,
)
from congruency.studies.continual.tables import ContinualJob, StreamSettings, continual_study
from congruency.studies.plan import Row, Study
from congruency.studies.results import Results

__all__ = ["HELD_OUT", "Tuned", "rank", "tuning_seeds", "tuning_study"]

Tuned = Literal["single", "ewc", "mas", "icarl", "lwf", "er", "der", "derpp", "gem", "dcl_memory"]
HELD_OUT = tuple(range(1000, 1010))
_RATES = (0.01, 0.03, 0.1)
_MARGINS = sorted((*MARGINS, *FURTHER_MARGINS))
_GRIDS: dict[Tuned, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ewc": (_RATES, (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
    "mas": (_RATES, (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    "icarl": (_RATES, (0.1, 0.3, 1.0, 3.0, 10.0)),
    "lwf": (_RATES, (0.1, 0.3, 1.0, 3.0, 10.0)),
    "er": ((*_RATES, 0.2), (1.0,)),
    "der": (_RATES, (0.03, 0.1, 0.3, 1.0)),
    "derpp": (_RATES, (0.03, 0.1, 0.3, 1.0)),
}
"""Learning rates and strengths."""
_COARSE: dict[Tuned, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ewc": ((0.001, 0.003, 0.01, 0.03), (0.001, 0.01, 0.1)),  # larger ones diverge
}
"""For a large network; where none is given, the grid without its smallest and largest strength."""
_FIELDS = ("lr", "strength", "memory_margin", "window")  # that the grids vary


def tuning_seeds(kind: Tuned, settings: StreamSettings) -> tuple[int, ...]:
    """Return the held-out seeds: one for a large network, whose runs take minutes; ten where settings differ little."""
    if settings.network != "mlp":
        return HELD_OUT[:1]
    return HELD_OUT if kind in ("single", "gem", "dcl_memory") else HELD_OUT[:3]


def _grid(kind: Tuned, coarse: bool) -> list[LearnerConfig]:
    if kind == "single":
        return [single_at(rate) for rate in SINGLE_RATES]
    if kind == "gem":
        return [gem_with_margin(margin) for margin in _MARGINS]
    if kind == "dcl_memory":
        return [with_margins_apart(window, margin) for window in WINDOWS for margin in _MARGINS]
    rates, strengths = _GRIDS[kind]
    if coarse:
        rates, strengths = _COARSE.get(kind, (rates, strengths[1:-1] or strengths))
    return [
        LearnerConfig(f"{kind} lr {lr:g} strength {strength:g}", kind, lr=lr, strength=strength)
        for lr in rates
        for strength in strengths
    ]


def tuning_study(kind: Tuned, settings: StreamSettings) -> Study[ContinualJob]:
    """Return the grid of settings as a study; a large network gets a coarser one."""
    methods = _grid(kind, coarse=settings.network != "mlp")
    rows = tuple(Row(name=method.name, jobs=(ContinualJob(settings, method),)) for method in methods)
    return replace(continual_study(settings), rows=rows)


def rank(kind: Tuned, study: Study[ContinualJob], results: Results, out: Path) -> tuple[Table, Path]:
    """Rank the grid by mean accuracy on the held-out seeds, best first; also written as JSON."""
    found = {row.jobs[0].method: results[row.name]["accuracy"] for row in study.rows}
    accuracies = {method: sum(values) / len(values) for method, values in found.items()}
    ranked = sorted(accuracies, key=lambda method: -accuracies[method] if math.isfinite(accuracies[method]) else 1.0)
    seeds = [int(seed) for seed in results[study.rows[0].name]["seed"]]
    varied = [name for name in _FIELDS if len({getattr(method, name) for method in found}) > 1]
    grid = [{**{name: getattr(m, name) for name in varied}, "accuracy": accuracies[m]} for m in ranked]
    content = json.dumps({"seeds": seeds, "grid": grid}, indent=1) + "\n"
    (path,) = write_together(out, {f"tuning-{kind}.json": content})
    table = Table(
        f"Mean accuracy over the held-out seeds {', '.join(map(str, seeds))}, best first.",
        [", ".join(varied), "accuracy, %"],
        [[", ".join(f"{getattr(m, name):g}" for name in varied), fixed(100 * accuracies[m])] for m in ranked],
    )
    return table, path
