"""The demonstration: what DCL does to a small network on scikit-learn's 8x8 digits, over several seeds.

The first half trains, in a loop any PyTorch user recognises; the second half shows the results, whatever they are.
"""

import os
import platform
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import sklearn
import torch
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

import congruency
from congruency.files import write_together
from congruency.measure.meter import CongruencyMeter
from congruency.report.charts import Series, line_chart
from congruency.report.numbers import counted
from congruency.report.page import Figure, Page, render
from congruency.report.tables import to_rich
from congruency.studies.console import paper_form, progress
from congruency.studies.page import compose as compose_study
from congruency.studies.page import difference_charts
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import RESULTS_FILE, Results, to_json
from congruency.studies.statistics import mean_interval

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
    """A row of the table: its name, a description, and the keywords for DCL; None is plain SGD."""

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
    """One run: one number per epoch for every curve, and one number for the whole run for every metric."""

    curves: Mapping[str, Sequence[float]]
    metrics: Mapping[str, float]


def methods(settings: Settings) -> tuple[Method, ...]:
    """Return the rows of the table, the baseline first."""
    common = {"window": settings.window, "references": settings.references}
    return (
        Method(BASELINE, "plain SGD with momentum"),
        Method(
            "DCL concentrate",
            "the paper's equations: a gradient may not oppose the gradient accumulated since the reference point "
            "(margin 0, offset 0, no floor)",
            {**common, "mode": "concentrate", "margin": 0.0, "offset": 0, "floor": None},
        ),
        Method(
            "DCL anchor",
            "the paper's published code: weights are pulled back toward the reference point (margin 0.5, offset 1)",
            {**common, "mode": "anchor", "margin": 0.5, "offset": 1},
        ),
    )


