"""The two stages of the study as plain data: learning rates tuned for every method, then methods compared."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from congruency.language import METHODS, PRESETS, LanguageSetup, method_named
from congruency.language.methods import BASELINE
from congruency.report import charts
from congruency.report.page import Figure
from congruency.studies.curves import mean_series
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import Results
from congruency.studies.statistics import mean_interval
from congruency.studies.store import RunResult
from congruency.training.config import Correction

__all__ = [
    "RATES", "SETUPS", "STEPS_SAVED", "VALIDATION_LOSS", "LanguageJob", "best_rates", "choose_methods",
    "comparison_study", "learning_curves", "rate_curves", "steps_saved", "tuning_study", "with_steps_saved",
]  # fmt: skip

SETUPS: dict[str, LanguageSetup] = {
    "tiny": LanguageSetup(
        shape=PRESETS["tiny"], steps=200, evaluate_steps=20, batch_size=16, warmup=20, evaluation_batches=16
    ),
    "medium": LanguageSetup(
        shape=PRESETS["medium"], steps=500, evaluate_steps=50, batch_size=32, warmup=50, evaluation_batches=16
    ),
    "10m": LanguageSetup(shape=PRESETS["10m"]),
    "100m": LanguageSetup(shape=PRESETS["100m"], steps=2000, warmup=200, evaluation_batches=16),
}
"""The runs of each size, except for learning rate and seed."""

RATES: dict[str, tuple[float, ...]] = {
    "tiny": (0.001, 0.002, 0.004, 0.008, 0.016),
    "medium": (0.001, 0.002, 0.004, 0.008, 0.016),
    "10m": (0.0005, 0.001, 0.002, 0.004, 0.008),
    "100m": (0.00025, 0.0005, 0.001, 0.002, 0.004),
}
"""The learning rates of each size, the same for every method."""

VALIDATION_LOSS = Column(key="validation loss", title="Validation loss", unit="nats per byte", digits=4)
STEPS_SAVED = Column(key="steps saved", title="Steps saved", digits=0, compared=False)

_LINES_PER_CHART = 5  # beside the baseline: there are no more colours
_EXTRAS = (
    Column(key="corrected_share", title="Corrected, %", scale=100, digits=0),
    Column(key="bytes_per_second", title="kB/s", scale=0.001, digits=0),
)
_NOTES = (
    ("Validation loss", "Cross entropy of the next byte on fixed windows of held-out files, in nats per byte."),
    (
        "Steps saved",
        "How many steps before the end the method reaches the baseline's final validation loss at the same seed, by "
        "interpolation between evaluations. Negative: how many steps before the end the baseline reaches the method's.",
    ),
    (
        "Tuning",
        "Every method was run with every learning rate of the same grid on seeds of their own; the rate with the "
        "lowest mean validation loss is used for the seeds of the comparison.",
    ),
    (
        "The methods",
        "cautious: congruency.Cautious; plain: without rescaling; decay: weight decay only where it agrees with the "
        "update. dcl-W, floor-W, paper-W: DCL on all parameters with a window of W steps: by default, with the floor "
        "alone, by the paper's equations; update: on the update. anchor-W: the paper's published code (margin 0.5).",
    ),
)


@dataclass(frozen=True)
class LanguageJob:
    """One model of the study, except for its seed."""

    setup: LanguageSetup
    method: Correction

    @property
    def label(self) -> str:
        return ""

    @property
    def columns(self) -> Mapping[str, str]:
        return {VALIDATION_LOSS.key: "validation_loss"}

    def digest(self) -> str:
        """Settings of the method at their defaults are left out, so that new ones leave finished runs finished."""
        setup = {name: value for name, value in asdict(self.setup).items() if name != "seed"}
        usual = asdict(Correction())
        method = {name: value for name, value in asdict(self.method).items() if value != usual.get(name)}
        return hashlib.sha256(json.dumps([setup, method], sort_keys=True).encode()).hexdigest()[:12]


def choose_methods(names: Sequence[str] = ()) -> dict[str, Correction]:
    """Return these methods, and the baseline that they are compared with; all where none is given."""
    chosen = {name: method_named(name) for name in names} if names else METHODS
    return {BASELINE: METHODS[BASELINE], **chosen}


def tuning_study(
    size: str, setup: LanguageSetup, methods: Mapping[str, Correction], rates: Sequence[float]
) -> Study[LanguageJob]:
    """Return the first stage: every method with every learning rate."""
    rows = tuple(
        Row(
            name=f"{name}, {rate:g}",
            jobs=(LanguageJob(replace(setup, learning_rate=rate), method),),
            settings={"method": name, "rate": rate},
        )
        for name, method in methods.items()
        for rate in rates
    )
    column = replace(VALIDATION_LOSS, compared=False)
    title = f"Language modelling, GPT {size}: learning rates"
    return Study(
        name="tuning", title=title, lead=_lead(setup), rows=rows, columns=(column,), extras=_EXTRAS, notes=_NOTES[:1]
    )


def best_rates(study: Study[LanguageJob], results: Results) -> dict[str, float]:
    """Return each method's learning rate with the lowest mean validation loss; runs that diverged count as infinite."""
    best: dict[str, tuple[float, float]] = {}
    for row in study.rows:
        mean = mean_interval(results[row.name][VALIDATION_LOSS.key]).mean
        found = (mean if math.isfinite(mean) else math.inf, row.settings["rate"])
        best[row.settings["method"]] = min(found, best.get(row.settings["method"], found))
    return {name: rate for name, (_, rate) in best.items()}


