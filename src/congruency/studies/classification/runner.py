"""Execute classification runs: load the images, train, and read the figures from the record."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from congruency.classification.image_options import ImageOptions, read_sets
from congruency.classification.task import Images
from congruency.datasets import Catalogue, LabelledImages
from congruency.studies.classification.jobs import Data, ImageJob, ImageSets
from congruency.studies.executor import Within
from congruency.studies.network_runs import Machine, NetworkRunner, curves_of, samples_per_second, train_run
from congruency.studies.plan import Run
from congruency.studies.store import RunResult
from congruency.training import Build, Origin, Place, RunRecord, Task, TrainingConfig, read_record
from congruency.training.correction import parameters_of

_WARMUP = 0.2  # share of a measurement's steps that is discarded


def training_config(job: ImageJob, machine: Machine, seed: int, record_steps: int = 0) -> TrainingConfig:
    """Return the settings of the training loop for one run."""
    how = asdict(machine)
    return TrainingConfig(
        epochs=job.setup.epochs,
        seed=seed,
        method=job.method,
        accelerator=how.pop("device"),
        accumulate=job.setup.accumulate,
        measure="head" if job.steps is None and not job.curves else "none",  # do not time the meter
        evaluate_every=job.setup.epochs if job.short and not job.curves else 1,
        record_steps=record_steps if job.steps is None else 1,
        checkpoint_epochs=0 if job.short else 1,
        **how | {"capture": machine.capture and job.setup.accumulate == 1},
    )


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """The source of images; each set is read once per process.

    Attributes:
        dataset: name or path of a data set to use instead of the jobs' own.
        channels: 3 for colour, as in all of the paper's sets; None to keep the images' channels.
        size: side length to which images of a path are scaled when read; None to keep their size.
        cache: folder for decoded images, shared by the processes that execute the runs.
    """

    data: Path | None = None
    dataset: str | None = None
    channels: int | None = 3
    size: int | None = None
    cache: Path | None = None
    device: str = "cpu"

    def name(self, job: ImageJob) -> str:
        """Return the set's name for records, without its path."""
        return Path(self.dataset).name if self.dataset and not job.data.synthetic else job.data.name

    def sets(self, job: ImageJob) -> ImageSets:
        """Return the images of a run."""
        if job.data.synthetic:
            return self._synthetic(job.data, (job.steps or 1) * job.setup.batch_size), None
        return _held_sets(self, job.data)

    def read(self, data: Data) -> ImageSets:
        """Read the training and the test images, and check their classes."""
        options = ImageOptions(
            source=self.dataset or data.name, folder=self.data, size=self.size, channels=self.channels,
            per_class=data.per_class, cache=self.cache,
        )  # fmt: skip
        train_set, test_set = read_sets(options)
        if self.dataset is None and data.classes not in (None, len(train_set.classes)):
            found = len(train_set.classes)
            raise ValueError(f"{data.name} has {data.classes} classes, and the set that was found {found}")
        return self._placed(train_set), self._placed(test_set)

    def _synthetic(self, data: Data, count: int) -> LabelledImages:
        """Return one random image repeated ``count`` times; only its shape matters."""
        random = torch.Generator().manual_seed(0)
        image = torch.randint(0, 256, (1, *data.shape), dtype=torch.uint8, generator=random)
        classes = data.classes or 10
        labels = torch.randint(0, classes, (count,), generator=random)
        many = image.to(self.device).expand(count, -1, -1, -1)
        return LabelledImages(many, labels.to(self.device), tuple(map(str, range(classes))))

    def _placed(self, images: Images) -> Images:
        """Move images to the device; a catalogue of files stays as it is."""
        if isinstance(images, Catalogue):
            return images
        return LabelledImages(images.images.to(self.device), images.labels.to(self.device), images.classes)


@lru_cache(maxsize=4)
def _held_sets(source: ImageSource, data: Data) -> ImageSets:
    return source.read(data)


