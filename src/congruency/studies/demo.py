"""The demonstration: a language model, a classifier and a stream of tasks, trained with and without a correction.

The first half trains in an ordinary PyTorch loop; the second half shows the results.
"""

import os
import platform
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

import congruency
from congruency.continual.streams import permuted_pixels, rotated_pixels
from congruency.files import write_together
from congruency.language import GPT, PRESETS, Corpus, read_corpus
from congruency.report.charts import line_chart
from congruency.report.numbers import counted
from congruency.report.page import Figure, Page, render
from congruency.studies.console import progress
from congruency.studies.curves import mean_series
from congruency.studies.executor import limited_threads
from congruency.studies.page import compose as compose_study
from congruency.studies.page import difference_charts
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import RESULTS_FILE, Results, to_json
from congruency.studies.summary import print_table

SHAPE = PRESETS["tiny"]
GPT_BATCH, GPT_RATE, EVALUATIONS, HELD_OUT_WINDOWS = 16, 0.002, 10, 256
DIGITS_BATCH, DIGITS_RATE, MOMENTUM, HIDDEN, TRAIN_SIZE = 32, 0.05, 0.9, 64, 1024
ANGLES, STREAM_EPOCHS, STREAM_RATE, MEMORY = (0, 45, 90, 135, 180), 4, 0.4, 64

Correct = Callable[[nn.Module, Optimizer], congruency.Corrector | None]
Batch = tuple[Tensor, Tensor, int]
"""Inputs, targets, and the number of the task in a stream of tasks."""


@dataclass(frozen=True)
class Settings:
    """Options of the command. Seeds are `first_seed`, `first_seed + 1`, ..."""

    seeds: int = 6
    steps: int = 200
    epochs: int = 25
    window: int = 50
    first_seed: int = 0

    def __post_init__(self) -> None:
        if self.steps % EVALUATIONS:
            raise ValueError(
                f"steps must be a multiple of {EVALUATIONS}, got {self.steps}: so often the validation loss is measured"
            )


@dataclass(frozen=True)
class Task:
    """A training task, evaluated every `every` steps; `metric` is the column of the table that it fills."""

    name: str
    metric: str
    baseline: str
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    batches: Callable[[Generator], Iterator[Batch]]
    evaluate: Callable[[nn.Module], float]
    steps: int
    every: int
    x_label: str
    corrections: tuple[str, ...] = ("Cautious", "DCL")


@dataclass(frozen=True)
class Run:
    """A finished run: curves with one number per evaluation, and metrics of the whole run."""

    curves: Mapping[str, Sequence[float]]
    metrics: Mapping[str, float]


def language_task(corpus: Corpus, steps: int) -> Task:
    """Return next-byte prediction: a tiny GPT on random windows of the corpus, evaluated on fixed held-out windows."""
    last = len(corpus.held_out) - SHAPE.context - 1
    held_out = _windows(corpus.held_out, torch.linspace(0, last, HELD_OUT_WINDOWS, dtype=torch.float64).long())

    def batches(order: Generator) -> Iterator[Batch]:
        for offsets in torch.randint(len(corpus.train) - SHAPE.context, (steps, GPT_BATCH), generator=order):
            yield *_windows(corpus.train, offsets), 0

    @torch.no_grad()
    def validation_loss(model: nn.Module) -> float:
        return float(loss_of(model, *held_out))

    return Task(
        "GPT", "validation_loss", "AdamW", partial(GPT, SHAPE), lambda model: AdamW(model.parameters(), lr=GPT_RATE),
        batches, validation_loss, steps, steps // EVALUATIONS, "step",
    )  # fmt: skip