def comparison_study(
    size: str,
    setup: LanguageSetup,
    methods: Mapping[str, Correction],
    rates: Mapping[str, float],
    grid: Sequence[float] = (),
) -> Study[LanguageJob]:
    """Return the second stage: every method at its own learning rate, against the baseline.

    Args:
        rates: The learning rate of every method.
        grid: The rates they were chosen from; a choice at its edge is reported.
    """
    rows = tuple(
        Row(
            name=name,
            jobs=(LanguageJob(replace(setup, learning_rate=rates[name]), method),),
            against=None if name == BASELINE else BASELINE,
            settings={"method": name, "rate": rates[name]},
        )
        for name, method in methods.items()
    )
    listed = ", ".join(f"{name} {rates[name]:g}" for name in methods)
    edge = [name for name in methods if len(grid) > 1 and rates[name] in (min(grid), max(grid))]
    beyond = f" At the edge of the grid, so that a better rate may lie beyond: {', '.join(edge)}." if edge else ""
    return Study(
        name="language",
        title=f"Language modelling, GPT {size}: methods at their best learning rates",
        lead=f"{_lead(setup)} Learning rates: {listed}.{beyond}",
        rows=rows,
        columns=(VALIDATION_LOSS, STEPS_SAVED),
        extras=_EXTRAS,
        notes=_NOTES,
        holm=True,
    )


def _lead(setup: LanguageSetup) -> str:
    shape = setup.shape
    return (
        f"A byte-level GPT of width {shape.width} and {shape.layers} layers trained with AdamW for {setup.steps} steps "
        f"of {setup.batch_size} windows of {shape.context} bytes. Within a seed all methods begin with the same "
        "weights and see the same windows."
    )


def with_steps_saved(
    study: Study[LanguageJob], results: Results, finished: Mapping[tuple[str, int], RunResult]
) -> Results:
    """Return the results with the steps that each method saves at each seed; nan without the baseline's run."""
    plain = next((row.jobs[0].digest() for row in study.rows if row.name == BASELINE), "")
    found = dict(results)
    for row in study.rows:
        if row.against is None or row.name not in results:
            continue
        digest, seeds = row.jobs[0].digest(), [int(seed) for seed in results[row.name]["seed"]]
        saved = [
            steps_saved(finished[digest, seed].arrays, finished[plain, seed].arrays)
            if (plain, seed) in finished
            else math.nan
            for seed in seeds
        ]
        found[row.name] = {**results[row.name], STEPS_SAVED.key: saved}
    return found


def steps_saved(curves: Mapping[str, Any], baseline: Mapping[str, Any]) -> float:
    """Return how many steps before the end a run reaches the baseline's final loss; negative if only the reverse holds.

    Both have ``"steps"`` and ``"validation_loss"``, one value per evaluation.
    """
    own, other = curves["validation_loss"][-1], baseline["validation_loss"][-1]
    if own <= other:
        return float(curves["steps"][-1]) - _reached(curves, other)
    return _reached(baseline, own) - float(baseline["steps"][-1])


def _reached(curves: Mapping[str, Any], target: float) -> float:
    """The step at which a curve first falls to ``target``; nan if it never does."""
    points = list(zip(curves["steps"], curves["validation_loss"], strict=True))
    if points[0][1] <= target:
        return float(points[0][0])
    for (step, loss), (next_step, next_loss) in pairwise(points):
        if next_loss <= target < loss:
            return float(step + (next_step - step) * (loss - target) / (loss - next_loss))
    return math.nan


def learning_curves(
    study: Study[LanguageJob], results: Results, finished: Mapping[tuple[str, int], RunResult]
) -> tuple[list[Figure], str]:
    """Return charts of the validation loss by step, and how to read them."""
    lines = {}
    for row in (row for row in study.rows if row.name in results):
        seeds = [int(seed) for seed in results[row.name]["seed"]]
        runs = {seed: finished[row.jobs[0].digest(), seed].arrays for seed in seeds}
        losses = {seed: run["validation_loss"] for seed, run in runs.items()}
        lines[row.name] = mean_series(row.name, next(iter(runs.values()))["steps"], losses)
    return _charts(lines, title="Validation loss by step", x_label="step"), (
        "Means over the seeds. Bands: their 95 % intervals. Point at a chart for its values."
    )


def rate_curves(
    study: Study[LanguageJob], results: Results, finished: Mapping[tuple[str, int], RunResult]
) -> tuple[list[Figure], str]:
    """Return charts of the validation loss by learning rate, and how to read them."""
    rates = sorted({row.settings["rate"] for row in study.rows})
    lines = {}
    for method in dict.fromkeys(row.settings["method"] for row in study.rows):
        names = [study.find(method=method, rate=rate)[0].name for rate in rates]
        found = [mean_interval(results.get(name, {}).get(VALIDATION_LOSS.key, [])) for name in names]
        places = list(range(len(rates)))
        means, margins = [one.mean for one in found], [one.margin for one in found]
        lines[method] = charts.Series(method, places, means, margins, bars=True)
    shown = _charts(
        lines,
        title="Validation loss by learning rate",
        x_label="learning rate",
        x_names=[f"{rate:g}" for rate in rates],
    )
    return shown, "Means over the tuning seeds; bars: their 95 % intervals. Grey: the baseline."


def _charts(lines: Mapping[str, charts.Series], **labels: Any) -> list[Figure]:
    """The baseline with a few methods per chart."""
    first = [lines[BASELINE]] if BASELINE in lines else []
    others = [line for name, line in lines.items() if name != BASELINE]
    parts = [others[i : i + _LINES_PER_CHART] for i in range(0, len(others), _LINES_PER_CHART)] or [[]]
    drawn = [part for part in ([*first, *part] for part in parts) if part]
    return [
        Figure(labels["title"], charts.line_chart(part, y_label=VALIDATION_LOSS.heading, group="loss", **labels))
        for part in drawn
    ]
