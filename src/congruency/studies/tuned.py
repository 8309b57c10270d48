"""Methods compared at their best: each with every learning rate of one grid first, then at its own rate on fresh seeds.

A family adds the job of a method at a rate, the column that is compared and the texts; see
:mod:`congruency.studies.language.study` and :mod:`congruency.studies.classification.tuned`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic

from rich.console import Console

from congruency.report import charts
from congruency.report.page import Figure
from congruency.studies.conduct import conduct
from congruency.studies.curves import mean_series
from congruency.studies.executor import Place, Runner
from congruency.studies.plan import Column, JobT, Row, Study
from congruency.studies.results import Results, collect
from congruency.studies.statistics import mean_interval
from congruency.studies.store import RunResult, Store
from congruency.training.config import Correction
from congruency.training.methods import BASELINE
from congruency.training.processes import process_count

__all__ = ["FIRST_TUNING_SEED", "STEPS_SAVED", "TunedStudy", "conduct_tuned", "steps_saved"]

FIRST_TUNING_SEED = 10_000
"""Seeds from here on tune learning rates; those below compare methods."""

STEPS_SAVED = Column(key="steps saved", title="Steps saved", digits=0, compared=False)

_CORRECTED = Column(key="corrected_share", title="Corrected, %", scale=100, digits=0)

_LINES_PER_CHART = 5  # beside the baseline: there are no more colours

Finished = Mapping[tuple[str, int], RunResult]


@dataclass(frozen=True, kw_only=True)
class TunedStudy(Generic[JobT]):
    """Both stages of a comparison as plain data.

    Attributes:
        name: of the study, in records.
        title, lead: what is trained, and how.
        job: the run of a method at a learning rate, but for its seed.
        methods: what is compared, the baseline among them.
        rates: the grid, the same for all methods; with one rate there is nothing to tune.
        column: what is tuned and compared; lower is better.
        curve: the array of a finished run that has the column's value after every evaluation; ``"steps"`` has when.
        notes: as in :class:`congruency.studies.plan.Study`.
    """

    name: str
    title: str
    lead: str
    job: Callable[[Correction, float], JobT]
    methods: Mapping[str, Correction]
    rates: Sequence[float]
    column: Column
    curve: str
    notes: tuple[tuple[str, str], ...] = ()

    def tuning(self) -> Study[JobT]:
        """Return the first stage: every method with every learning rate."""
        rows = tuple(
            Row(name=f"{name}, {rate:g}", jobs=(self.job(method, rate),), settings={"method": name, "rate": rate})
            for name, method in self.methods.items()
            for rate in self.rates
        )
        return Study(
            name="tuning", title=f"{self.title}: learning rates", lead=self.lead, rows=rows,
            columns=(replace(self.column, compared=False),), extras=(_CORRECTED,), notes=self.notes[:1],
        )  # fmt: skip

    def best_rates(self, results: Results) -> dict[str, float]:
        """Return each method's rate with the lowest mean in the tuning; a run that diverged counts as infinite."""
        best: dict[str, tuple[float, float]] = {}
        for row in self.tuning().rows:
            mean = mean_interval(results[row.name][self.column.key]).mean
            found = (mean if math.isfinite(mean) else math.inf, row.settings["rate"])
            best[row.settings["method"]] = min(found, best.get(row.settings["method"], found))
        return {name: rate for name, (_, rate) in best.items()}

    def comparison(self, rates: Mapping[str, float], tuned_on: Sequence[int] = ()) -> Study[JobT]:
        """Return the second stage: every method at its own learning rate, against the baseline.

        Args:
            rates: the learning rate of every method.
            tuned_on: the seeds of the tuning, for its cost.
        """
        rows = tuple(
            Row(
                name=name,
                jobs=(self.job(method, rates[name]),),
                against=None if name == BASELINE else BASELINE,
                settings={"method": name, "rate": rates[name]},
            )
            for name, method in self.methods.items()
        )
        sentences = [self.lead, f"Learning rates: {', '.join(f'{name} {rates[name]:g}' for name in self.methods)}."]
        if len(self.rates) > 1 and tuned_on:
            grid, runs = ", ".join(f"{rate:g}" for rate in self.rates), len(self.rates) * len(tuned_on)
            seeds = f"{len(tuned_on)} seed{'s' if len(tuned_on) > 1 else ''}"
            sentences.append(f"Chosen from {grid} on {seeds} of their own, {runs} runs per method.")
        edge = [name for name in self.methods if len(self.rates) > 1 and rates[name] in _ends(self.rates)]
        if edge:
            sentences.append(f"At the edge of the grid, so that a better rate may lie beyond: {', '.join(edge)}.")
        return Study(
            name=self.name, title=f"{self.title}: methods at their best learning rates", lead=" ".join(sentences),
            rows=rows, columns=(self.column, STEPS_SAVED), extras=(_CORRECTED,), notes=(*self.notes, *_NOTES),
            holm=True,
        )  # fmt: skip

    def with_steps_saved(self, study: Study[JobT], results: Results, finished: Finished) -> Results:
        """Return the results with the steps that each method saves at each seed; nan without the baseline's run."""
        plain = next((row.jobs[0].digest() for row in study.rows if row.name == BASELINE), "")
        found = dict(results)
        for row in study.rows:
            if row.against is None or row.name not in results:
                continue
            digest, seeds = row.jobs[0].digest(), [int(seed) for seed in results[row.name]["seed"]]
            saved = [
                steps_saved(finished[digest, seed].arrays, finished[plain, seed].arrays, self.curve)
                if (plain, seed) in finished
                else math.nan
                for seed in seeds
            ]
            found[row.name] = {**results[row.name], STEPS_SAVED.key: saved}
        return found

    def learning_curves(self, study: Study[JobT], results: Results, finished: Finished) -> tuple[list[Figure], str]:
        """Return charts of the column by step, and how to read them."""
        lines = {}
        for row in (row for row in study.rows if row.name in results):
            seeds = [int(seed) for seed in results[row.name]["seed"]]
            runs = {seed: finished[row.jobs[0].digest(), seed].arrays for seed in seeds}
            values = {seed: run[self.curve] for seed, run in runs.items()}
            lines[row.name] = mean_series(row.name, next(iter(runs.values()))["steps"], values)
        return self._charts(lines, title=f"{self._what} by step", x_label="step"), (
            "Means over the seeds. Bands: their 95 % intervals. Point at a chart for its values."
        )

    def rate_curves(self, study: Study[JobT], results: Results, finished: Finished) -> tuple[list[Figure], str]:
        """Return charts of the column by learning rate, and how to read them."""
        rates = sorted({row.settings["rate"] for row in study.rows})
        lines = {}
        for method in dict.fromkeys(row.settings["method"] for row in study.rows):
            names = [study.find(method=method, rate=rate)[0].name for rate in rates]
            found = [mean_interval(results.get(name, {}).get(self.column.key, [])) for name in names]
            means, margins = [one.mean for one in found], [one.margin for one in found]
            lines[method] = charts.Series(method, list(range(len(rates))), means, margins, bars=True)
        names = [f"{rate:g}" for rate in rates]
        shown = self._charts(lines, title=f"{self._what} by learning rate", x_label="learning rate", x_names=names)
        return shown, "Means over the tuning seeds; bars: their 95 % intervals. Grey: the baseline."

    @property
    def _what(self) -> str:
        return self.column.heading.partition(",")[0]

    def _charts(self, lines: Mapping[str, charts.Series], **labels: Any) -> list[Figure]:
        """The baseline with a few methods per chart."""
        first = [lines[BASELINE]] if BASELINE in lines else []
        others = [line for name, line in lines.items() if name != BASELINE]
        parts = [others[i : i + _LINES_PER_CHART] for i in range(0, len(others), _LINES_PER_CHART)] or [[]]
        drawn = [part for part in ([*first, *part] for part in parts) if part]
        return [
            Figure(labels["title"], charts.line_chart(part, y_label=self.column.heading, group=self.name, **labels))
            for part in drawn
        ]


