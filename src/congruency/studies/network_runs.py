"""Shared parts of training runs: machine settings, run folders, and training that resumes."""

from __future__ import annotations

import gc
import math
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch

from congruency.files import undefined
from congruency.studies.executor import Batch, Stopped, Within
from congruency.studies.plan import JobT, Run
from congruency.studies.store import RunResult
from congruency.training import Build, Origin, Result, RunRecord, TrainingConfig, train
from congruency.training.config import Accelerator, Precision


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Device and precision settings of runs; see :class:`congruency.training.TrainingConfig`."""

    device: Accelerator = "cpu"
    precision: Precision = "32"
    compile: bool = False
    capture: bool = False
    channels_last: bool = False
    tf32: bool = False

    @property
    def description(self) -> str:
        """Precision, compilation and capture in words, for a page."""
        rounded = " (products in TF32)" if self.tf32 and self.precision == "32" else ""
        compiled = ", compiled" if self.compile else ""
        return f"in precision {self.precision}{rounded}{compiled}{', as CUDA graphs' if self.capture else ''}"

    @property
    def remembered(self) -> dict[str, str]:
        """Device name and PyTorch version, stored beside a study's settings."""
        cuda = self.device == "cuda" and torch.cuda.is_available()
        name = torch.cuda.get_device_name() if cuda else self.device
        return {"device_name": name, "torch": torch.__version__}


def chosen_device(device: Accelerator) -> Accelerator:
    """Return the device; ``"auto"`` chooses a GPU if there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def made_by(settings: Mapping[str, Any]) -> str:
    """Describe how and on which machine a folder's runs were computed, from its ``settings.json``."""
    version = f", with PyTorch {settings['torch']}" if "torch" in settings else ""
    return f"from runs on {settings['device_name']} {Machine(**settings['machine']).description}{version}"


@dataclass(frozen=True, kw_only=True)
class NetworkRunner(ABC, Generic[JobT]):
    """Trains one network per run, each in its own folder; interrupted runs resume.

    Attributes:
        folder: the study's folder.
        study: the study's name, for the run records.
        command: the command-line arguments after ``congruency``, for the run records.
    """

    folder: Path
    machine: Machine
    study: str | None = None
    command: str | None = None

    @property
    def device(self) -> str:
        return self.machine.device

    @abstractmethod
    def prepare(self, runs: Sequence[Run[JobT]]) -> None:
        """See :class:`congruency.studies.executor.Runner`."""

    @abstractmethod
    def train(self, run: Run[JobT], folder: Path, within: Within) -> tuple[RunResult, bool]:
        """Train one network; return the result and whether SIGTERM was received."""

    def keeps_record(self, job: JobT) -> bool:
        """Whether to keep the record of a finished run; its checkpoints are always deleted."""
        return True

    def batches(self, runs: Sequence[Run[JobT]]) -> list[Batch[JobT]]:
        return [(run,) for run in runs]

    def run(self, batch: Batch[JobT], within: Within) -> Iterator[tuple[Run[JobT], RunResult]]:
        for run in batch:
            folder = run_folder(self.folder, run)
            result, asked_to_stop = self.train(run, folder, within)
            yield run, result
            shutil.rmtree(folder / "checkpoints" if self.keeps_record(run.job) else folder, ignore_errors=True)
            if asked_to_stop:
                raise Stopped


def run_folder(out: Path, run: Run[JobT]) -> Path:
    """Return the folder for a run's record and checkpoints."""
    name = re.sub("[^A-Za-z0-9.-]+", "_", f"{run.row} {run.job.label}".strip())
    return out / "runs" / f"{name}-seed-{run.seed}-{run.job.digest()}"


def train_run(
    run: Run[JobT], build: Build, config: TrainingConfig, folder: Path, origin: Origin, within: Within
) -> Result:
    """Train one run in its folder, resuming from its last checkpoint if there is one.

    Raises:
        Stopped: SIGTERM stopped the run before its end.
    """
    result = train(
        build, config, folder, resume=True, origin=origin,
        notice=lambda step, steps: within(f"step {step} of {steps}, {run.title}", step / steps),
    )  # fmt: skip
    if not result.finished:
        raise Stopped
    gc.collect()  # reference cycles of hooks and graphs keep the network's memory alive
    return result


def samples_per_second(record: RunRecord) -> float:
    """Return the training speed over all epochs but the first, which is warm-up."""
    epochs = record.epochs[1:] or record.epochs
    seconds = sum(epoch["seconds"] for epoch in epochs)
    return sum(epoch["samples"] for epoch in epochs) / seconds if seconds else math.nan


def curves_of(record: RunRecord, **evaluated: str) -> dict[str, list[float]]:
    """Return the curves of a run: steps, training loss, and evaluation metrics given as ``curve_name=metric_name``."""
    lines = record.epochs
    curves = {"steps": [line["step"] for line in lines], "train_loss": [line["loss"] for line in lines]}
    for kept, name in evaluated.items():
        curves[kept] = [(line["evaluation"] or {}).get(name) for line in lines]
    found: dict[str, list[float]] = undefined(curves)
    return found
