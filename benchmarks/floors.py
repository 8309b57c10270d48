"""Which floor of congruency: as a number, relative to the dimension, or to the run's own distribution of congruency.

A floor lets DCL correct a step only where the disagreement is weak, ``-floor <= nu < 0``. Every rule for it is run as
the floor alone (``returning=False``) on quadratics, on the digits with SGD and on a tiny GPT with AdamW, window 50:

- a number, the same everywhere;
- ``k / sqrt(n)``, n the number of parameters: so far is the cosine of two random vectors from 0;
- a quantile of ``-nu`` over the steps of uncorrected runs in which nu is negative.

The learning rate of every rule is chosen on seeds of its own from one grid per task; the seeds shown are others.

    python -m benchmarks.floors --processes 2 --out benchmarks/results/floors.json --page docs/stability.md
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD, AdamW, Optimizer

import congruency
from benchmarks import stability
from congruency.language import read_corpus
from congruency.studies import demo
from congruency.studies.statistics import holm, mean_interval, paired_difference

WINDOW, TUNING_SEEDS, FIRST_TUNING_SEED = 50, 3, 1000


@dataclass(frozen=True)
class Rule:
    """How a floor is chosen. Exactly one of the three is given; none of them is the paper's form."""

    name: str
    number: float | None = None
    dimensions: float | None = None  # k in k / sqrt(n)
    quantile: float | None = None
    returning: bool = False

    def floor(self, size: int, disagreements: Sequence[float]) -> float | None:
        """The floor for so many parameters, whose uncorrected runs had these -nu > 0."""
        if self.dimensions is not None:
            return min(1.0, self.dimensions / math.sqrt(size))
        if self.quantile is not None:
            if not disagreements:  # nothing to correct
                return 1.0
            return float(torch.quantile(torch.tensor(disagreements, dtype=torch.float64), self.quantile))
        return self.number


PLAIN = Rule("no correction")
RULES = [
    PLAIN,
    Rule("`floor=None`: the paper's form"),
    *(Rule(f"{number:g}", number=number) for number in (0.01, 0.03, 0.1, 0.3)),
    *(Rule(f"{k:g}/√n", dimensions=k) for k in (1.0, 3.0, 10.0)),
    *(Rule(f"quantile {q:g}", quantile=q) for q in (0.1, 0.25, 0.5)),
    Rule("0.3 and `returning`: the default", number=0.3, returning=True),
]


@dataclass(frozen=True)
class Problem:
    """A task of the demonstration with an optimizer, the grid of its learning rates, and how many seeds are shown."""

    task: demo.Task
    optimizer: Callable[..., Optimizer]
    rates: Sequence[float]
    seeds: int

    def at(self, rate: float) -> demo.Task:
        """The task at a learning rate."""
        return replace(self.task, optimizer=lambda model: self.optimizer(model.parameters(), lr=rate))


@cache
def problems() -> dict[str, Problem]:
    """What is trained, by name."""
    digits, gpt = demo.digits_task(epochs=25), demo.language_task(read_corpus(), steps=200)
    return {
        "digits, SGD": Problem(digits, SGD, (0.1, 0.2, 0.4, 0.8), 20),
        "digits, momentum 0.9": Problem(digits, partial(SGD, momentum=0.9), (0.0125, 0.025, 0.05, 0.1, 0.2), 20),
        "GPT, AdamW": Problem(gpt, AdamW, (0.001, 0.002, 0.004, 0.008), 8),
    }


def attach(rule: Rule, floor: float | None, optimizer: Optimizer, **settings: Any) -> congruency.DCL | None:
    """DCL by a rule, nothing for no correction."""
    if rule == PLAIN:
        return None
    return congruency.DCL(optimizer, window=WINDOW, floor=floor, returning=rule.returning, **settings)


def watch(optimizer: Optimizer, found: list[float], **settings: Any) -> None:
    """Add -nu of every step with nu < 0 to ``found``, and correct nothing."""
    dcl = congruency.DCL(optimizer, window=WINDOW, floor=1e-300, returning=False, **settings)
    optimizer.register_step_post_hook(
        lambda *_: found.extend(-nu for nu in dcl.stats.congruency.flatten().tolist() if nu < 0)
    )


def trained(name: str, rule: Rule, floor: float | None, rate: float, seed: int) -> dict[str, float]:
    """The metric at the end of a run, and the share of its steps that were corrected, in percent."""
    problem = problems()[name]
    run = demo.train(problem.at(rate), lambda model, optimizer: attach(rule, floor, optimizer), seed)
    return {"result": run.metrics[problem.task.metric], "corrected": run.metrics["changed"]}


def disagreements(name: str, rate: float, seed: int) -> list[float]:
    """-nu of the steps of an uncorrected run in which nu is negative."""
    found: list[float] = []
    demo.train(problems()[name].at(rate), lambda model, optimizer: watch(optimizer, found), seed)
    return found