_NOTES = (
    (
        "Steps saved",
        "How many steps before the end the method reaches the baseline's final value at the same seed, by "
        "interpolation between evaluations. Negative: how many steps before the end the baseline reaches the method's.",
    ),
    (
        "Tuning",
        "Every method was run with every learning rate of the same grid on seeds of their own; the rate with the "
        "lowest mean is used for the seeds of the comparison.",
    ),
    (
        "The methods",
        "cautious: congruency.Cautious; plain: without rescaling; decay: weight decay only where it agrees with the "
        "update. dcl-W, floor-W, paper-W: DCL on all parameters with a window of W steps: by default, with the floor "
        "alone, by the paper's equations; update: on the update. anchor-W: the paper's published code (margin 0.5).",
    ),
)


def steps_saved(curves: Mapping[str, Any], baseline: Mapping[str, Any], name: str) -> float:
    """Return how many steps before the end a run reaches the baseline's final value; negative if only the reverse does.

    Both have ``"steps"`` and ``name``, one value per evaluation, lower being better.
    """
    own, other = curves[name][-1], baseline[name][-1]
    if own <= other:
        return float(curves["steps"][-1]) - _reached(curves, name, other)
    return _reached(baseline, name, own) - float(baseline["steps"][-1])


def _reached(curves: Mapping[str, Any], name: str, target: float) -> float:
    """The step at which a curve first falls to ``target``; nan if it never does."""
    points = list(zip(curves["steps"], curves[name], strict=True))
    if points[0][1] <= target:
        return float(points[0][0])
    for (step, value), (next_step, next_value) in pairwise(points):
        if next_value <= target < value:
            return float(step + (next_step - step) * (value - target) / (value - next_value))
    return math.nan


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def conduct_tuned(
    tuned: TunedStudy[JobT],
    runner: Callable[[Path], Runner[JobT]],
    out: Path,
    *,
    seeds: Sequence[int],
    tuning_seeds: Sequence[int],
    place: Place,
    settings: Mapping[str, Any],
    remembered: Mapping[str, Any],
    made: Callable[[Mapping[str, Any]], str],
    command: str,
    console: Console | None = None,
) -> int:
    """Tune every method's learning rate, compare the methods at their best, write both pages; return the exit code.

    Args:
        runner: makes the runner that keeps its runs in a folder.
        seeds, tuning_seeds: of the comparison, and of the tuning; they must differ.
        settings, remembered: as :func:`congruency.studies.conduct.conduct` keeps them, in both folders.
        made: how the runs of a folder were computed, from its settings.
    """
    if process_count() > 1:
        raise ValueError("this study shares its work by --processes; leave torchrun out")
    if set(seeds) & set(tuning_seeds):
        raise ValueError("the seeds of tuning and comparison must differ; choose another --first-seed")

    def stage(study: Study[JobT], own: Sequence[int], folder: Path, **more: Any) -> int:
        return conduct(
            study, runner(folder), own, folder, place=place, settings=settings, remembered=remembered,
            command=command, made=lambda: made(Store(folder).settings() or {**settings, **remembered}),
            console=console, **more,
        )  # fmt: skip

    chosen = dict.fromkeys(tuned.methods, tuned.rates[0])
    if len(tuned.rates) > 1:
        study, folder = tuned.tuning(), out / "tuning"
        code = stage(study, tuning_seeds, folder, figures=tuned.rate_curves)
        if code or Store(folder).pending(study.runs(tuning_seeds)):
            return code
        chosen = tuned.best_rates(collect(study, Store(folder).load()))
    study = tuned.comparison(chosen, tuning_seeds)
    return stage(study, seeds, out, figures=tuned.learning_curves, derived=tuned.with_steps_saved)
