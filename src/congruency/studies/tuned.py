"""Compare tuned methods: each is tuned on the same grid first, then run at its best learning rate on new seeds.

A method may be a family of variants (windows, margins, strengths); tuning then chooses variant and rate together.

A task family adds the job of a method at a rate, the compared column and the texts; see
:mod:`congruency.studies.language.study` and :mod:`congruency.studies.classification.tuned`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic

from congruency.report.page import Figure
from congruency.studies.conduct import Finished, conduct
from congruency.studies.curves import curve_charts, learning_curves, setting_series
from congruency.studies.executor import Place
from congruency.studies.network_runs import NetworkRunner, made_by
from congruency.studies.plan import Column, JobT, Row, Study
from congruency.studies.results import Results, collect
from congruency.studies.statistics import mean_interval
from congruency.studies.store import Store
from congruency.training.config import Correction
from congruency.training.methods import BASELINE, METHODS

FIRST_TUNING_SEED = 10_000
"""Seeds from this one on are for tuning; lower ones are for the comparison."""

STEPS_SAVED = Column(key="steps saved", title="Steps saved", digits=0, compared=False)

_CORRECTED = Column(key="corrected_share", title="Corrected, %", scale=100, digits=0)

Methods = Mapping[str, Correction | Mapping[str, Correction]]
"""The compared methods by name: a correction each, or a family of named variants."""


@dataclass(frozen=True)
class Choice:
    """A variant of a method at a learning rate."""

    variant: str
    rate: float


@dataclass(frozen=True, kw_only=True)
class TunedStudy(Generic[JobT]):
    """Both stages of a comparison, tuning and comparison, as plain data.

    Attributes:
        name: the study's name, in records.
        title, lead: what is trained, and how.
        job: returns the run of a method at a learning rate, without its seed.
        methods: the compared methods with the baseline: a correction each, or a family of named variants.
        rates: the grid of learning rates; with one rate and no variants nothing is tuned.
        column: the metric that is tuned and compared; lower is better.
        curve: the name of a finished run's array with the metric at every evaluation; ``"steps"`` has the steps,
            ``"train_loss"`` the training loss.
        notes: as in :class:`congruency.studies.plan.Study`.
    """

    name: str
    title: str
    lead: str
    job: Callable[[Correction, float], JobT]
    methods: Methods
    rates: Sequence[float]
    column: Column
    curve: str
    notes: tuple[tuple[str, str], ...] = ()

    def variants(self, name: str) -> Mapping[str, Correction]:
        """Return the variants of a method by name; a single correction is its only variant."""
        method = self.methods[name]
        return {name: method} if isinstance(method, Correction) else method

    def grid(self, name: str) -> list[Choice]:
        """Return the tuning grid of a method: its variants at every rate.

        All methods get about the same number of runs: fewer variants are offset by a finer grid of rates.
        """
        variants, most = self.variants(name), max(len(self.variants(each)) for each in self.methods)
        rates = finer(self.rates, most // len(variants))
        return [Choice(variant, rate) for variant in variants for rate in rates]

    @property
    def tunes(self) -> bool:
        """Whether any method has more than one choice."""
        return any(len(self.grid(name)) > 1 for name in self.methods)

    def tuning(self) -> Study[JobT]:
        """Return the first stage: every method at every choice of its grid."""
        rows = tuple(
            Row(
                name=", ".join([name, *([choice.variant] if len(variants) > 1 else []), f"{choice.rate:g}"]),
                jobs=(self.job(variants[choice.variant], choice.rate),),
                settings={"method": name, "variant": choice.variant, "rate": choice.rate},
            )
            for name, variants in ((name, self.variants(name)) for name in self.methods)
            for choice in self.grid(name)
        )
        return Study(
            name="tuning", title=f"{self.title}: learning rates", lead=self.lead, rows=rows,
            columns=(replace(self.column, compared=False),), extras=(_CORRECTED,), notes=self.notes[:1],
        )  # fmt: skip

    def best(self, results: Results) -> dict[str, Choice]:
        """Return each method's choice with the lowest mean in the tuning; a diverged run makes it infinite."""
        best: dict[str, tuple[float, float, str]] = {}
        for row in self.tuning().rows:
            mean, of = mean_interval(results[row.name][self.column.key]).mean, row.settings
            found = (mean if math.isfinite(mean) else math.inf, of["rate"], of["variant"])
            best[of["method"]] = min(found, best.get(of["method"], found))
        return {name: Choice(variant, rate) for name, (_, rate, variant) in best.items()}

    def comparison(self, chosen: Mapping[str, Choice], tuned_on: Sequence[int] = ()) -> Study[JobT]:
        """Return the second stage: every method at its chosen setting, against the baseline.

        Args:
            chosen: the variant and learning rate of every method.
            tuned_on: the tuning seeds, to state the cost of tuning.
        """
        rows = tuple(
            Row(
                name=name,
                jobs=(self.job(self.variants(name)[chosen[name].variant], chosen[name].rate),),
                against=None if name == BASELINE else BASELINE,
                settings={"method": name, "variant": chosen[name].variant, "rate": chosen[name].rate},
            )
            for name in self.methods
        )
        others = {variant for name in self.methods for variant in self.variants(name)} - METHODS.keys()
        how = (_TUNING,) if self.tunes else ()
        notes = (*self.notes, _STEPS_SAVED, *how, _METHODS, *(_OTHER_METHODS if others else ()))
        rates = "their best learning rates" if self.tunes else "one learning rate"
        return Study(
            name=self.name, title=f"{self.title}: methods at {rates}",
            lead=" ".join([self.lead, *self._how_tuned(chosen, tuned_on)]), rows=rows,
            columns=(self.column, STEPS_SAVED), extras=(_CORRECTED,), notes=notes, holm=True,
        )  # fmt: skip

    def _how_tuned(self, chosen: Mapping[str, Choice], tuned_on: Sequence[int]) -> list[str]:
        """Sentences on what tuning chose, from which grid, and at what cost."""
        if not self.tunes:
            return [f"The learning rate is {self.rates[0]:g} for all; nothing is tuned."]
        families = {name: self.variants(name) for name in self.methods if len(self.variants(name)) > 1}
        shown = [f"{name} {c.rate:g}{f' ({c.variant})' if name in families else ''}" for name, c in chosen.items()]
        sentences = [f"Learning rates{' (and variants)' if families else ''}: {', '.join(shown)}."]
        grids = {name: self.grid(name) for name in self.methods}
        if tuned_on and max(map(len, grids.values())) > 1:
            seeds = f"{len(tuned_on)} seed{'s' if len(tuned_on) > 1 else ''}"
            costs = {name: len(grid) * len(tuned_on) for name, grid in grids.items()}
            cost = ", ".join(f"{name} {runs}" for name, runs in costs.items())
            cost = f"{costs[BASELINE]} runs per method" if len(set(costs.values())) == 1 else f"runs: {cost}"
            sentences.append(f"Chosen from {_listed(self.rates)} on {seeds} of their own, {cost}.")
            sentences += [f"Variants of {name}: {', '.join(variants)}." for name, variants in families.items()]
            by_rates: dict[tuple[float, ...], list[str]] = {}
            for name, grid in grids.items():
                by_rates.setdefault(tuple(dict.fromkeys(choice.rate for choice in grid)), []).append(name)
            others = {rates: names for rates, names in by_rates.items() if rates != tuple(self.rates)}
            sentences += [
                f"With fewer variants and therefore more rates, {_listed(rates)}: {', '.join(names)}."
                for rates, names in others.items()
            ]
        edge = [name for name, choice in chosen.items() if _at_an_end(choice.rate, grids[name])]
        if edge:
            sentences.append(f"At the edge of the grid, so that a better rate may lie beyond: {', '.join(edge)}.")
        return sentences

    def with_steps_saved(self, study: Study[JobT], results: Results, finished: Finished) -> Results:
        """Add the steps that each method saves at each seed to the results; nan without the baseline's run."""
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
        """Return charts of the column and of the training loss by step, and a note on reading them."""
        runs = {
            row.name: {int(s): finished[row.jobs[0].digest(), int(s)].arrays for s in results[row.name]["seed"]}
            for row in study.rows
            if row.name in results
        }
        shown = learning_curves(runs, self.curve, self.column.heading)
        return shown, "Means over the seeds. Bands: their 95 % intervals. Point at a chart for its values."

    def rate_curves(self, study: Study[JobT], results: Results, finished: Finished) -> tuple[list[Figure], str]:
        """Return charts of the column by learning rate, and a note on reading them."""
        places = {rate: i for i, rate in enumerate(sorted({row.settings["rate"] for row in study.rows}))}
        rows: dict[str, list[Row[JobT]]] = {}
        for row in sorted(study.rows, key=lambda row: places[row.settings["rate"]]):
            family, variant = row.settings["method"], row.settings["variant"]
            rows.setdefault(family if family == BASELINE else variant, []).append(row)
        lines = [
            setting_series(
                variant,
                [results.get(row.name, {}).get(self.column.key, []) for row in own],
                [places[row.settings["rate"]] for row in own],
            )
            for variant, own in rows.items()
        ]
        shown = curve_charts(
            lines, title=f"{self.column.short} by learning rate", y_label=self.column.heading, group=self.name,
            x_label="learning rate", x_names=[f"{rate:g}" for rate in places],
        )  # fmt: skip
        return shown, "Means over the tuning seeds; bars: their 95 % intervals. Grey: the baseline."


