"""Tuning on seeds that no table uses, and methods compared at their best: rates, strengths, margins, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Literal, get_args

from congruency.continual.config import LearnerConfig
from congruency.report.numbers import fixed
from congruency.studies.continual.parts import FURTHER_MARGINS, MARGINS, gem_with_margin, with_margins_apart
from congruency.studies.continual.tables import SCORES, ContinualJob, StreamSettings, continual_study
from congruency.studies.plan import Row, Study
from congruency.studies.results import Results
from congruency.studies.statistics import mean_interval

Tuned = Literal["single", "ewc", "mas", "icarl", "lwf", "er", "der", "derpp", "gem", "dcl_memory"]
HELD_OUT = tuple(range(1000, 1004))
_RATES = (0.01, 0.03, 0.1)
_SINGLE_RATES = (0.001, 0.003, *_RATES, 0.2)
_REPLAY_RATES = (0.03, 0.1, 0.2)
_MARGINS = (*MARGINS[1:], *FURTHER_MARGINS)
_WINDOW = 10  # of DCL with memory, so that it has as many runs as GEM; longer ones end lower in the paper's tables
_GRIDS: dict[Tuned, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ewc": (_RATES, (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
    "mas": (_RATES, (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    "icarl": (_RATES, (0.1, 0.3, 1.0, 3.0, 10.0)),
    "lwf": (_RATES, (0.1, 0.3, 1.0, 3.0, 10.0)),
    "er": ((0.03, 0.1, 0.2, 0.4), (1.0,)),
    "der": (_REPLAY_RATES, (0.03, 0.1, 0.3, 1.0)),
    "derpp": (_REPLAY_RATES, (0.03, 0.1, 0.3, 1.0)),
}
"""Learning rates and strengths."""
_COARSE: dict[Tuned, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ewc": ((0.001, 0.003, 0.01, 0.03), (0.001, 0.01, 0.1)),  # larger ones diverge
}
"""For a large network; where none is given, the grid without its smallest and largest strength."""
_FIELDS = ("lr", "strength", "memory_margin")  # that the grids vary
_WORDS = dict(zip(_FIELDS, ("rate", "strength", "margin"), strict=True))


def tuning_seeds(settings: StreamSettings) -> tuple[int, ...]:
    """Return the held-out seeds: four, or one for a large network, whose runs take minutes."""
    return HELD_OUT if settings.network == "mlp" else HELD_OUT[:1]


def _grid(kind: Tuned, coarse: bool) -> list[LearnerConfig]:
    if kind == "single":  # named as in the paper's tables where the rate is theirs
        return [LearnerConfig("single" if lr == 0.1 else f"single, rate {lr:g}", kind, lr=lr) for lr in _SINGLE_RATES]
    if kind == "gem":
        return [gem_with_margin(margin) for margin in _MARGINS]
    if kind == "dcl_memory":
        return [with_margins_apart(_WINDOW, margin) for margin in _MARGINS]
    rates, strengths = _GRIDS[kind]
    if coarse:
        rates, strengths = _COARSE.get(kind, (rates, strengths[1:-1] or strengths))
    return [
        LearnerConfig(f"{kind} lr {lr:g} strength {strength:g}", kind, lr=lr, strength=strength)
        for lr in rates
        for strength in strengths
    ]


def tuning_study(kinds: Sequence[Tuned], settings: StreamSettings) -> Study[ContinualJob]:
    """Return the grids of these kinds as a study; a large network gets coarser ones."""
    methods = [method for kind in kinds for method in _grid(kind, coarse=settings.network != "mlp")]
    rows = tuple(Row(name=method.name, jobs=(ContinualJob(settings, method),)) for method in methods)
    study = continual_study(settings)
    return replace(study, title=f"{study.title}: settings on held-out seeds", rows=rows, columns=SCORES, caption="")


def ranked(kind: Tuned, study: Study[ContinualJob], results: Results) -> dict[LearnerConfig, float]:
    """Return the mean accuracy of a kind's settings on the held-out seeds, best first; what diverged is last."""
    methods = [(row.name, row.jobs[0].method) for row in study.rows if row.jobs[0].method.kind == kind]
    found = {method: mean_interval(results[name]["accuracy"]).mean for name, method in methods if name in results}
    return dict(sorted(found.items(), key=lambda item: -item[1] if math.isfinite(item[1]) else 1.0))


def best_settings(study: Study[ContinualJob], results: Results) -> list[str]:
    """Return a sentence on each kind of a tuning study: its settings with the highest mean accuracy."""
    grids = [ranked(kind, study, results) for kind in get_args(Tuned)]
    best = [next(iter(grid.items())) for grid in grids if grid]
    return [f"Highest accuracy of {method.kind}: {method.name}, {fixed(100 * found)} %." for method, found in best]


COMPARED: dict[str, Tuned] = {
    "plain SGD": "single", "ER": "er", "DER++": "derpp", "GEM": "gem", "GEM with DCL-10-1": "dcl_memory",
}  # fmt: skip
"""What ``--part tuned`` tunes and compares, by the row's name."""
AGAINST = {"ER": "GEM", "DER++": "GEM", "GEM": "plain SGD", "GEM with DCL-10-1": "GEM"}


def tuned_study(settings: StreamSettings, tuning: Study[ContinualJob], results: Results) -> Study[ContinualJob]:
    """Return the comparison of the methods, each as its ``tuning`` ranks first."""
    best, searched, at_edge = {}, [], []
    for name, kind in COMPARED.items():
        grid = ranked(kind, tuning, results)
        best[name] = next(iter(grid))
        varied = [f for f in _FIELDS if len({getattr(method, f) for method in grid}) > 1]
        chosen = ", ".join(f"{_WORDS[field]} {getattr(best[name], field):g}" for field in varied)
        searched.append(f"{name} {chosen} (of {len(grid)})")
        for field in varied:
            values = sorted({getattr(method, field) for method in grid})
            if getattr(best[name], field) in (values[0], values[-1]):
                at_edge.append(f"{_WORDS[field]} of {name}")
    seeds = tuning_seeds(settings)
    study = continual_study(settings, rows=[])
    return replace(
        study,
        title=f"{study.title}: methods at their best settings",
        lead=f"{study.lead} Every method has the settings with the highest mean accuracy on {len(seeds)} held-out "
        f"seeds, {seeds[0]} to {seeds[-1]}: {'; '.join(searched)}."
        + (f" At the edge of the grid, so that a better one may lie beyond: {', '.join(at_edge)}." if at_edge else ""),
        rows=tuple(
            Row(name=name, jobs=(ContinualJob(settings, method),), against=AGAINST.get(name), settings=asdict(method))
            for name, method in best.items()
        ),
        caption="GEM is compared with plain SGD, the others with GEM.",
        holm=True,
    )
