"""A byte-level language model as a task of the training loop.

Windows of text are drawn at random, so there are no passes over the corpus; the loop's epochs are the intervals between
evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from congruency._validate import check_whole
from congruency.language.corpus import Corpus
from congruency.language.model import GPT, PRESETS, Shape
from congruency.seeds import hashed_seed
from congruency.training.config import Correction, TrainingConfig
from congruency.training.task import Build, Place, Task

__all__ = ["LanguageSetup", "Windows", "build", "describe", "evaluate", "training_config"]


@dataclass(frozen=True, kw_only=True)
class LanguageSetup:
    """A GPT, its batches, and AdamW with warm-up and cosine decay.

    Attributes:
        shape: Size of the network, such as one of :data:`congruency.language.PRESETS`.
        tied: Share the weights of embedding and last layer.
        steps: Optimizer steps.
        evaluate_steps: Steps between evaluations, a divisor of ``steps``.
        batch_size: Windows per step, over all processes and accumulated batches.
        accumulate: Number of batches into which a step's windows are split, to save memory; the windows are the same.
        learning_rate: Peak learning rate.
        warmup: Steps over which the rate rises.
        final_rate: Final rate as a share of the peak rate.
        betas, weight_decay: Settings of AdamW; only matrices decay.
        clip: Maximum gradient norm, None for no clipping.
        evaluation_batches: Number of batches of held-out windows, which are the same for all runs.
        seed: Seed of the windows; the initial weights depend on the seed of the training configuration.
    """

    shape: Shape = PRESETS["tiny"]
    tied: bool = True
    steps: int = 1500
    evaluate_steps: int = 100
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: int = 100
    final_rate: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float | None = 1.0
    evaluation_batches: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "evaluate_steps", "batch_size", "accumulate", "evaluation_batches"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("warmup", "seed"):
            check_whole(name, getattr(self, name), least=0)
        if self.steps % self.evaluate_steps:
            raise ValueError(f"steps must be a multiple of evaluate_steps, got {self.steps} and {self.evaluate_steps}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size must be a multiple of accumulate, got {self.batch_size}, {self.accumulate}")
        if self.warmup >= self.steps:
            raise ValueError(f"warmup must be shorter than the {self.steps} steps, got {self.warmup}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if not 0 <= self.final_rate <= 1:
            raise ValueError(f"final_rate must be a share from 0 to 1, got {self.final_rate}")


def training_config(setup: LanguageSetup, method: Correction, **machine: Any) -> TrainingConfig:
    """Return the training configuration; ``machine`` are further fields of it, such as ``precision``."""
    return TrainingConfig(
        epochs=setup.steps // setup.evaluate_steps, seed=setup.seed, method=method, accumulate=setup.accumulate,
        clip=setup.clip, **machine,
    )  # fmt: skip


def build(setup: LanguageSetup, corpus: Corpus) -> Build:
    """Return the builder of the task for :func:`congruency.training.train`.

    Raises:
        ValueError: The training or held-out text is shorter than a window.
    """
    for name, text in (("training", corpus.train), ("held-out", corpus.held_out)):
        if len(text) <= setup.shape.context:
            raise ValueError(
                f"the {name} text of {corpus.name} has {len(text)} bytes, too few for a context of "
                f"{setup.shape.context} and the byte after it; use more text, or a shorter context"
            )

    def make(place: Place) -> Task:
        held_out = _cut(corpus.held_out.to(place.device), _held_out_offsets(setup, corpus, place), setup.shape.context)
        return Task(
            model=GPT(setup.shape, tied=setup.tied),
            optimizer=lambda model: _optimizer(setup, model, place),
            loss=_loss,
            data=Windows(corpus.train, setup, place),
            schedule=lambda optimizer: LambdaLR(optimizer, lambda step: _rate(setup, step)),
            schedule_every="step",
            evaluate=lambda model: evaluate(model, held_out.chunk(setup.evaluation_batches), place),
            description=describe(setup, corpus),
        )

    return make


def describe(setup: LanguageSetup, corpus: Corpus) -> dict[str, Any]:
    """Return the setup and the corpus for the run record."""
    return {**asdict(setup), "betas": list(setup.betas), **corpus.describe()}


class Windows:
    """Batches of random windows of a text, which depend only on the seed, the epoch and the position.

    A batch is a pair of (B, context) int64 tensors, the bytes and their successors. The text is on the device, and the
    offsets of an epoch are drawn on the host at once, so that no step waits for the device.
    """

    def __init__(self, text: Tensor, setup: LanguageSetup, place: Place) -> None:
        parts = setup.accumulate * place.world_size
        if setup.batch_size % parts:
            raise ValueError(
                f"batch_size must be a multiple of accumulated batches times processes, got {setup.batch_size} and "
                f"{setup.accumulate} * {place.world_size}"
            )
        self._text, self._setup, self._place = text.to(place.device), setup, place

    def __len__(self) -> int:
        return self._setup.evaluate_steps * self._setup.accumulate

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        setup, place = self._setup, self._place
        drawn = torch.Generator().manual_seed(hashed_seed(("windows", setup.seed, epoch)))
        count = (setup.evaluate_steps, setup.batch_size)
        offsets = torch.randint(len(self._text) - setup.shape.context, count, generator=drawn)
        own = offsets.view(len(self), place.world_size, -1)[:, place.rank].to(place.device)
        for i in range(start, len(self)):
            windows = _cut(self._text, own[i], setup.shape.context)
            yield windows[:, :-1], windows[:, 1:]


def _cut(text: Tensor, offsets: Tensor, context: int) -> Tensor:
    """Return windows of ``context + 1`` bytes, (B, context + 1) int64."""
    return text[offsets[:, None] + torch.arange(context + 1, device=text.device)].long()


def _held_out_offsets(setup: LanguageSetup, corpus: Corpus, place: Place) -> Tensor:
    """Return the offsets of this process's share of the held-out windows, evenly spaced over the text."""
    count, last = setup.evaluation_batches * setup.batch_size, len(corpus.held_out) - setup.shape.context - 1
    offsets = torch.arange(count, dtype=torch.float64) * (last / max(1, count - 1))
    return offsets.long()[place.rank :: place.world_size].to(place.device)


def evaluate(model: nn.Module, batches: tuple[Tensor, ...], place: Place) -> dict[str, float]:
    """Return the loss in nats per byte over the windows, (B, context + 1) per batch, of all processes."""
    totals = torch.zeros(2, dtype=torch.float64, device=place.device)
    for windows in batches:
        totals[0] += _loss(model(windows[:, :-1]), windows[:, 1:]) * len(windows)
        totals[1] += len(windows)
    loss, count = place.sum(totals).tolist()
    return {"loss": loss / count}


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _optimizer(setup: LanguageSetup, model: nn.Module, place: Place) -> AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": setup.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return AdamW(groups, lr=setup.learning_rate, betas=setup.betas, fused=place.fused_optimizer or None)


def _rate(setup: LanguageSetup, step: int) -> float:
    """Return the learning rate of a step as a share of the peak rate."""
    if step < setup.warmup:
        return (step + 1) / (setup.warmup + 1)
    done = min(1.0, (step - setup.warmup) / (setup.steps - setup.warmup))
    return setup.final_rate + (1 - setup.final_rate) * 0.5 * (1 + math.cos(math.pi * done))