@dataclass(frozen=True, kw_only=True)
class ClassificationRunner(NetworkRunner[ImageJob]):
    """Executes classification runs.

    Attributes:
        record_steps: record every n-th step; 0 for none.
    """

    images: ImageSource = ImageSource()
    record_steps: int = 0

    def prepare(self, runs: Sequence[Run[ImageJob]]) -> None:
        """Check every network and its settings, and read the images of all runs."""
        for run in runs:
            run.job.setup.check()
            training_config(run.job, self.machine, run.seed)
        for data in dict.fromkeys(run.job.data for run in runs if not run.job.data.synthetic):
            if self.images.cache is not None:
                replace(self._source, device="cpu").read(data)  # writes the cache
            else:
                _held_sets(self._source, data)

    def keeps_record(self, job: ImageJob) -> bool:
        return not job.short

    @property
    def _source(self) -> ImageSource:
        return replace(self.images, device=self.machine.device)

    def train(self, run: Run[ImageJob], folder: Path, within: Within) -> tuple[RunResult, bool]:
        images = self._source.sets(run.job)
        job = replace(run.job, setup=replace(run.job.setup, seed=run.seed))
        origin = Origin(command=self.command, data=self.images.name(job), table=self.study, row=run.row)
        millions: list[float] = []
        began = time.perf_counter()
        made = _counting(job.setup.builder(images, job.method), job, millions)
        config = training_config(job, self.machine, run.seed, self.record_steps)
        result = train_run(run, made, config, folder, origin, within)
        gc.freeze()  # surviving objects are permanent: spares later collections from scanning them
        record = read_record(result.record)
        recording = job.method.offset + job.method.references
        figures = _figures(record) if job.steps is None else _costs(record, millions[0], recording)
        figures["seconds"] = time.perf_counter() - began
        curves = curves_of(record, test_error="error", test_loss="loss") if job.curves else {}
        return RunResult(figures, curves), result.asked_to_stop


def _counting(made: Build, job: ImageJob, millions: list[float]) -> Build:
    """Wrap ``made`` to append, in millions, the parameters of the network and of the method's copies."""

    def make(place: Place) -> Task:
        task = made(place)
        count = sum(parameter.numel() for parameter in task.model.parameters())
        method = job.method
        copies = {"dcl": method.references, "gem": method.memory, "l2sp": 1}.get(method.name, 0)
        copies += method.correct == "update" or method.cautious or method.name == "cautious"  # the previous weights
        corrected = sum(parameter.numel() for parameter in parameters_of(task.model, method.scope)) if copies else 0
        millions.append((count + copies * corrected) / 1e6)
        return task

    return make


def _figures(record: RunRecord) -> dict[str, float]:
    """Return errors and losses at the end of a run, and averages over it."""
    last = record.epochs[-1]
    evaluation = last["evaluation"] or {}
    figures = {
        "error": evaluation.get("error"),
        "top5_error": evaluation.get("top5_error"),
        "test_loss": evaluation.get("loss"),
        "train_loss": last.get("loss"),
        "train_error": last.get("error"),
        "corrected_share": _mean([epoch["corrected_share"] for epoch in record.epochs]),
        "images_per_second": samples_per_second(record),
    }
    if "congruency" in last:
        figures["congruency"] = _mean([epoch["congruency"] for epoch in record.epochs])
        figures["magnitude"] = last["magnitude"]
    return {name: math.nan if value is None else float(value) for name, value in figures.items()}


def _costs(record: RunRecord, millions: float, recording: int) -> dict[str, float]:
    """Return (batch time - data time) / batch size, as the paper measures, and the parameters in millions.

    Takes the median over the steps after warm-up and recording of references, since a busy host delays single steps.
    """
    steps = record.steps[max(math.ceil(_WARMUP * len(record.steps)), recording) :]
    working = statistics.median((step["seconds"] - step["data_seconds"]) / step["samples"] for step in steps)
    whole = statistics.median(step["seconds"] / step["samples"] for step in steps)
    return {"ms": 1000 * working, "parameters": millions, "images_per_second": 1 / whole}


def _mean(values: Sequence[float | None]) -> float:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else math.nan
