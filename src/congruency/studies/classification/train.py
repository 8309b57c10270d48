"""``congruency train``: an image classifier trained with one choice of method, from a laptop to a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from congruency.classification.image_options import ImageOptions, augmentation, read_sets
from congruency.classification.models import check
from congruency.classification.task import Images, Setup, build, describe, ordered
from congruency.report.numbers import fixed
from congruency.report.tables import Table, to_rich
from congruency.studies.console import plain_warnings, typed
from congruency.training import Origin, Result, TrainingConfig, read_record, train
from congruency.training.processes import first_process, process_count
from congruency.training.record import RECORD_NAME

__all__ = ["Training", "run"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training as the command line describes it.

    Attributes:
        images: which.
        config: of the loop.
        setup: attributes of :class:`Setup`, without the augmentation, which depends on the images.
        out: one folder a run.
        resume: go on from the last checkpoint.
    """

    images: ImageOptions
    config: TrainingConfig
    setup: dict[str, Any]
    out: Path
    resume: bool = False


def run(training: Training) -> int:
    """Train, and say what came out; what the command exits with: 0, or 75 where SIGTERM stopped it."""
    check(training.setup["model"])
    _check_free(training)
    console = Console(quiet=not first_process(), highlight=False)
    with plain_warnings(first_process()):
        sets = read_sets(training.images)
        setup = _setup(training, sets[0])
        _check_same(training, setup, sets)
        console.print(_beginning(training, setup, sets), markup=False)
        origin = Origin(command=typed(), data=_data_name(training.images))
        result = train(build(setup, *sets), training.config, training.out, resume=training.resume, origin=origin)
    if first_process():
        _tell(result, console)
    return result.exit_code


def _setup(training: Training, images: Images) -> Setup:
    settings = training.setup
    made = augmentation(training.images, images, settings["model"], bool(settings["pretrained"]))
    setup = Setup(augmentation=made, seed=training.config.seed, accumulate=training.config.accumulate, **settings)
    return ordered(setup, training.config.method)


def _data_name(images: ImageOptions) -> str:
    """The set's name, or that of its folder or archive, without the place on this machine."""
    return images.source if images.known else Path(images.source).name


def _check_free(training: Training) -> None:
    """Say that the folder is taken before the images are read."""
    if not training.resume and (training.out / RECORD_NAME).exists():
        raise FileExistsError(f"{training.out} already holds a run; give --resume to go on with it, or another --out")


def _check_same(training: Training, setup: Setup, sets: tuple[Images, Images]) -> None:
    """A resumed run must be the one that was begun; what the loop itself is told, it checks itself."""
    if not training.resume or not (training.out / RECORD_NAME).exists():
        return
    began = read_record(training.out).run.get("task", {})
    here = json.loads(json.dumps(describe(setup, *sets)))
    usual = {field.name: field.default for field in fields(Setup)}  # of a record older than a setting
    different = [name for name in here if name != "workers" and began.get(name, usual.get(name)) != here[name]]
    if different:
        told = "; ".join(f"{name} was {began.get(name)!r} and is {here[name]!r}" for name in different)
        raise ValueError(f"{training.out} holds another run ({told}); give its options, or another --out")


def _beginning(training: Training, setup: Setup, sets: tuple[Images, Images]) -> str:
    train_images, test_images = sets
    method = training.config.method
    how = "plainly" if method.name == "baseline" else f"with {method.name.upper()} on {_scope(method.scope)}"
    if method.name == "dcl":
        window = "never renewed" if method.window is None else f"renewed every {method.window} steps"
        how += (
            f" ({method.mode}, margin {method.effective_margin:g}, {_count(method.references, 'reference')}, {window})"
        )
    several = f", {process_count()} processes" if process_count() > 1 else ""
    return (
        f"{setup.model} on {len(train_images):,} images of {len(train_images.classes)} classes, tested on "
        f"{len(test_images):,}; {_count(setup.epochs, 'epoch')} in batches of {setup.batch_size}{several}, {how}."
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _scope(scope: str) -> str:
    return "the last layer" if scope == "head" else "the whole network"


def _tell(result: Result, console: Console) -> None:
    record = read_record(result.record)
    if record.epochs:
        console.print(to_rich(_summary(record.epochs, record.run["config"].get("measure", "head"))))
    if not result.finished:
        console.print(_stopped(result), markup=False)
    console.print(f"record: {result.record}", markup=False, soft_wrap=True)
    if result.checkpoint is not None:
        console.print(f"weights: {result.checkpoint} (also for --pretrained)", markup=False, soft_wrap=True)


def _stopped(result: Result) -> str:
    again = "the same command with --resume"
    if result.resumes_at == result.steps:
        return f"stopped; {again} goes on where it stopped"
    where = f"goes on from the last one, of step {result.resumes_at}" if result.resumes_at else "begins anew"
    return f"stopped at step {result.steps}, whose checkpoint could not be written; {again} {where}"


def _summary(epochs: list[dict[str, Any]], measured: str) -> Table:
    """The last epochs, at most ten; the record has all."""
    columns = ["Epoch", "loss", "error, %", "test error, %", "top-5, %", "congruency", "corrected, %", "images/s"]
    rows = []
    for line in epochs[-10:]:
        evaluation = line["evaluation"] or {}
        rows.append([
            str(line["epoch"] + 1), _shown(line.get("loss"), 4), _shown(line.get("error")),
            _shown(evaluation.get("error")), _shown(evaluation.get("top5_error")), _shown(line.get("congruency"), 3),
            _shown(100 * line["corrected_share"], 0), _shown(line["samples_per_second"], 0),
        ])  # fmt: skip
    whose = {"head": "the last layer's", "all": "the whole network's"}.get(measured)
    told = f"Congruency: of {whose} gradients with the way come from the start." if whose else ""
    return Table(told, columns, rows)


def _shown(value: float | None, digits: int = 2) -> str:
    return fixed(float("nan") if value is None else value, digits)
