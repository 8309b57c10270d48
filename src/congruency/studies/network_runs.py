"""What the runs of neural networks share: the machine that computes them, their folders, and how one is trained."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from congruency.studies.executor import Stopped, Within
from congruency.studies.plan import JobT, Run
from congruency.training import Build, Origin, Result, TrainingConfig, train
from congruency.training.config import Accelerator, Precision


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How runs are computed; see :class:`congruency.training.TrainingConfig`."""

    device: Accelerator = "cpu"
    precision: Precision = "32"
    compile: bool = False
    capture: bool = False
    channels_last: bool = False
    tf32: bool = False

    @property
    def description(self) -> str:
        """The precision, for a page."""
        rounded = " (products in TF32)" if self.tf32 and self.precision == "32" else ""
        compiled = ", compiled" if self.compile else ""
        return f"in precision {self.precision}{rounded}{compiled}{', as CUDA graphs' if self.capture else ''}"

    @property
    def remembered(self) -> dict[str, str]:
        """What is written down about the machine beside the settings of a study."""
        cuda = self.device == "cuda" and torch.cuda.is_available()
        name = torch.cuda.get_device_name() if cuda else self.device
        return {"device_name": name, "torch": torch.__version__}


def chosen_device(device: Accelerator) -> Accelerator:
    """Return the device, of ``"auto"`` a GPU if there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def made_by(settings: Mapping[str, Any]) -> str:
    """Return on what the runs of a folder were computed, and how, from its ``settings.json``."""
    version = f", with PyTorch {settings['torch']}" if "torch" in settings else ""
    return f"from runs on {settings['device_name']} {Machine(**settings['machine']).description}{version}"


def folder_name(text: str) -> str:
    """Return a text as the name of a folder."""
    return re.sub("[^A-Za-z0-9.-]+", "_", text)


def train_run(
    run: Run[JobT], build: Build, config: TrainingConfig, folder: Path, origin: Origin, within: Within
) -> Result:
    """Train one run in its folder, from its last checkpoint if it has one.

    Raises:
        Stopped: SIGTERM came before the end.
    """
    result = train(
        build, config, folder, resume=True, origin=origin,
        notice=lambda step, steps: within(f"step {step} of {steps}, {run.title}", step / steps),
    )  # fmt: skip
    if not result.finished:
        raise Stopped
    gc.collect()  # hooks and graphs refer to each other, and hold a network's memory
    return result
