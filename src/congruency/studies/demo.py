"""The demonstration: what DCL does to a small network on scikit-learn's 8x8 digits, over several seeds.

The first half trains, in a loop any PyTorch user recognises; the second half shows what came out, whatever it is.
"""

import json
import math
import os
import platform
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import sklearn
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

import congruency
from congruency.files import write_together
from congruency.measure.meter import CongruencyMeter
from congruency.report.charts import Sample, Series, line_chart, strip_chart
from congruency.report.numbers import NOTHING, fixed, p_value, with_margin
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table, to_rich
from congruency.studies.statistics import Difference, mean_interval, paired_difference

BASELINE = "baseline"
TRAIN_SIZE = 1024
BATCH = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.9
HIDDEN = 64


@dataclass(frozen=True)
class Settings:
    """What the command line sets. Seeds are `first_seed`, `first_seed + 1`, ..."""

    seeds: int = 12
    epochs: int = 25
    window: int = 50
    references: int = 1
    first_seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("seeds", self.seeds), ("epochs", self.epochs), ("references", self.references)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.first_seed < 0:
            raise ValueError(f"first-seed must not be negative, got {self.first_seed}")
        if self.window <= self.references:
            raise ValueError(
                f"window must be greater than references, got a window of {self.window} steps with {self.references}: "
                "the references alone would take up the window, and no step would be corrected"
            )


@dataclass(frozen=True)
class Method:
    """A row of the table: its name, what it is in words, and the keywords for DCL; None is plain SGD."""

    name: str
    description: str
    dcl: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Data:
    """The digits, split once: pixels in 0..1, (n, 64), and labels, (n,)."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Run:
    """One training: one number an epoch for every curve, and one number for the whole run for every metric."""

    curves: Mapping[str, Sequence[float]]
    metrics: Mapping[str, float]


@dataclass
class Stopwatch:
    """Adds up the time spent within `with` blocks."""

    seconds: float = 0.0
    _since: float = field(default=0.0, repr=False)

    def __enter__(self) -> None:
        self._since = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._since


def methods(settings: Settings) -> tuple[Method, ...]:
    """The rows of the table, the baseline first."""
    common = {"window": settings.window, "references": settings.references}
    return (
        Method(BASELINE, "plain SGD with momentum"),
        Method(
            "DCL concentrate",
            "the paper's equations: a step may not turn back against the way come since the reference point "
            "(margin 0, offset 0)",
            {**common, "mode": "concentrate", "margin": 0.0, "offset": 0},
        ),
        Method(
            "DCL anchor",
            "what the paper's published code computes: weights are pulled back toward the reference point "
            "(margin 0.5, offset 1)",
            {**common, "mode": "anchor", "margin": 0.5, "offset": 1},
        ),
    )


def load_data() -> Data:
    """1797 digits of 8x8 pixels, 1024 to train on and 773 to test on; the one split is the same for every seed."""
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.data / 16, digits.target, train_size=TRAIN_SIZE, random_state=0, stratify=digits.target
    )
    return Data(
        torch.as_tensor(train_x, dtype=torch.float32),
        torch.as_tensor(train_y),
        torch.as_tensor(test_x, dtype=torch.float32),
        torch.as_tensor(test_y),
    )


def network(seed: int) -> nn.Sequential:
    """A perceptron with two hidden layers, its first weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)
        )


