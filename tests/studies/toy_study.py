"""A study small enough for tests: each run averages random numbers, and may be asked to fail, wait or be killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from congruency.studies.executor import Stopped
from congruency.studies.plan import Column, Row, Study
from congruency.studies.store import RunResult
from congruency.training.processes import StopSignal

COLUMNS = (Column(key="error", title="Error, %"),)


@dataclass(frozen=True)
class ToyJob:
    name: str
    shift: float = 0.0
    label: str = ""
    columns: Mapping[str, str] = field(default_factory=lambda: {"error": "error"}, hash=False)

    def digest(self) -> str:
        return f"digest-{self.name}"


@dataclass(frozen=True)
class ToyRunner:
    """Runs batches of two; ``killed`` names a job whose process is killed once, ``broken`` one that always fails."""

    folder: Path
    killed: str = ""
    broken: str = ""
    device: str = "cpu"

    def prepare(self, runs) -> None:
        if not self.folder.is_dir():
            raise ValueError(f"{self.folder} is no folder")

    def batches(self, runs):
        return [tuple(runs[i : i + 2]) for i in range(0, len(runs), 2)]

    def run(self, batch, within) -> Iterator:
        for place, run in enumerate(batch):
            if run.job.name == self.broken:
                raise RuntimeError("this run is broken")
            marker = self.folder / f"killed-{run.job.name}-{run.seed}"
            if run.job.name == self.killed and not marker.exists():
                marker.touch()
                time.sleep(0.2)  # let what was sent before arrive
                os.kill(os.getpid(), signal.SIGKILL)
            random = torch.Generator().manual_seed(run.seed)
            numbers = torch.randn(100_003, generator=random)
            with open(self.folder / "executed.txt", "a") as file:
                file.write(f"{run.job.name} {run.seed} {torch.get_num_threads()}\n")
            yield run, RunResult({"error": run.job.shift + numbers.mean().item(), "threads": torch.get_num_threads()})
            if within is not None:
                within(run.title, (place + 1) / len(batch))


@dataclass(frozen=True)
class StoppingRunner(ToyRunner):
    """Asks its command to stop (``ask``) or waits to be asked; finishes one run all the same, as a last epoch does."""

    ask: bool = True

    def batches(self, runs):
        return [(run,) for run in runs]

    def run(self, batch, within) -> Iterator:
        with StopSignal() as stop:
            (self.folder / f"began-{os.getpid()}").touch()
            if self.ask and batch[0].key == ("digest-plain", 0):  # a second signal would end the command at once
                os.kill(os.getppid(), signal.SIGTERM)
            until = time.monotonic() + 60
            while not stop.asked and time.monotonic() < until:
                time.sleep(0.01)
            assert stop.asked
            (self.folder / f"stopped-{os.getpid()}").touch()
            yield batch[0], RunResult({"error": 1.0})
        raise Stopped


def toy_study(shifts=None, against="plain") -> Study:
    shifts = shifts or {"plain": 0.0, "better": -0.5, "same": 0.0}
    rows = tuple(
        Row(name=name, jobs=(ToyJob(name, shift),), against=against if name != against else None, settings={"s": shift})
        for name, shift in shifts.items()
    )
    return Study(name="toy", title="A toy study", lead="Means of random numbers.", rows=rows, columns=COLUMNS)