_STEPS_SAVED = (
    "Steps saved",
    "How many steps before the end the method reaches the baseline's final value at the same seed, by "
    "interpolation between evaluations. Negative: how many steps before the end the baseline reaches the method's.",
)
_TUNING = (
    "Tuning",
    "Every method was run with every learning rate of the same grid on seeds of their own; the rate with the "
    "lowest mean is used for the seeds of the comparison.",
)
_METHODS = (
    "The methods",
    "cautious: congruency.Cautious; plain: without rescaling; decay: weight decay only where it agrees with the "
    "update. dcl-W, floor-W, paper-W: DCL on all parameters with a window of W steps: by default, with the floor "
    "alone, by the paper's equations; update: on the update. anchor-W: the paper's published code (margin 0.5).",
)
_OTHER_METHODS = (
    (
        "More methods",
        "gem: the paper's GEM on the last layer, margin 0.5 or as named. cautious-bounded: rescaled by at most 2. "
        "head-W, head-anchor-W: the paper's equations and its published code on the last layer, as in its tables. "
        "update-paper-W: its equations on the update. anchor-W-M, anchor-update-W-M: drawn toward a reference that is "
        "renewed every W steps, with a margin of M; anchor-start-M: toward the weights at the start. l2sp-A: L2-SP of "
        "strength A on all layers but the last, 0.01 on that one, instead of weight decay.",
    ),
)