def train(method: Method, seed: int, epochs: int, data: Data, each_epoch: Callable[[], None] = lambda: None) -> Run:
    """Train one network from `seed`; the same seed gives every method the same first weights and order of samples."""
    model = network(seed)
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    dcl = None if method.dcl is None else congruency.DCL(optimizer, **method.dcl)

    since_start = CongruencyMeter(model.parameters(), reference="start")
    since_previous = CongruencyMeter(model.parameters(), reference="previous")
    training = Stopwatch()  # measuring is not training, and not on this watch
    curves: dict[str, list[float]] = {}
    corrected = 0
    for _ in range(epochs):
        total = torch.zeros(())
        batches = torch.randperm(len(data.train_y), generator=order).split(BATCH)
        for batch in batches:
            with training:
                loss = functional.cross_entropy(model(data.train_x[batch]), data.train_y[batch])
                optimizer.zero_grad()
                loss.backward()
            since_start.update()  # the gradient as it came, before DCL corrects it inside step()
            since_previous.update()
            with training:
                optimizer.step()
            total += loss.detach() * len(batch)
        corrected_before, corrected = corrected, 0 if dcl is None else int(dcl.stats.corrected_steps)
        start, previous = since_start.compute(), since_previous.compute()
        since_start.reset()
        since_previous.reset()
        row = {
            "congruency": float(start.congruency),
            "congruency_previous": float(previous.congruency),
            "magnitude": float(start.magnitude),
            "train_loss": float(total) / len(data.train_y),
            "test_error": error_rate(model, data),
            "corrected_steps": 100 * (corrected - corrected_before) / len(batches),
        }
        for name, value in row.items():
            curves.setdefault(name, []).append(value)
        each_epoch()
    return Run(curves, summarise(curves, seed, training.seconds))


def summarise(curves: Mapping[str, Sequence[float]], seed: int, seconds: float) -> dict[str, float]:
    """The run in single numbers: losses and error at its end, the others as means over its epochs."""
    return {
        "seed": seed,
        "test_error": curves["test_error"][-1],
        "train_loss": curves["train_loss"][-1],
        "run_congruency": statistics.fmean(curves["congruency"]),
        "run_congruency_previous": statistics.fmean(curves["congruency_previous"]),
        "magnitude": statistics.fmean(curves["magnitude"]),
        "corrected_steps": statistics.fmean(curves["corrected_steps"]),
        "seconds": seconds,
    }


@torch.no_grad()
def error_rate(model: nn.Module, data: Data) -> float:
    """Share of the test digits that the model gets wrong, in percent."""
    return 100 * float((model(data.test_x).argmax(1) != data.test_y).float().mean())


Results = dict[str, list[Run]]


def train_all(settings: Settings, data: Data, tell: Callable[[str], None] = lambda text: None) -> Results:
    """Every method at every seed, `tell` called with the name of the run at the end of each of its epochs.

    Methods take turns within a seed, each beginning as often as the others, so that a machine that slows down or warms
    up does so for all of them. A first short round is thrown away: PyTorch is slow while it wakes.
    """
    rows = methods(settings)
    results: Results = {method.name: [] for method in rows}
    with one_thread():
        for method in rows:
            train(method, settings.first_seed, 1, data)
        for turn in range(settings.seeds):
            seed = settings.first_seed + turn
            first = turn % len(rows)
            for method in rows[first:] + rows[:first]:
                label = f"seed {seed}, {method.name}"
                results[method.name].append(train(method, seed, settings.epochs, data, partial(tell, label)))
    return results


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for PyTorch: matrices this small gain nothing from more, and results repeat to the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(settings: Settings, out: Path, console: Console) -> None:
    """Train everything under a progress bar, write the page and the numbers to `out`, then print the table."""
    began = perf_counter()
    results = _train_with_bar(settings, console)
    took = perf_counter() - began
    page = compose(settings, results, command(settings, out), took)
    written = write_together(out, {"index.html": render(page), "results.json": to_json(results)})
    console.print(to_rich(page.table))
    for finding in page.findings:
        console.print(finding, markup=False, highlight=False)
    console.print(f"\n{took:.0f} seconds in all. The page with the curves: {written[0]}", markup=False, highlight=False)


def _train_with_bar(settings: Settings, console: Console) -> Results:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("epochs,"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, TextColumn("[dim]{task.description}"), console=console, transient=True) as bar:
        total = settings.seeds * settings.epochs * len(methods(settings))
        task = bar.add_task("starting", total=total)
        return train_all(settings, load_data(), lambda label: bar.update(task, advance=1, description=label))


def command(settings: Settings, out: Path) -> str:
    """The command that repeats these runs."""
    words = ["congruency", "demo"]
    for name in ("seeds", "epochs", "window", "references", "first_seed"):
        words += [f"--{name.replace('_', '-')}", str(getattr(settings, name))]
    return shlex.join([*words, "--out", str(out)])