def _windows(text: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, the bytes and their successors, each (B, context) int64."""
    windows = text[offsets[:, None] + torch.arange(SHAPE.context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def digits_task(epochs: int) -> Task:
    """Return classification of scikit-learn's 1797 8x8 digits, 1024 for training; the split is fixed for all seeds."""
    pixels, targets, train, test = _digits()

    def batches(order: Generator) -> Iterator[Batch]:
        for _ in range(epochs):
            for batch in train[torch.randperm(TRAIN_SIZE, generator=order)].split(DIGITS_BATCH):
                yield pixels[batch], targets[batch], 0

    every = TRAIN_SIZE // DIGITS_BATCH
    return Task(
        "digits", "test_error", "SGD", _classifier,
        lambda model: SGD(model.parameters(), lr=DIGITS_RATE, momentum=MOMENTUM), batches,
        lambda model: _error(model, pixels[test], targets[test]), epochs * every, every, "epoch",
    )  # fmt: skip


def stream_task() -> Task:
    """Return the same digits as a stream of tasks, each rotated by another angle; tested on all angles."""
    pixels, targets, train, test = _digits()
    tasks = [permuted_pixels(pixels, rotated_pixels((1, 8, 8), angle)) for angle in ANGLES]
    shown, expected = torch.cat([task[test] for task in tasks]), targets[test].repeat(len(tasks))

    def batches(order: Generator) -> Iterator[Batch]:
        for number, task in enumerate(tasks):
            for _ in range(STREAM_EPOCHS):
                for batch in train[torch.randperm(TRAIN_SIZE, generator=order)].split(DIGITS_BATCH):
                    yield task[batch], targets[batch], number

    every = STREAM_EPOCHS * TRAIN_SIZE // DIGITS_BATCH
    return Task(
        "rotations", "test_error", "SGD", _classifier, lambda model: SGD(model.parameters(), lr=STREAM_RATE), batches,
        lambda model: _error(model, shown, expected), len(tasks) * every, every, "task", ("GEM",),
    )  # fmt: skip


def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return pixels (1797, 64) in [0, 1], classes, and the indices of the training and test samples."""
    digits = load_digits()
    pixels, targets = torch.as_tensor(digits.data / 16, dtype=torch.float32), torch.as_tensor(digits.target)
    train, test = train_test_split(range(len(targets)), train_size=TRAIN_SIZE, random_state=0, stratify=digits.target)
    return pixels, targets, torch.as_tensor(train), torch.as_tensor(test)


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


@torch.no_grad()
def _error(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Classification error in percent."""
    return 100 * float((model(inputs).argmax(1) != targets).float().mean())


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of the model's logits, (B, classes) or (B, T, classes)."""
    return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def train(task: Task, correct: Correct, seed: int, evaluated: Callable[[], None] = lambda: None) -> Run:
    """Train one network; the same seed gives every method the same initial weights and the same batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.model()
    optimizer = task.optimizer(model)
    corrector = correct(model, optimizer)  # the only line that differs between methods
    meter = congruency.CongruencyMeter(model.parameters())
    curves: dict[str, list[float]] = {}
    total, changed = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    for step, (inputs, targets, number) in enumerate(task.batches(Generator().manual_seed(seed)), 1):
        if isinstance(corrector, congruency.GEM):
            corrector.observe(inputs, targets, number)
        loss = loss_of(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        meter.update()  # measures the gradient before step() corrects it
        optimizer.step()
        total += loss.detach()
        changed += changed_share(corrector)
        if step % task.every == 0:
            row = {
                task.metric: task.evaluate(model),
                "train_loss": float(total) / task.every,
                "congruency": meter.compute().congruency,
                "changed": 100 * float(changed) / task.every,
            }
            for name, value in row.items():
                curves.setdefault(name, []).append(value)
            total.zero_()
            changed.zero_()
            meter.reset()
            evaluated()
    return Run(curves, summarise(task, curves, seed))


def changed_share(corrector: congruency.Corrector | None) -> Tensor | float:
    """Return how much the last step was changed: the share of elements for Cautious, else 1 for a corrected step."""
    if corrector is None:
        return 0.0
    stats = corrector.stats
    return 1 - stats.kept if isinstance(corrector, congruency.Cautious) else stats.corrected


def summarise(task: Task, curves: Mapping[str, Sequence[float]], seed: int) -> dict[str, float]:
    """Return a run's metrics: loss and error at its end, the others averaged over the run."""
    return {
        "seed": seed,
        task.metric: curves[task.metric][-1],
        "train_loss": curves["train_loss"][-1],
        "run_congruency": statistics.fmean(curves["congruency"]),
        "changed": statistics.fmean(curves["changed"]),
    }


def methods(task: Task, settings: Settings) -> dict[str, Correct]:
    """Return the rows of a task by name, the baseline first."""
    corrections: dict[str, Correct] = {
        "Cautious": lambda model, optimizer: congruency.Cautious(optimizer),
        "DCL": lambda model, optimizer: congruency.DCL(optimizer, window=settings.window),
        "GEM": lambda model, optimizer: congruency.GEM(optimizer, model=model, size=MEMORY),
    }
    baseline: dict[str, Correct] = {f"{task.name}, {task.baseline}": lambda model, optimizer: None}
    return baseline | {f"{task.name}, {name}": corrections[name] for name in task.corrections}


Runs = dict[str, list[Run]]

one_thread = partial(limited_threads, 1)
"""Matrices this small do not benefit from more threads, and with one thread results repeat exactly."""


def train_all(settings: Settings, tasks: Sequence[Task], notify: Callable[[str], None] = lambda text: None) -> Runs:
    """Train every method at every seed; `notify` is called with the run's name after each evaluation."""
    results: Runs = {name: [] for task in tasks for name in methods(task, settings)}
    with one_thread():
        for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
            for task in tasks:
                for name, correct in methods(task, settings).items():
                    results[name].append(train(task, correct, seed, partial(notify, f"seed {seed}: {name}")))
    return results


NEXT = {
    "Cautious steps, with AdamW or any other optimizer": "cautious = congruency.Cautious(optimizer)",
    "Direction Concentration Learning": "dcl = congruency.DCL(optimizer, window=50)",
    "Tasks one after the other: gem.observe(inputs, targets, task) with every batch": "gem = congruency.GEM("
    "optimizer, model=model)",
    "Only measure: meter.update() before each step": "meter = congruency.CongruencyMeter(model.parameters())",
    "On your own text (docs/language.md)": "congruency train-lm --corpus FOLDER --method cautious --out runs/cautious",
}


def run(settings: Settings, out: Path, console: Console) -> None:
    """Train everything with a progress bar, write the page and the numbers to `out`, then print the table."""
    began = perf_counter()
    done = 0
    with progress(console) as notify:
        corpus = read_corpus()
        tasks = (language_task(corpus, settings.steps), digits_task(settings.epochs), stream_task())
        total = settings.seeds * sum(task.steps // task.every * len(methods(task, settings)) for task in tasks)

        def after_evaluation(label: str) -> None:
            nonlocal done
            done += 1
            notify(label, done, total)

        runs = train_all(settings, tasks, after_evaluation)
    seconds = perf_counter() - began
    page = compose(settings, tasks, corpus, runs, command(settings, out), seconds)
    written = write_together(out, {"index.html": render(page), RESULTS_FILE: to_json(to_results(runs))})
    print_table(page.table, console)
    say = partial(console.print, markup=False, highlight=False)
    for finding in page.findings:
        say(f"- {finding}")
    say(f"\n{page.commands_title}:")
    for purpose, line in page.commands:
        say(f"  # {purpose}\n  {line}", soft_wrap=True)
    say(f"\n{seconds:.0f} seconds in all. The page with the curves: {written[0]}")


def command(settings: Settings, out: Path) -> str:
    """Return the command that repeats these runs."""
    words = ["congruency", "demo"]
    for name in ("seeds", "steps", "epochs", "window", "first_seed"):
        words += [f"--{name.replace('_', '-')}", str(getattr(settings, name))]
    return shlex.join([*words, "--out", str(out)])


def study_of(settings: Settings, tasks: Sequence[Task], corpus: Corpus) -> Study[Any]:
    """Return the demonstration as a study: its rows, what is compared, and how to read it."""
    rows = [(name, next(iter(methods(task, settings)))) for task in tasks for name in methods(task, settings)]
    return Study(
        name="demo",
        title="Gradient agreement at work",
        lead=f"A small language model (AdamW) and a digits classifier (SGD with momentum), trained from "
        f"{counted(settings.seeds, 'seed')} without a correction, with Cautious, and with DCL at its default settings; "
        "and the classifier on rotated digits, one angle after the other, without a correction and with GEM. "
        "Within a seed all start from the same weights and see the same batches, so they are paired.",
        rows=tuple(Row(name=name, jobs=(), against=None if name == base else base) for name, base in rows),
        columns=(
            Column(key="validation_loss", title="Validation loss", unit="nats per byte", digits=3),
            Column(key="test_error", title="Test error, %"),
        ),
        caption="At the end of training, on held-out text (in nats per byte) and on held-out digits (of all angles).",
        notes=tuple(_notes(settings, corpus)),
    )


def to_results(runs: Runs) -> Results:
    """Return the metrics row by row, one value per seed."""
    return {
        name: {metric: [run.metrics[metric] for run in made] for metric in made[0].metrics}
        for name, made in runs.items()
    }


def compose(settings: Settings, tasks: Sequence[Task], corpus: Corpus, runs: Runs, repeat: str, seconds: float) -> Page:
    """Return the page: the runs, their results, and how to read them."""
    study, results = study_of(settings, tasks, corpus), to_results(runs)
    note = "A dot is a seed, the diamond their mean, the bar its 95 % interval. Left of the dashed line is better."
    figures = [replace(figure, note=note) for figure in difference_charts(study, results)]
    named = {task.name: task for task in tasks}
    figures += [_curve_figure(named[task], settings, runs, *curve) for task, *curve in _CURVES]
    page = compose_study(
        study, results, command=repeat, figures=figures,
        made=f"in {seconds:.0f} seconds, on {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        figures_note="Lines: means over the seeds. Bands: their 95 % intervals. Point at a chart for its values. "
        "Where DCL corrected nothing, its line lies on the plain optimizer's.",
    )  # fmt: skip
    activity = [_activity(tasks, results, *kind) for kind in _ACTIVITY]
    return replace(
        page, findings=[*page.findings, *activity], commands=list(NEXT.items()),
        commands_title="What to try in your own loop (see docs/choosing.md for what helps where)",
    )  # fmt: skip


_ACTIVITY = (
    ("Cautious", "left out", "of the elements of the updates"),
    ("DCL", "corrected", "of the steps"),
    ("GEM", "corrected", "of the steps"),
)


def _activity(tasks: Sequence[Task], results: Results, method: str, verb: str, of: str) -> str:
    """Say how much a method changed on average, and where it changed nothing."""
    rows = {task.name: f"{task.name}, {method}" for task in tasks if method in task.corrections}
    shares = {task: statistics.fmean(results[row]["changed"]) for task, row in rows.items()}
    listed = ", ".join(f"{share:.1f} % ({name})" for name, share in shares.items())
    never = [name for name, share in shares.items() if share == 0]
    rest = f"; it had no effect on {' and '.join(never)}" if never else ""
    return f"{method} {verb} {listed} {of}{rest}."


_CHANGED = "Cautious: elements of the updates left out. DCL and GEM: steps whose gradient was corrected."
_CONGRUENCY = "Above 0 a gradient agrees with the displacement of the weights since the start, below 0 it opposes it."
_CURVES = (  # task, curve, axis label, how to read it
    ("GPT", "validation_loss", "validation loss", "Nats per byte, on text never trained on."),
    ("digits", "test_error", "test error, %", "On digits never trained on."),
    ("rotations", "test_error", "test error, %", "On digits of all angles, those of later tasks included."),
    *((task, "changed", "changed by the correction, %", _CHANGED) for task in ("GPT", "digits", "rotations")),
    *((task, "congruency", "congruency", _CONGRUENCY) for task in ("GPT", "digits", "rotations")),
)


def _curve_figure(task: Task, settings: Settings, runs: Runs, curve: str, y_label: str, note: str) -> Figure:
    unit = task.every if task.x_label == "step" else 1
    series = []
    for name in methods(task, settings):
        values = {int(run.metrics["seed"]): run.curves[curve] for run in runs[name]}
        x = [unit * (i + 1) for i in range(len(runs[name][0].curves[curve]))]
        series.append(mean_series(name.removeprefix(f"{task.name}, "), x, values))
    title = f"{task.name}: {y_label}"
    possible = (-1.0, 1.0) if curve == "congruency" else (0.0, 100.0)
    chart = line_chart(
        series, title=title, x_label=task.x_label, y_label=y_label, log=curve == "test_error", possible=possible,
        group="congruency" if curve == "congruency" else "",
    )  # fmt: skip
    return Figure(title, chart, note)


def _notes(settings: Settings, corpus: Corpus) -> list[tuple[str, str]]:
    with torch.device("meta"):  # draws no random numbers
        parameters = sum(parameter.numel() for parameter in GPT(SHAPE).parameters())
    notes = {
        "Cautious": "Of the optimizer's update, only the elements that agree in sign with the present gradient are "
        "applied, rescaled so that the step keeps its size (Liang et al., 2024).",
        "DCL": "Direction Concentration Learning: a gradient that opposes the displacement of the weights since a "
        f"reference point, recorded every {settings.window} steps, is replaced by the nearest one that does not, "
        "by default only where the disagreement is weak and the weights are not moving away from that point. "
        "With momentum or Adam that is rare. DCL(optimizer, floor=0.3, returning=False) corrects more, floor=None "
        "is the paper's form, which corrects all of it and can diverge with momentum.",
        "GEM": "Gradient Episodic Memory: a gradient that would raise the loss on the samples kept of an earlier task "
        "is replaced by the nearest one that does not (Lopez-Paz and Ranzato, 2017).",
        "Congruency": "The cosine between a new gradient and the gradient accumulated since the start: 1 where they "
        "point the same way, 0 where they are orthogonal, -1 where they are opposite; measured before any correction.",
        "The language model": f"A byte-level GPT with {parameters:,} parameters and a context of {SHAPE.context} "
        f"bytes; AdamW, {settings.steps} steps of {GPT_BATCH} windows. The text is the source code "
        f"of this Python's standard library ({len(corpus.train) / 1e6:.1f} million bytes, hash {corpus.digest}); "
        f"the loss is that on {HELD_OUT_WINDOWS} windows of held-out files. One learning rate for all, {GPT_RATE}: "
        "the best of 0.001, 0.002, 0.004, 0.008 and 0.016 for plain AdamW, by its validation loss after 200 steps "
        "on seeds 1000 and 1001 (2.456, 2.382, 2.668, 2.858, 2.878; with warm-up and linear decay 2.535 at best). "
        "Nothing was tuned for Cautious or DCL.",
        "The digits classifier": f"64-{HIDDEN}-{HIDDEN}-10 with ReLU on scikit-learn's 8x8 digits; SGD "
        f"with momentum {MOMENTUM}, batches of {DIGITS_BATCH}, {counted(settings.epochs, 'epoch')}. One learning rate "
        f"for all, {DIGITS_RATE}, chosen by the baseline's test error alone. One fixed split for every seed, "
        f"{TRAIN_SIZE} digits to train on and the other 773 to test on: the intervals are over initial weights and "
        "sample orders, not over other digits.",
        "Rotated digits": f"The same network and split; {len(ANGLES)} tasks, the digits turned by "
        f"{', '.join(map(str, ANGLES[:-1]))} and {ANGLES[-1]} degrees, {STREAM_EPOCHS} epochs each. Plain SGD, batches "
        f"of {DIGITS_BATCH}; GEM keeps the last {MEMORY} samples of every task. One learning rate for both, "
        f"{STREAM_RATE}: the best of 0.05, 0.1, 0.2, 0.4 and 0.8 for plain SGD, by its test error on seeds 1000 and "
        "1001. Nothing was tuned for GEM.",
        "The test": "A paired t-test for each method against its baseline, the plain optimizer. Seeds "
        f"{settings.first_seed} to {settings.first_seed + settings.seeds - 1}. Small networks in short runs: "
        "docs/choosing.md has larger ones. On another machine the same seeds give slightly different numbers, since "
        "sums are rounded in another order there.",
    }
    return list(notes.items())
