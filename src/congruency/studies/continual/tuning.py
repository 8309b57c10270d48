"""Tuning the baselines: learning rate and strength of EWC or iCaRL, searched on seeds that no table uses."""

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
from congruency.studies.continual.tables import ContinualJob, StreamSettings, continual_study
from congruency.studies.plan import Row, Study
from congruency.studies.results import Results

__all__ = ["HELD_OUT", "Tuned", "rank", "tuning_seeds", "tuning_study"]

Tuned = Literal["ewc", "icarl"]
HELD_OUT = (1000, 1001, 1002)
_RATES = (0.01, 0.03, 0.1)
_STRENGTHS: dict[Tuned, tuple[float, ...]] = {
    "ewc": (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
    "icarl": (0.1, 0.3, 1.0, 3.0, 10.0),
}
_COARSE: dict[Tuned, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ewc": ((0.001, 0.003, 0.01, 0.03), (0.001, 0.01, 0.1)),  # larger ones diverge
    "icarl": (_RATES, (0.3, 1.0, 3.0)),
}


def tuning_seeds(settings: StreamSettings) -> tuple[int, ...]:
    """Return the held-out seeds; a large network gets one, since its runs take minutes."""
    return HELD_OUT if settings.network == "mlp" else HELD_OUT[:1]


def tuning_study(kind: Tuned, settings: StreamSettings) -> Study[ContinualJob]:
    """Return the grid of learning rates and strengths as a study; a large network gets a coarser grid."""
    rates, strengths = (_RATES, _STRENGTHS[kind]) if settings.network == "mlp" else _COARSE[kind]
    methods = [
        LearnerConfig(f"{kind} lr {lr:g} strength {strength:g}", kind, lr=lr, strength=strength)
        for lr in rates
        for strength in strengths
    ]
    rows = tuple(Row(name=method.name, jobs=(ContinualJob(settings, method),)) for method in methods)
    return replace(continual_study(settings), rows=rows)


def rank(kind: Tuned, study: Study[ContinualJob], results: Results, out: Path) -> tuple[Table, Path]:
    """Rank the grid by mean accuracy on the held-out seeds, best first; also written as JSON."""
    found = {row.jobs[0].method: results[row.name]["accuracy"] for row in study.rows}
    accuracies = {method: sum(values) / len(values) for method, values in found.items()}
    ranked = sorted(accuracies, key=lambda method: -accuracies[method] if math.isfinite(accuracies[method]) else 1.0)
    seeds = [int(seed) for seed in results[study.rows[0].name]["seed"]]
    grid = [{"lr": m.lr, "strength": m.strength, "accuracy": accuracies[m]} for m in ranked]
    content = json.dumps({"seeds": seeds, "grid": grid}, indent=1) + "\n"
    (path,) = write_together(out, {f"tuning-{kind}.json": content})
    table = Table(
        f"Mean accuracy over the held-out seeds {', '.join(map(str, seeds))}, best first.",
        ["lr, strength", "accuracy, %"],
        [[f"{m.lr:g}, {m.strength:g}", fixed(100 * accuracies[m])] for m in ranked],
    )
    return table, path