def to_json(results: Results) -> str:
    """`{row: {metric: [one value a seed]}}`; what is not a number is null."""
    values = {
        name: {metric: [_or_none(run.metrics[metric]) for run in runs] for metric in runs[0].metrics}
        for name, runs in results.items()
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def compose(settings: Settings, results: Results, repeat: str, seconds: float) -> Page:
    """The page: what was run, what came out, and how to read it."""
    differences = {
        name: paired_difference(_metric(runs, "test_error"), _metric(results[BASELINE], "test_error"))
        for name, runs in results.items()
        if name != BASELINE
    }
    return Page(
        title="Direction Concentration Learning on 8x8 digits",
        lead=(
            f"A small network, trained for {_count(settings.epochs, 'epoch')} from {_count(settings.seeds, 'seed')} in "
            "three ways: with plain SGD (baseline) and with DCL in its two modes (concentrate and anchor). Within a "
            "seed all three start from the same weights and see the same digits in the same order, so they are "
            "compared in pairs."
        ),
        command=repeat,
        table=summary_table(results, differences),
        findings=[finding(name, difference) for name, difference in differences.items()],
        headline=_difference_figure(results, differences),
        figures=[_curve_figure(results, *curve) for curve in _CURVES],
        figures_note="Lines: means over the seeds. Bands: their 95 % intervals. Point at a chart for its values.",
        notes=_notes(settings),
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d}, in {seconds:.0f} seconds, with "
            f"PyTorch {torch.__version__}, scikit-learn {sklearn.__version__} and Python {platform.python_version()} "
            f"on {platform.system()} {platform.machine()}, {os.cpu_count()} cores. The numbers behind the table are in "
            "results.json beside this page."
        ),
    )


def summary_table(results: Results, differences: Mapping[str, Difference]) -> Table:
    """One row a method. The baseline has no difference from itself."""
    rows = []
    for name, runs in results.items():
        error, agreement = (mean_interval(_metric(runs, metric)) for metric in ("test_error", "run_congruency"))
        difference = differences.get(name)
        rows.append(
            [
                name,
                with_margin(error.mean, error.margin),
                with_margin(difference.mean, difference.margin, sign=True) if difference else NOTHING,
                p_value(difference.p) if difference else NOTHING,
                with_margin(agreement.mean, agreement.margin, 3),
                f"{fixed(_cost(runs, results[BASELINE]), 1)}x",
            ]
        )
    caption = (
        f"Means over {_count(len(results[BASELINE]), 'seed')}, ± their 95 % intervals. Test error: at the end of "
        "training. Difference: paired, method less baseline, with the p of its t-test. Cost: training time against the "
        "baseline's."
    )
    columns = ["Method", "Test error, %", "Difference, points", "p", "Run congruency", "Cost, about"]
    return Table(caption, columns, rows)


def finding(name: str, difference: Difference) -> str:
    """What the test error says about one method, and no more than that."""
    seeds = _count(difference.count, "seed")
    changed = f"{name} changed the test error by {fixed(difference.mean, sign=True)} points"
    if not math.isfinite(difference.mean):
        return f"{name}: no comparison, for at least one run ended without a test error."
    if difference.count == 1:
        return f"{changed} at the one seed that was run: one seed has no interval and no test, and shows nothing."
    if not math.isfinite(difference.p):
        alike = f"{name} and the baseline ended with the same test error" if difference.mean == 0 else changed
        return f"{alike} at each of {seeds}: without any spread there is no interval and no test."
    interval = f"95 % interval {fixed(difference.low, sign=True)} to {fixed(difference.high, sign=True)}"
    p = p_value(difference.p)
    stated = f"{changed} ({interval}, p {p if p.startswith('<') else f'= {p}'})"
    if difference.p >= 0.05:
        return f"{stated}: no difference shown at {seeds}."
    direction = "lower" if difference.mean < 0 else "higher"
    return f"{stated}: {direction} than the baseline's at {seeds}, for this network and this split of these digits."


