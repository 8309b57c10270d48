"""The language model study as plain data: sizes, grids, jobs and texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from congruency.language import PRESETS, LanguageSetup
from congruency.studies.plan import Column
from congruency.studies.tuned import TunedStudy
from congruency.training.config import Correction

SETUPS: dict[str, LanguageSetup] = {
    "tiny": LanguageSetup(
        shape=PRESETS["tiny"], steps=200, evaluate_steps=20, batch_size=16, warmup=20, evaluation_batches=16
    ),
    "medium": LanguageSetup(
        shape=PRESETS["medium"], steps=500, evaluate_steps=50, batch_size=32, warmup=50, evaluation_batches=16
    ),
    "10m": LanguageSetup(shape=PRESETS["10m"]),
    "100m": LanguageSetup(shape=PRESETS["100m"], steps=2000, batch_size=32, warmup=200, evaluation_batches=16),
}
"""The setup of each size, without learning rate and seed."""

RATES: dict[str, tuple[float, ...]] = {
    "tiny": (0.001, 0.002, 0.004, 0.008, 0.016),
    "medium": (0.001, 0.002, 0.004, 0.008, 0.016),
    "10m": (0.0005, 0.001, 0.002, 0.004, 0.008),
    "100m": (0.00025, 0.0005, 0.001, 0.002, 0.004),
}
"""The learning rates of each size, the same for every method."""

VALIDATION_LOSS = Column(key="validation loss", title="Validation loss", unit="nats per byte", digits=4)

_NOTES = (("Validation loss", "Cross entropy of the next byte on fixed windows of held-out files, in nats per byte."),)


def shared_settings(setup: LanguageSetup) -> dict[str, Any]:
    """Return the settings shared by all runs of a study, in JSON types."""
    shared = {name: value for name, value in asdict(setup).items() if name not in ("seed", "learning_rate")}
    return {**shared, "betas": list(setup.betas)}


@dataclass(frozen=True)
class LanguageJob:
    """A run of the study, without its seed."""

    setup: LanguageSetup
    method: Correction

    @property
    def label(self) -> str:
        return ""

    @property
    def columns(self) -> Mapping[str, str]:
        return {VALIDATION_LOSS.key: "validation_loss"}

    def digest(self) -> str:
        """Hash the setup and the method's non-default settings, so that new settings keep old digests valid."""
        setup = {name: value for name, value in asdict(self.setup).items() if name != "seed"}
        usual = asdict(Correction())
        method = {name: value for name, value in asdict(self.method).items() if value != usual.get(name)}
        return hashlib.sha256(json.dumps([setup, method], sort_keys=True).encode()).hexdigest()[:12]


def language_study(
    size: str, setup: LanguageSetup, methods: Mapping[str, Correction], rates: Sequence[float]
) -> TunedStudy[LanguageJob]:
    """Return the study of one model size: AdamW with each method at its best learning rate."""
    shape = setup.shape
    return TunedStudy(
        name="language",
        title=f"Language modelling, GPT {size}",
        lead=f"A byte-level GPT of width {shape.width} and {shape.layers} layers trained with AdamW for {setup.steps} "
        f"steps of {setup.batch_size} windows of {shape.context} bytes. Within a seed all methods begin with the same "
        "weights and see the same windows.",
        job=lambda method, rate: LanguageJob(replace(setup, learning_rate=rate), method),
        methods=methods,
        rates=rates,
        column=VALIDATION_LOSS,
        curve="validation_loss",
        notes=_NOTES,
    )
