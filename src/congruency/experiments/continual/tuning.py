"""A fair rival: the learning rate and strength of EWC or iCaRL, searched on seeds that no table uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from congruency.continual.config import Kind, LearnerConfig
from congruency.experiments.continual.reproduce import Settings, run_rows
from congruency.files import write_together
from congruency.report.numbers import fixed
from congruency.report.tables import Table

__all__ = ["HELD_OUT", "tune"]

HELD_OUT = (1000, 1001, 1002)
_RATES = (0.01, 0.03, 0.1)
_STRENGTHS: dict[Kind, tuple[float, ...]] = {
    "ewc": (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
    "icarl": (0.1, 0.3, 1.0, 3.0, 10.0),
}
_COARSE: dict[Kind, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ewc": ((0.001, 0.003, 0.01, 0.03), (0.001, 0.01, 0.1)),  # larger ones diverge
    "icarl": (_RATES, (0.3, 1.0, 3.0)),
}


def tune(
    kind: Kind, settings: Settings, out: Path, progress: Callable[[str, float, float], Any] | None = None
) -> Table:
    """Mean accuracy on the held-out seeds over a grid of learning rates and strengths, best first; also as JSON.

    A large network gets one held-out seed and a coarser grid: its runs take minutes.
    """
    if kind not in _STRENGTHS:
        raise ValueError(f"there is nothing to tune for {kind!r}; give one of {', '.join(_STRENGTHS)}")
    small = settings.network_name == "mlp"
    seeds = HELD_OUT if small else HELD_OUT[:1]
    rates, strengths = (_RATES, _STRENGTHS[kind]) if small else _COARSE[kind]
    grid = [
        LearnerConfig(f"{kind} lr {lr:g} strength {strength:g}", kind, lr=lr, strength=strength)
        for lr in rates
        for strength in strengths
    ]
    results = run_rows(replace(settings, seeds=seeds), out, progress, grid)
    accuracies = {method: results[method.name].scores().accuracy.mean().item() for method in grid}
    ranked = sorted(grid, key=lambda method: -accuracies[method] if accuracies[method] == accuracies[method] else 1.0)
    record = [{"lr": m.lr, "strength": m.strength, "accuracy": accuracies[m]} for m in ranked]
    write_together(out, {f"tuning-{kind}.json": json.dumps({"seeds": seeds, "grid": record}, indent=1) + "\n"})
    return Table(
        f"Mean accuracy over the held-out seeds {', '.join(map(str, seeds))}, best first.",
        ["lr, strength", "accuracy, %"],
        [[f"{m.lr:g}, {m.strength:g}", fixed(100 * accuracies[m])] for m in ranked],
    )