def _difference_figure(results: Results, differences: Mapping[str, Difference]) -> Figure:
    baseline = _metric(results[BASELINE], "test_error")
    samples = [
        Sample(
            name,
            [value - base for value, base in zip(_metric(results[name], "test_error"), baseline, strict=True)],
            difference.mean,
            difference.margin,
        )
        for name, difference in differences.items()
    ]
    title = "Difference in test error, seed by seed"
    chart = strip_chart(samples, title=title, x_label="points of test error, method less baseline", first=1)
    note = (
        "A dot is a seed, the diamond their mean, the bar its 95 % interval. Left of the dashed line is fewer errors."
    )
    return Figure(title, chart, note)


_CURVES: tuple[tuple[str, str, str, str, bool], ...] = (
    (
        "congruency",
        "Congruency with the way come",
        "cosine",
        "Above 0: the new gradient leads on in the direction come since the start. Below 0: it leads back.",
        False,
    ),
    (
        "congruency_previous",
        "Congruency with the last step",
        "cosine",
        "The same, against the one step before.",
        False,
    ),
    ("magnitude", "Magnitude", "distance", "How far the weights are from where they started.", False),
    ("corrected_steps", "Steps corrected", "% of steps", "How often DCL changed the gradient.", False),
    ("train_loss", "Training loss", "cross-entropy", "Logarithmic. Measured on the batches as they come.", True),
    ("test_error", "Test error", "% wrong", "Logarithmic. On digits never trained on.", True),
)


def _curve_figure(results: Results, curve: str, title: str, y_label: str, note: str, log: bool) -> Figure:
    series = []
    for name, runs in results.items():
        epochs = list(zip(*(run.curves[curve] for run in runs), strict=True))
        estimates = [mean_interval(values) for values in epochs]
        numbers = list(range(1, len(epochs) + 1))
        series.append(Series(name, numbers, [one.mean for one in estimates], [one.margin for one in estimates]))
    return Figure(title, line_chart(series, title=title, x_label="epoch", y_label=y_label, log=log), note)


def _notes(settings: Settings) -> list[tuple[str, str]]:
    parameters = sum(parameter.numel() for parameter in network(0).parameters())
    described = [
        (method.name, f"{method.description[0].upper()}{method.description[1:]}.") for method in methods(settings)
    ]
    return [
        *described,
        (
            "Congruency",
            "The cosine between a new gradient and the way training has come: 1 where the gradient leads straight on, "
            "0 where it leads elsewhere, -1 where it leads straight back. It is taken from the gradient as it comes, "
            "before DCL corrects it. Run congruency is the one with the way come since the start, averaged over the "
            "steps of each epoch and over the epochs.",
        ),
        (
            "Cost",
            "This method's training time (forward, backward, optimizer step; not the measuring) over the baseline's at "
            "the same seed, the median of all seeds. It is noisy, and a network this small is nearly all overhead: the "
            "command congruency bench measures the cost at sizes where it matters.",
        ),
        (
            "The network and its training",
            f"64-{HIDDEN}-{HIDDEN}-10 with ReLU, {parameters:,} parameters; SGD with momentum {MOMENTUM} and batches "
            f"of {BATCH}; DCL on the whole network, a window of {settings.window} steps, "
            f"{_count(settings.references, 'reference point')}. One learning rate for all, {LEARNING_RATE}, chosen by "
            "the baseline's test error alone; nothing was tuned for DCL.",
        ),
        (
            "The data",
            f"scikit-learn's 8x8 digits, pixels scaled to 0..1. One fixed split for every seed, {TRAIN_SIZE} digits to "
            "train on and the other 773 to test on: the intervals speak of first weights and sample order, not of "
            "other digits.",
        ),
        (
            "The test",
            "A paired t-test for each method against the baseline: two tests, neither corrected for there being two. "
            f"Seeds {settings.first_seed} to {settings.first_seed + settings.seeds - 1}.",
        ),
    ]


def _metric(runs: Sequence[Run], metric: str) -> list[float]:
    return [run.metrics[metric] for run in runs]


def _cost(runs: Sequence[Run], baseline: Sequence[Run]) -> float:
    pairs = zip(_metric(runs, "seconds"), _metric(baseline, "seconds"), strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