def train_all(pool: Any, name: str) -> dict[str, dict[str, Any]]:
    """By rule: its floor, its learning rate, and its runs."""
    problem = problems()[name]
    size = sum(parameter.numel() for parameter in problem.task.model().parameters())
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + TUNING_SEEDS)
    grid = [(rate, seed) for rate in problem.rates for seed in tuning]
    plain = pool.starmap(trained, [(name, PLAIN, None, *cell) for cell in grid])
    usual, _ = _best(grid, plain)
    own = [nu for run in pool.starmap(disagreements, [(name, usual, seed) for seed in tuning]) for nu in run]
    found: dict[str, dict[str, Any]] = {}
    for rule in RULES:
        floor = rule.floor(size, own)
        cells = plain if rule == PLAIN else pool.starmap(trained, [(name, rule, floor, *cell) for cell in grid])
        rate, tuned = _best(grid, cells)
        runs = pool.starmap(trained, [(name, rule, floor, rate, seed) for seed in range(problem.seeds)])
        found[rule.name] = {"floor": floor, "rate": rate, "tuning": tuned, "runs": runs}
        results = mean_interval([run["result"] for run in runs])
        print(f"{name}; {rule.name}; {floor}; rate {rate}; {results.mean:.4f} ± {results.margin:.4f}", flush=True)
    return found


def _best(grid: Sequence[tuple[float, int]], cells: Sequence[dict[str, float]]) -> tuple[float, dict[str, float]]:
    """The rate with the lowest mean, a diverged run counting as infinite; and every rate's mean."""
    means: dict[float, float] = {}
    for rate in dict.fromkeys(rate for rate, _ in grid):
        results = [cell["result"] for (other, _), cell in zip(grid, cells, strict=True) if other == rate]
        means[rate] = statistics.fmean(result if math.isfinite(result) else math.inf for result in results)
    return min(means, key=lambda rate: means[rate]), {f"{rate:g}": mean for rate, mean in means.items()}


def quadratics(rule: Rule) -> dict[str, dict[str, int]]:
    """With noise and without: of how many runs of every optimizer, how many end above the loss they started from."""
    counts = {}
    for noise in (False, True):
        unstable = runs = 0
        for size in stability.DIMENSIONS:
            for optimizer in stability.OPTIMIZERS:
                floor = rule.floor(size, _quadratic_disagreements(optimizer, size, noise) if rule.quantile else [])
                form = partial(attach, rule, floor, blocks="tensor")
                ratios = stability.final_ratios(optimizer, lambda o, _, f=form: f(o), WINDOW, noise, (size,))
                unstable += sum(not ratio <= 1 for ratio in ratios)
                runs += len(ratios)
        counts["with noise" if noise else "without noise"] = {"unstable": unstable, "runs": runs}
    print(f"quadratics; {rule.name}; {counts}", flush=True)
    return counts


@cache
def _quadratic_disagreements(optimizer: str, size: int, noise: bool) -> list[float]:
    found: list[float] = []
    watching = partial(watch, found=found, blocks="tensor")
    stability.final_ratios(optimizer, lambda o, _: watching(o), WINDOW, noise, (size,))
    return found


def table(found: dict[str, Any]) -> str:
    """The tables in Markdown: stability, then one column per task."""
    lines = ["| floor | quadratics | with noise | " + " | ".join(found["tasks"]) + " |", "|---|---:|---:|---|---|---|"]
    compared = {
        name: {
            rule: paired_difference(
                [run["result"] for run in row["runs"]], [run["result"] for run in rows[PLAIN.name]["runs"]]
            )
            for rule, row in rows.items()
            if rule != PLAIN.name
        }
        for name, rows in found["tasks"].items()
    }
    ps = holm([difference.p for differences in compared.values() for difference in differences.values()])
    clear = iter(p < 0.05 for p in ps)
    bold = {(name, rule): next(clear) for name, differences in compared.items() for rule in differences}
    for rule, counts in found["quadratics"].items():
        cells = [f"{column['unstable']} of {column['runs']}" for column in counts.values()]
        for name, rows in found["tasks"].items():
            results = [run["result"] for run in rows[rule]["runs"]]
            share = statistics.fmean(run["corrected"] for run in rows[rule]["runs"])
            if rule == PLAIN.name:
                estimate = mean_interval(results)
                cells.append(f"{estimate.mean:.3f} ± {estimate.margin:.3f}")
                continue
            difference = compared[name][rule]
            text = f"{difference.mean:+.3f} ± {difference.margin:.3f}" if difference.mean else "identical"
            floor = rows[rule]["floor"]
            cells.append((f"**{text}**" if bold[name, rule] else text) + f", {share:.0f} %"
                         + (f" (at {floor:.2g})" if "√" in rule or "quantile" in rule else ""))  # fmt: skip
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, store it and put it on the page."""
    parser = argparse.ArgumentParser(description="Which floor of congruency.")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--page", type=Path, help="replace the table between the markers of this page")
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(options.processes, _quiet) as pool:
        measured = {
            "tasks": {name: train_all(pool, name) for name in problems()},
            "quadratics": dict(zip([rule.name for rule in RULES], pool.map(quadratics, RULES, 1), strict=True)),
        }
    print("\n" + table(measured))
    if options.out:
        options.out.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    if options.page:
        stability.put_on_page(options.page, "floors", table(measured))


def _quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the paper's form warns of what is measured here


if __name__ == "__main__":
    main()
