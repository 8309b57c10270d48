"""Running the trainings of a table: one after the other or several at once, what is finished never again."""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import queue
import re
import shutil
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from congruency.classification.task import Images
from congruency.datasets import SETS, LabelledImages, catalogue, load
from congruency.studies.classification.jobs import Data, Job, Table
from congruency.studies.classification.store import Store
from congruency.studies.console import Notify as Tell
from congruency.studies.console import plain_warnings
from congruency.training import Build, Notice, Origin, Place, RunRecord, Task, TrainingConfig, read_record, train
from congruency.training.correction import parameters_of
from congruency.training.processes import first_process, process_count

__all__ = [
    "ImageSets",
    "Machine",
    "Run",
    "Stopped",
    "Work",
    "cached",
    "many_runs",
    "origin_of",
    "run_all",
    "run_table",
    "train_in",
    "unfinished",
]

Sets = tuple[Images, Images | None]
One = Callable[["Run", Sets, "Work"], tuple[Any, bool]]
"""Does one training; what came out of it, and whether SIGTERM came at its end."""

_SECONDS_BETWEEN_NOTICES = 0.5
_FIRST = 0.2  # of the steps of a measurement, which are left out


class Stopped(Exception):
    """SIGTERM asked the command to stop; the same command goes on."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How trainings are computed; see :class:`congruency.training.TrainingConfig`."""

    device: str = "cpu"
    precision: str = "32"
    compile: bool = False
    capture: bool = False
    channels_last: bool = False
    tf32: bool = False

    def config(self, job: Job, seed: int) -> TrainingConfig:
        """What the loop is told for one training."""
        short = job.short
        return TrainingConfig(
            epochs=job.setup.epochs,
            seed=seed,
            method=job.method,
            accelerator=self.device,  # type: ignore[arg-type]
            precision=self.precision,  # type: ignore[arg-type]
            compile=self.compile,
            capture=self.capture and job.setup.accumulate == 1,
            channels_last=self.channels_last,
            tf32=self.tf32,
            accumulate=job.setup.accumulate,
            measure="head" if job.steps is None else "none",  # a cost is the method's alone
            evaluate_every=job.setup.epochs if short else 1,
            record_steps=0 if job.steps is None else 1,
            checkpoint_epochs=0 if short else 1,
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """Everything but the trainings themselves.

    Attributes:
        folder: for results, and for the runs that can be resumed.
        machine: how to compute.
        data: the folder of data sets.
        base: another set, a name or a path, instead of the tables' own.
        channels: of the images: colour, as all of the tables' sets are; None for as they are.
        size: the side that images of a path are scaled to when they are read; None for as they are.
        cache: a folder for decoded images.
        processes: how many trainings go on at once.
        minutes: begin no training that would not be over by then; None for no limit.
        table: the name of the table, for the records of its runs.
        command: what was typed after ``congruency``, for them too.
        record_steps: keep the line of every so many-th step in them; 0 for none.
        tell: told how far the trainings are, also within one where they go on one after the other.
        notice: told the steps of the training that goes on, see :func:`congruency.training.train`.
    """

    folder: Path
    machine: Machine
    data: Path | None = None
    base: str | None = None
    channels: int | None = 3
    size: int | None = None
    cache: Path | None = None
    processes: int = 1
    minutes: float | None = None
    table: str | None = None
    command: str | None = None
    record_steps: int = 0
    tell: Tell | None = None
    notice: Notice | None = None


@dataclass(frozen=True)
class Run:
    """One training of a row from one seed."""

    row: str
    job: Job
    seed: int

    @property
    def title(self) -> str:
        """What a progress bar calls it."""
        return ", ".join(part for part in (self.row, self.job.label, f"seed {self.seed}") if part)


def run_table(table: Table, seeds: Sequence[int], work: Work) -> int:
    """Run what is not finished; how many trainings are left where the time was up."""
    store = Store(work.folder)
    left = unfinished(table, seeds, store)
    total = len(left)
    done = 0
    with many_runs():
        for run, figures in run_all(left, work, _figures_of):
            done += 1
            if not first_process():
                continue
            store.add(run.row, run.job, run.seed, figures)
            if work.tell is not None:
                work.tell(run.title, done, total)
    return total - done


def run_all(runs: Sequence[Run], work: Work, one: One) -> Iterator[tuple[Run, Any]]:
    """Do all with ``one``, here or in several processes; each with what came out of it, as they end."""
    clock = _Clock(work.minutes)
    return _several(runs, work, clock, one) if work.processes > 1 else _alone(runs, work, clock, one)


def _figures_of(run: Run, images: Sets, work: Work) -> tuple[dict[str, float], bool]:
    return train_one(run.job, run.seed, images, work, origin_of(run, work))


def origin_of(run: Run, work: Work) -> Origin:
    """What the record of a run says about where it comes from."""
    data = Path(work.base).name if work.base and not run.job.data.made_up else run.job.data.name
    return Origin(command=work.command, data=data, table=work.table, row=run.row)


def unfinished(table: Table, seeds: Sequence[int], store: Store) -> list[Run]:
    """The runs to do, seed by seed, so that what is finished at any time compares all rows."""
    finished = set(store.load())
    found: dict[tuple[str, int], Run] = {}
    for seed in seeds:
        for row in table.rows:
            for job in row.jobs:
                key = (job.digest(), seed)
                if key not in finished:
                    found.setdefault(key, Run(row.name, job, seed))
    return list(found.values())


class _Clock:
    """Whether there is time for one more, which is thought to take as long as those before, and half as long again."""

    def __init__(self, minutes: float | None) -> None:
        self._end = math.inf if minutes is None else time.time() + 60 * minutes
        self._taken: list[float] = []
        self._began = time.time()

    def time_for_another(self) -> bool:
        now = time.time()
        self._taken.append(now - self._began)
        self._began = now
        return now + 1.5 * statistics.median(self._taken[1:] or [0.0]) <= self._end


def _alone(runs: Sequence[Run], work: Work, clock: _Clock, one: One) -> Iterator[tuple[Run, Any]]:
    images = ImageSets(work)
    for done, run in enumerate(runs):
        if not clock.time_for_another():
            return
        read = images(run.job)
        notice = None if work.tell is None else _Within(work.tell, run, done, len(runs))
        answer, asked_to_stop = one(run, read, replace(work, notice=notice))
        yield run, answer
        if asked_to_stop:
            raise Stopped


class _Within:
    """Tells how far one training among others is, a few times a second."""

    def __init__(self, tell: Tell, run: Run, before: int, total: int) -> None:
        self._tell, self._run, self._before, self._total = tell, run, before, total
        self._told = -math.inf

    def __call__(self, step: int, steps: int) -> None:
        now = time.perf_counter()
        if now - self._told >= _SECONDS_BETWEEN_NOTICES:
            self._told = now
            self._tell(f"step {step} of {steps}, {self._run.title}", self._before + step / steps, self._total)


def cached(runs: Sequence[Run], work: Work) -> Work:
    """The same work with a cache that holds the images of all runs, decoded once, for other processes to read."""
    if work.cache is None:
        work = replace(work, cache=work.folder / "images")
    images = ImageSets(replace(work, machine=replace(work.machine, device="cpu")))
    for job in {run.job.data: run.job for run in runs}.values():
        images(job)
    return work


def _several(runs: Sequence[Run], work: Work, clock: _Clock, one: One) -> Iterator[tuple[Run, Any]]:
    """Processes take runs from one queue."""
    if not runs:
        return
    work = replace(cached(runs, work), tell=None)  # which stays in this process
    context = multiprocessing.get_context("spawn")
    waiting, answers = context.Queue(), context.Queue()
    for place in range(len(runs)):
        waiting.put(place)
    count = min(work.processes, len(runs))
    given = (list(runs), work, clock, one, waiting, answers)
    workers = [context.Process(target=_worker, args=given) for _ in range(count)]
    try:
        for worker in workers:
            worker.start()
        yield from _answers(runs, workers, answers)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _answers(runs: Sequence[Run], workers: Sequence[Any], answers: Any) -> Iterator[tuple[Run, Any]]:
    busy = len(workers)
    while busy:
        try:
            place, answer = answers.get(timeout=1.0)
        except queue.Empty:
            if not any(worker.is_alive() for worker in workers):
                raise RuntimeError("the processes that train have ended unexpectedly; try --processes 1") from None
            continue
        if place is None:
            busy -= 1
            if answer is not None:
                raise answer
        else:
            yield runs[place], answer


def _worker(runs: list[Run], work: Work, clock: _Clock, one: One, waiting: Any, answers: Any) -> None:
    """One process: train what is next until nothing is left; the last answer is None, or what went wrong."""
    parent = multiprocessing.parent_process()
    torch.set_num_threads(max(1, torch.get_num_threads() // work.processes))
    try:
        with many_runs(), plain_warnings():
            images = ImageSets(work)
            while clock.time_for_another() and parent is not None and parent.is_alive():
                try:
                    place = waiting.get(timeout=0.5)
                except queue.Empty:
                    break
                run = runs[place]
                answer, asked_to_stop = one(run, images(run.job), work)
                answers.put((place, answer))
                if asked_to_stop:
                    raise Stopped
        answers.put((None, None))
    except Stopped:
        answers.put((None, Stopped()))
    except (ValueError, FileNotFoundError) as reason:
        answers.put((None, ValueError(str(reason))))
    except Exception:
        answers.put((None, RuntimeError(f"a process that trains failed:\n{traceback.format_exc()}")))


class ImageSets:
    """The images of trainings, read once and kept where they are needed."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._held: dict[Data, Sets] = {}

    def __call__(self, job: Job) -> Sets:
        seen = None if job.steps is None else job.steps * job.setup.batch_size
        if job.data.made_up:
            return self._made_up(job.data, seen or job.setup.batch_size), None
        if job.data not in self._held:
            self._held[job.data] = self._read(job.data)
        train, test = self._held[job.data]
        return (train if seen is None else train.subset(range(min(len(train), seen)))), test

    def _read(self, data: Data) -> Sets:
        if data.name == "imagenet" and self._work.base is None:
            train, test = (catalogue("imagenet", split, data=self._work.data) for split in ("train", "test"))
            train = train if data.per_class is None else train.per_class(data.per_class)
            test = test if data.test_per_class is None else test.per_class(data.test_per_class)
            return _checked(data, train), test
        read = [self._load(data, "train", data.per_class), self._load(data, "test", data.test_per_class)]
        if self._work.base is None:
            _checked(data, read[0])
        return self._placed(read[0]), self._placed(read[1])

    def _load(self, data: Data, split: Any, per_class: int | None) -> LabelledImages:
        work = self._work
        source = work.base or data.name
        name = f"{Path(source).name}-{split}-{per_class or 'all'}.pt"
        cache = None if work.cache is None or source == "digits" else work.cache / name
        size = None if source in SETS else work.size
        return load(source, split, size, work.channels, data=work.data, per_class=per_class, cache=cache)

    def _made_up(self, data: Data, count: int) -> LabelledImages:
        """One random image, seen many times: nothing but its shape matters."""
        random = torch.Generator().manual_seed(0)
        image = torch.randint(0, 256, (1, *data.shape), dtype=torch.uint8, generator=random)
        classes = data.classes or 10
        labels = torch.randint(0, classes, (count,), generator=random)
        one = self._placed(LabelledImages(image, labels[:1], tuple(map(str, range(classes)))))
        many = one.images.expand(count, -1, -1, -1)
        return LabelledImages(many, labels.to(many.device), one.classes)

    def _placed(self, images: LabelledImages) -> LabelledImages:
        device = self._work.machine.device
        if process_count() > 1:
            return images  # each process has a device of its own, which it does not know yet
        return LabelledImages(images.images.to(device), images.labels.to(device), images.classes)


def _checked(data: Data, images: Any) -> Any:
    if data.classes is not None and len(images.classes) != data.classes:
        raise ValueError(f"{data.name} has {data.classes} classes, and the set that was found {len(images.classes)}")
    return images


def train_one(
    job: Job, seed: int, images: Sets, work: Work, origin: Origin | None = None
) -> tuple[dict[str, float], bool]:
    """One training of a table: its figures, and whether SIGTERM came at its end. The figures are all that stays."""
    folder = work.folder / "runs" / _name(job, job.digest(), seed)
    figures, asked_to_stop = train_in(folder, job, seed, images, work, origin)
    if first_process():
        shutil.rmtree(folder if job.short else folder / "checkpoints")
    return figures, asked_to_stop


def train_in(
    folder: Path, job: Job, seed: int, images: Sets, work: Work, origin: Origin | None = None
) -> tuple[dict[str, float], bool]:
    """One training in a folder of its own, resumed where it was interrupted; its figures, and whether SIGTERM came."""
    setup = replace(job.setup, seed=seed)
    if job.steps is not None:
        setup = replace(setup, epochs=math.ceil(job.steps * setup.batch_size / len(images[0])))
    job = replace(job, setup=setup)
    held: list[float] = []
    began = time.perf_counter()
    made = _counting(setup.builder(images, job.method), job, held)
    config = work.machine.config(job, seed)
    if job.steps is None:
        config = replace(config, record_steps=work.record_steps)
    result = train(made, config, folder, resume=True, origin=origin, notice=work.notice)
    if not result.finished:
        raise Stopped
    gc.collect()  # hooks and graphs refer to each other, and hold a network's memory
    gc.freeze()  # what is still there stays: the next collection need not look at it, which would take longer
    if not first_process():
        return {}, result.asked_to_stop
    record = read_record(result.record)
    figures = (
        _costs(record, held[0], job.method.offset + job.method.references)
        if job.steps is not None
        else _figures(record)
    )
    return {**figures, "seconds": time.perf_counter() - began}, result.asked_to_stop


def _name(job: Job, digest: str, seed: int) -> str:
    name = re.sub("[^A-Za-z0-9.-]+", "_", f"{job.setup.model}-{job.data.name}-{job.method.name}")
    return f"{name}-{digest}-seed{seed}"


def _counting(made: Build, job: Job, held: list[float]) -> Build:
    """What ``made`` makes; ``held`` gets the millions of parameters of the network and of what a method holds."""

    def make(place: Place) -> Task:
        task = made(place)
        count = sum(parameter.numel() for parameter in task.model.parameters())
        method = job.method
        copies = {"baseline": 0, "dcl": method.references, "gem": method.memory}[method.name]
        corrected = sum(parameter.numel() for parameter in parameters_of(task.model, method.scope)) if copies else 0
        held.append((count + copies * corrected) / 1e6)
        return task

    return make


def _figures(record: RunRecord) -> dict[str, float]:
    """Of a training's end, and of how it went."""
    last = record.epochs[-1]
    evaluation = last["evaluation"] or {}
    figures = {
        "error": evaluation.get("error"),
        "top5_error": evaluation.get("top5_error"),
        "test_loss": evaluation.get("loss"),
        "train_loss": last.get("loss"),
        "train_error": last.get("error"),
        "corrected_share": _mean([epoch["corrected_share"] for epoch in record.epochs]),
        "images_per_second": _rate(record),
    }
    if "congruency" in last:
        figures["congruency"] = _mean([epoch["congruency"] for epoch in record.epochs])
        figures["magnitude"] = last["magnitude"]
    return {name: math.nan if value is None else float(value) for name, value in figures.items()}


def _rate(record: RunRecord) -> float:
    """Images a second, of all epochs but the first, which warms up."""
    epochs = record.epochs[1:] or record.epochs
    seconds = sum(epoch["seconds"] for epoch in epochs)
    return sum(epoch["samples"] for epoch in epochs) / seconds if seconds else math.nan


def _costs(record: RunRecord, millions: float, recording: int) -> dict[str, float]:
    """(batch time - data time) / batch size, as the paper measures; not of steps that warm up or record references.

    The median over the others: a host that is busy for a moment delays single steps by more than what is measured.
    """
    steps = record.steps[max(math.ceil(_FIRST * len(record.steps)), recording) :]
    working = statistics.median((step["seconds"] - step["data_seconds"]) / step["samples"] for step in steps)
    whole = statistics.median(step["seconds"] / step["samples"] for step in steps)
    return {"ms": 1000 * working, "parameters": millions, "images_per_second": 1 / whole}


def _mean(values: Sequence[float | None]) -> float:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else math.nan


class many_runs:
    """Puts back after many runs what they changed: collections of garbage, and the silence of Fabric's remarks."""

    def __init__(self) -> None:
        self._loggers = [logging.getLogger(name) for name in ("lightning.fabric", "lightning_fabric")]

    def __enter__(self) -> None:
        self._levels = [logger.level for logger in self._loggers]
        for logger in self._loggers:
            logger.setLevel(logging.WARNING)

    def __exit__(self, *reason: object) -> None:
        gc.unfreeze()
        for logger, level in zip(self._loggers, self._levels, strict=True):
            logger.setLevel(level)