def steps_saved(curves: Mapping[str, Any], baseline: Mapping[str, Any], name: str) -> float:
    """Return how many steps before its end a run reaches the baseline's final value.

    Negative if the run never reaches it: the steps before the end at which the baseline reaches the run's final value.
    Both have ``"steps"`` and ``name``, one value per evaluation; lower is better.
    """
    own, other = curves[name][-1], baseline[name][-1]
    if own <= other:
        return float(curves["steps"][-1]) - _reached(curves, name, other)
    return _reached(baseline, name, own) - float(baseline["steps"][-1])


def _reached(curves: Mapping[str, Any], name: str, target: float) -> float:
    """Return the step at which a curve first falls to ``target``, interpolated; nan if it never does."""
    points = list(zip(curves["steps"], curves[name], strict=True))
    if points[0][1] <= target:
        return float(points[0][0])
    for (step, value), (next_step, next_value) in pairwise(points):
        if next_value <= target < value:
            return float(step + (next_step - step) * (value - target) / (value - next_value))
    return math.nan


def finer(rates: Sequence[float], times: int) -> tuple[float, ...]:
    """Return ``times`` as many rates: the given ones, and others between and beyond them, evenly on a log scale.

    A single rate is treated as if the next were its double.

    >>> finer((0.1, 0.4), 2)
    (0.05, 0.1, 0.2, 0.4)
    """
    if times < 2:
        return tuple(rates)
    own = sorted(rates) if len(rates) > 1 else [rates[0], 2 * rates[0]]

    def at(place: int) -> float:
        below = min(max(place // times, 0), len(own) - 2)
        return float(own[below] * (own[below + 1] / own[below]) ** (place / times - below))

    return tuple(float(f"{at(place):.3g}") for place in range(-(times // 2), times * len(rates) - times // 2))


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _at_an_end(rate: float, grid: Sequence[Choice]) -> bool:
    rates = {choice.rate for choice in grid}
    return len(rates) > 1 and rate in (min(rates), max(rates))


def conduct_tuned(
    tuned: TunedStudy[JobT],
    runner: NetworkRunner[JobT],
    *,
    seeds: Sequence[int],
    tuning_seeds: int,
    place: Place,
    settings: Mapping[str, Any],
    command: str,
) -> int:
    """Tune every method, compare the methods at their best, write both pages; return the exit code.

    Args:
        runner: Executes the runs; its folder is the comparison's.
        seeds: Seeds of the comparison.
        tuning_seeds: Number of tuning seeds, from :data:`FIRST_TUNING_SEED` on.
        settings: Settings that all runs must share, in both folders.
    """
    tuning, searched = tuned.tuning(), range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + tuning_seeds)

    def stage(study: Study[JobT], own: Sequence[int], folder: Path) -> int:
        first = study is tuning
        return conduct(
            study, replace(runner, folder=folder), own, folder, place=place, settings=settings,
            remembered=runner.machine.remembered, command=command, made=made_by,
            figures=tuned.rate_curves if first else tuned.learning_curves,
            derived=None if first else tuned.with_steps_saved,
        )  # fmt: skip

    if not tuned.tunes:
        return stage(tuned.comparison({name: tuned.grid(name)[0] for name in tuned.methods}), seeds, runner.folder)

    def comparison(results: Results) -> Study[JobT]:
        return tuned.comparison(tuned.best(results), searched)

    return conduct_stages(tuning, searched, comparison, seeds, stage, runner.folder)


def conduct_stages(
    tuning: Study[JobT],
    tuning_seeds: Sequence[int],
    comparison: Callable[[Results], Study[JobT]],
    seeds: Sequence[int],
    stage: Callable[[Study[JobT], Sequence[int], Path], int],
    out: Path,
) -> int:
    """Conduct the tuning in ``out/tuning``, then the comparison chosen by its results; return the exit code.

    ``stage`` conducts a study with given seeds in a given folder.
    """
    if set(seeds) & set(tuning_seeds):
        raise ValueError("the seeds of tuning and comparison must differ; choose another --first-seed")
    store = Store(out / "tuning")
    code = stage(tuning, tuning_seeds, store.folder)
    if code or store.pending(tuning.runs(tuning_seeds)):
        return code
    return stage(comparison(collect(tuning, store.load())), seeds, out)
