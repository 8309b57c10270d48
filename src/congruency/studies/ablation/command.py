"""``congruency ablate``: run the grid, keep what finished and what failed, show and write it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from congruency.classification.image_options import ImageOptions
from congruency.classification.models import check
from congruency.datasets import SETS
from congruency.report.tables import to_rich
from congruency.studies.ablation.bases import Base, from_options, from_recipe
from congruency.studies.ablation.grid import Axes, cells, table_of
from congruency.studies.ablation.local import run_here
from congruency.studies.ablation.runs import Failure, Failures, Outcome, tidy
from congruency.studies.ablation.showing import show
from congruency.studies.classification.jobs import Table
from congruency.studies.classification.running import Machine, Run, Stopped, Work, unfinished
from congruency.studies.classification.showing import collect, narrow
from congruency.studies.classification.store import Store, check_settings
from congruency.studies.console import plain_warnings, progress, typed
from congruency.training import STOPPED_EXIT_CODE
from congruency.training.processes import process_count

__all__ = ["FAILED_EXIT_CODE", "Place", "Training", "run"]

FAILED_EXIT_CODE = 1
_WIDE = 150  # columns of a terminal that a whole table needs


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained in every cell, as the command line says it.

    Attributes:
        recipe: a row of a table; None for a set of images and a network.
        images: the set, a name or a path; of a recipe, the set to take instead of its own.
        folder: of the data sets; None for that of the environment.
        size: the side that the network sees.
        per_class: only so many training images of every class.
        budget: of a recipe of the paper.
        changes: attributes of the setup; None leaves one as it is.
    """

    recipe: str | None
    images: str | None
    folder: Path | None = None
    size: int | None = None
    per_class: int | None = None
    budget: str | None = None
    changes: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how the cells are computed.

    Attributes:
        on: ``"local"`` or ``"ray"``.
        address: of a Ray cluster.
        processes: trainings at once on this machine; None for one, or as many as fit on Ray.
        threads: CPU cores of each training.
        retries: of a run whose worker process was lost, on Ray.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        precision: of the trainings.
    """

    on: str = "local"
    address: str | None = None
    processes: int | None = None
    threads: int = 1
    retries: int = 3
    device: str = "auto"
    precision: str = "32"


def run(training: Training, axes: Axes, seeds: Sequence[int], place: Place, out: Path) -> int:
    """Run the cells that are not finished and show all; what the command exits with: 1 where some failed."""
    _check(training, place)
    console, began = Console(), perf_counter()
    base, machine = _base(training), _machine(place)
    grid = cells(axes)
    table = table_of(base, grid, baseline=axes.baseline)
    for model in {job.setup.model for job in base.jobs}:
        check(model)
    check_settings(out, _settings(training, base, machine, place))
    work = _work(training, base, machine, place, out)
    left = unfinished(table, seeds, Store(out))
    try:
        with plain_warnings(), progress(console, "trainings") as tell:
            here = replace(work, tell=tell) if place.on == "local" else work
            for done, (each, outcome) in enumerate(_executed(left, here, place), start=1):
                _keep(out, each, outcome)
                tell(each.title, done, len(left))
    except Stopped:
        console.print("stopped; the same command goes on where it stopped", markup=False)
        return STOPPED_EXIT_CODE
    failed = _failed(out, table, seeds)
    page, paths = show(table, grid, collect(table, Store(out)), failed, out, _command(), _made(machine, place))
    console.print(to_rich(page.table) if console.width >= _WIDE else narrow(page.table), markup=False, highlight=False)
    for text in page.findings:
        console.print(f"\n{text}", markup=False, highlight=False)
    console.print(f"\n{perf_counter() - began:.0f} seconds. The page: {paths[1]}", markup=False, highlight=False)
    return FAILED_EXIT_CODE if failed else 0


def _check(training: Training, place: Place) -> None:
    if training.recipe is None and training.images is None:
        raise ValueError("say what to train: a RECIPE (TABLE/ROW as `congruency reproduce` has them), or --data SET")
    if training.recipe is None and training.budget is not None:
        raise ValueError("--budget is for a RECIPE of the paper; give fewer --epochs, or --per-class")
    if training.recipe is None and training.changes.get("pretrained") is not None:
        raise ValueError("--pretrained is for a RECIPE that is fine-tuned; `congruency train` takes weights for any")
    if training.recipe is not None and training.size is not None:
        raise ValueError("--size is for --data without a RECIPE, which has its own")
    if training.budget not in (None, "paper", "small"):
        raise ValueError(f"budget must be 'paper' or 'small', got {training.budget!r}")
    if place.on not in ("local", "ray"):
        raise ValueError(f"--on must be local or ray, got {place.on!r}")
    if place.on == "local" and place.address is not None:
        raise ValueError("--address is of a Ray cluster; give --on ray too")
    if place.address is not None and place.processes is not None:
        raise ValueError("--processes is for this machine; a cluster at --address runs as many as fit")
    if place.device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"device must be auto, cpu or cuda, got {place.device!r}; choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    if process_count() > 1:
        raise ValueError("ablate starts its own processes; call it without torchrun")


def _base(training: Training) -> Base:
    if training.recipe is not None:
        return from_recipe(training.recipe, training.budget, training.images, training.per_class, training.changes)
    assert training.images is not None
    images = ImageOptions(
        source=training.images, folder=training.folder, size=training.size, per_class=training.per_class
    )
    return from_options(images, training.changes)


def _machine(place: Place) -> Machine:
    device = place.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    cuda = device == "cuda"
    return Machine(device=device, precision=place.precision, channels_last=cuda, tf32=cuda)


def _settings(training: Training, base: Base, machine: Machine, place: Place) -> dict[str, Any]:
    """What all trainings of a folder must share; the digests stand for all of it."""
    return {
        "ablation of": base.name,
        "budget": training.budget or "paper",
        "images": None if training.images is None else Path(training.images).name,
        "per class": training.per_class,
        "changes": {name: value for name, value in training.changes.items() if value is not None},
        "machine": asdict(machine),
        "threads": place.threads,
        "trainings": [job.digest() for job in base.jobs],
    }


def _work(training: Training, base: Base, machine: Machine, place: Place, out: Path) -> Work:
    """With whole paths: a worker process on a cluster begins in another folder."""
    folder = training.folder or os.environ.get("CONGRUENCY_DATA")
    source = training.images
    if source in SETS:
        source = source if training.recipe is not None else None
    elif source is not None:
        source = str(Path(source).expanduser().absolute())
    return Work(
        folder=out.absolute(),
        machine=machine,
        data=None if folder is None else Path(folder).expanduser().absolute(),
        base=source,
        channels=base.channels,
        size=base.size,
        processes=place.processes if place.processes is not None else int(place.on == "local"),
        table="ablation",
        command=typed(),
    )


def _executed(left: Sequence[Run], work: Work, place: Place) -> Iterator[tuple[Run, Outcome]]:
    if place.on == "local":
        return run_here(left, work, threads=place.threads)
    from congruency.studies.ablation.cluster import run_on_ray

    return run_on_ray(left, work, threads=place.threads, address=place.address, retries=place.retries)


def _keep(out: Path, each: Run, outcome: Outcome) -> None:
    """A result before its checkpoints go: an interruption in between costs nothing."""
    if isinstance(outcome, Failure):
        Failures(out).note(each, outcome)
        return
    Store(out).add(each.row, each.job, each.seed, outcome)
    Failures(out).note(each, None)
    tidy(out, each)


def _failed(out: Path, table: Table, seeds: Sequence[int]) -> dict[str, dict[str, Failure]]:
    """Of the cells and seeds that were asked for."""
    names = {row.name for row in table.rows}
    wanted = {f"seed {seed}" for seed in seeds}
    return {
        cell: asked
        for cell, runs in Failures(out).load().items()
        if cell in names
        and (asked := {which: why for which, why in runs.items() if which.rpartition(", ")[2] in wanted})
    }


def _command() -> str:
    return shlex.join(["congruency", *sys.argv[1:]])


def _made(machine: Machine, place: Place) -> str:
    name = torch.cuda.get_device_name() if machine.device == "cuda" and torch.cuda.is_available() else machine.device
    rounded = " (products in TF32)" if machine.tf32 and machine.precision == "32" else ""
    where = " through Ray" if place.on == "ray" else ""
    return f"on {name}{where} in precision {machine.precision}{rounded}, {place.threads} CPU thread(s) a training"