def load_data() -> Data:
    """Return 1797 digits of 8x8 pixels, 1024 to train on and 773 to test on; the split is the same for every seed."""
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
    """Return a perceptron with two hidden layers, its initial weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)
        )


def train(method: Method, seed: int, epochs: int, data: Data, each_epoch: Callable[[], None] = lambda: None) -> Run:
    """Train one network from `seed`; the same seed gives every method the same initial weights and order of samples."""
    model = network(seed)
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    with paper_form():
        dcl = None if method.dcl is None else congruency.DCL(optimizer, **method.dcl)

    since_start = CongruencyMeter(model.parameters(), reference="start")
    since_previous = CongruencyMeter(model.parameters(), reference="previous")
    seconds = 0.0  # of training alone, without the measuring
    curves: dict[str, list[float]] = {}
    corrected = 0
    for _ in range(epochs):
        total = torch.zeros(())
        batches = torch.randperm(len(data.train_y), generator=order).split(BATCH)
        for batch in batches:
            began = perf_counter()
            loss = functional.cross_entropy(model(data.train_x[batch]), data.train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            seconds += perf_counter() - began
            since_start.update()  # the gradient before DCL corrects it inside step()
            since_previous.update()
            began = perf_counter()
            optimizer.step()
            seconds += perf_counter() - began
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
    return Run(curves, summarise(curves, seed, seconds))


def summarise(curves: Mapping[str, Sequence[float]], seed: int, seconds: float) -> dict[str, float]:
    """Return the metrics of a run: loss and error at its end, the others as means over its epochs."""
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
    """Return the share of the test digits that the model gets wrong, in percent."""
    return 100 * float((model(data.test_x).argmax(1) != data.test_y).float().mean())


Runs = dict[str, list[Run]]


def train_all(settings: Settings, data: Data, notify: Callable[[str], None] = lambda text: None) -> Runs:
    """Return the runs of every method at every seed; `notify` is called with the run's name after each epoch.

    Methods take turns within a seed, each being first as often as the others, so that a machine that slows down or
    warms up does so for all of them. A first short round is discarded: PyTorch is slow at its first calls.
    """
    rows = methods(settings)
    results: Runs = {method.name: [] for method in rows}
    with one_thread():
        for method in rows:
            train(method, settings.first_seed, 1, data)
        for turn in range(settings.seeds):
            seed = settings.first_seed + turn
            first = turn % len(rows)
            for method in rows[first:] + rows[:first]:
                label = f"seed {seed}, {method.name}"
                results[method.name].append(train(method, seed, settings.epochs, data, partial(notify, label)))
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
    """Train everything with a progress bar, write the page and the numbers to `out`, then print the table."""
    began = perf_counter()
    total = settings.seeds * settings.epochs * len(methods(settings))
    done = 0
    with progress(console, "epochs") as notify:

        def after_epoch(label: str) -> None:
            nonlocal done
            done += 1
            notify(label, done, total)

        runs = train_all(settings, load_data(), after_epoch)
    seconds = perf_counter() - began
    page = compose(settings, runs, command(settings, out), seconds)
    written = write_together(out, {"index.html": render(page), RESULTS_FILE: to_json(to_results(runs))})
    console.print(to_rich(page.table))
    for finding in page.findings:
        console.print(finding, markup=False, highlight=False)
    console.print(
        f"\n{seconds:.0f} seconds in all. The page with the curves: {written[0]}", markup=False, highlight=False
    )


def command(settings: Settings, out: Path) -> str:
    """Return the command that repeats these runs."""
    words = ["congruency", "demo"]
    for name in ("seeds", "epochs", "window", "references", "first_seed"):
        words += [f"--{name.replace('_', '-')}", str(getattr(settings, name))]
    return shlex.join([*words, "--out", str(out)])


def study_of(settings: Settings, names: Sequence[str]) -> Study[Any]:
    """Return the demonstration as a study: its rows, what is compared, and how to read it."""
    return Study(
        name="demo",
        title="Direction Concentration Learning on 8x8 digits",
        lead=f"A small network, trained for {counted(settings.epochs, 'epoch')} from {counted(settings.seeds, 'seed')} "
        "in three ways: with plain SGD (baseline) and with DCL in its two modes (concentrate and anchor). Within a "
        "seed all three start from the same weights and see the same digits in the same order, so they are paired.",
        rows=tuple(Row(name=name, jobs=(), against=None if name == BASELINE else BASELINE) for name in names),
        columns=(
            Column(key="test_error", title="Test error, %"),
            Column(key="run_congruency", title="Run congruency", digits=3, compared=False),
        ),
        caption="Test error: at the end of training. Cost: training time relative to the baseline's.",
        extras=(Column(key="cost", title="Cost, about", digits=1),),
        notes=tuple(_notes(settings)),
    )


def to_results(runs: Runs) -> Results:
    """Return the metrics row by row, one value per seed."""
    return {
        name: {metric: [run.metrics[metric] for run in made] for metric in made[0].metrics}
        for name, made in runs.items()
    }


def _with_cost(results: Results) -> Results:
    """Add the cost of each row, the median over the seeds: one value for all of them."""
    base = results[BASELINE]["seconds"]
    costs = {
        name: statistics.median(ours / theirs for ours, theirs in zip(metrics["seconds"], base, strict=True))
        for name, metrics in results.items()
    }
    return {name: {**metrics, "cost": [costs[name]]} for name, metrics in results.items()}


def compose(settings: Settings, runs: Runs, repeat: str, seconds: float) -> Page:
    """Return the page: the runs, their results, and how to read them."""
    study, results = study_of(settings, list(runs)), _with_cost(to_results(runs))
    made = (
        f"in {seconds:.0f} seconds, with scikit-learn {sklearn.__version__} on {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores"
    )
    page = compose_study(
        study, results, command=repeat, made=made, figures=[_curve_figure(runs, *curve) for curve in _CURVES],
        figures_note="Lines: means over the seeds. Bands: their 95 % intervals. Point at a chart for its values.",
    )  # fmt: skip
    differences = difference_charts(study, results)
    note = (
        "A dot is a seed, the diamond their mean, the bar its 95 % interval. Left of the dashed line is fewer errors."
    )
    return replace(page, headline=replace(differences[0], note=note) if differences else None)


_CURVES: tuple[tuple[str, str, str, str, bool], ...] = (
    (
        "congruency",
        "Congruency with the accumulated gradient",
        "cosine",
        "Above 0: the new gradient agrees with the gradient accumulated since the start. Below 0: it opposes it.",
        False,
    ),
    ("congruency_previous", "Congruency with the last step", "cosine", "The same, with the one step before.", False),
    ("magnitude", "Magnitude", "distance", "How far the weights are from where they started.", False),
    ("corrected_steps", "Steps corrected", "% of steps", "How often DCL changed the gradient.", False),
    ("train_loss", "Training loss", "cross-entropy", "Logarithmic. Measured on the training batches.", True),
    ("test_error", "Test error", "% wrong", "Logarithmic. On digits never trained on.", True),
)


def _curve_figure(runs: Runs, curve: str, title: str, y_label: str, note: str, log: bool) -> Figure:
    series = []
    for name, made in runs.items():
        epochs = list(zip(*(run.curves[curve] for run in made), strict=True))
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
            "The cosine between a new gradient and the gradient accumulated so far: 1 where they point the same way, 0 "
            "where they are orthogonal, -1 where they are opposite; before DCL corrects the gradient. Run congruency: "
            "with the gradient accumulated since the start, averaged over the steps of each epoch and over the epochs.",
        ),
        (
            "Cost",
            "The training time (forward, backward, optimizer step; not the measuring) over the baseline's at the same "
            "seed, the median of all seeds. It is noisy, and a network this small is nearly all overhead: the command "
            "congruency bench measures the cost at sizes where it matters.",
        ),
        (
            "The network and its training",
            f"64-{HIDDEN}-{HIDDEN}-10 with ReLU, {parameters:,} parameters; SGD with momentum {MOMENTUM} and batches "
            f"of {BATCH}; DCL on the whole network, a window of {settings.window} steps, "
            f"{counted(settings.references, 'reference point')}. One learning rate for all, {LEARNING_RATE}, chosen by "
            "the baseline's test error alone; nothing was tuned for DCL.",
        ),
        (
            "The data",
            f"scikit-learn's 8x8 digits, pixels scaled to 0..1. One fixed split for every seed, {TRAIN_SIZE} digits to "
            "train on and the other 773 to test on: the intervals are over initial weights and sample orders, not over "
            "other digits.",
        ),
        (
            "The test",
            "A paired t-test for each method against the baseline. "
            f"Seeds {settings.first_seed} to {settings.first_seed + settings.seeds - 1}.",
        ),
    ]
