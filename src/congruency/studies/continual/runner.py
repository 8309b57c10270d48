"""Executing runs of continual learning: MLPs of many seeds and methods as one batch, other networks one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from congruency.continual import STREAMS, Outcome, Setting, Stream, incremental, mlp, run_together, scores
from congruency.continual import run as run_alone
from congruency.continual.batched_runner import BATCHED_KINDS, stream_shape
from congruency.continual.config import memory_slice
from congruency.continual.gem_fast import FastGEM
from congruency.continual.networks import NarrowResNet18
from congruency.datasets import LabelledImages, load
from congruency.studies.continual.tables import CLEAN_SHARE, ContinualJob, StreamSettings
from congruency.studies.executor import Batch, Within
from congruency.studies.plan import Run
from congruency.studies.store import RunResult

_BATCH_BYTES = {"cpu": 3 << 30, "cuda": 40 << 30}  # that the runs of one batch may take
_HIDDEN = 100


@dataclass(frozen=True)
class ContinualRunner:
    """Executes the runs of one study; the states of interrupted batches are kept in ``folder``.

    Where ``agreement`` is not measured, runs that :class:`FastGEM` suits are executed one by one on a CPU.
    """

    settings: StreamSettings
    folder: Path
    data: Path | None = None
    device: str = "cpu"
    agreement: bool = True

    def prepare(self, runs: Sequence[Run[ContinualJob]]) -> None:
        stream = self.stream(runs[0].seed)
        if self.settings.network != "mlp":
            network(self.settings, stream, 1.0, 0)  # refuses a name that timm does not know
        if any(run.job.method.has_episodes or run.job.method.kind == "icarl" for run in runs):
            smallest = min(len(task.train) for task in stream.tasks)
            memory_slice(self.settings.policy, self.settings.memory, smallest)  # refuses what does not fit

    def stream(self, seed: int) -> Stream:
        """Return the stream of a seed."""
        train, test = _images(self.settings, self.data)
        samples = self.settings.samples or self.settings.stream_table.samples
        table, tasks = self.settings.stream_table, self.settings.number_of_tasks
        if table.scenario == "domain":
            return STREAMS[table.stream](train, test, tasks=tasks, samples=samples, seed=seed)
        scenario = self.settings.chosen_scenario
        return incremental(
            train, test, tasks=tasks, samples=samples, seed=seed, scenario=scenario, shuffle=table.shuffle
        )

    def batches(self, runs: Sequence[Run[ContinualJob]]) -> list[Batch[ContinualJob]]:
        """Put MLP runs of one stream shape and the same pending seeds together, as many as memory allows."""
        batched = [run for run in runs if self._batched(run) and not self._fast(run)]
        alone = [(run,) for run in runs if not self._batched(run) or self._fast(run)]
        shapes = {seed: stream_shape(self.stream(seed)) for seed in {run.seed for run in batched}}
        by_job: dict[tuple[ContinualJob, Any], list[Run[ContinualJob]]] = {}
        for run in batched:
            by_job.setdefault((run.job, shapes[run.seed]), []).append(run)
        alike: dict[tuple[int, ...], list[list[Run[ContinualJob]]]] = {}
        for of_job in by_job.values():
            alike.setdefault(tuple(run.seed for run in of_job), []).append(of_job)
        together = []
        for seeds, jobs in alike.items():
            tasks, memory = self.settings.number_of_tasks, self.settings.memory
            samples = 2 * 784 * memory * tasks  # for constraints, for replay
            per_seed = 4 * (90_000 * (tasks + 4) * len(jobs) + samples)
            size = max(1, _BATCH_BYTES["cpu" if self.device == "cpu" else "cuda"] // per_seed)
            for start in range(0, len(seeds), size):
                together.append(tuple(run for of_job in jobs for run in of_job[start : start + size]))
        return [*together, *alone]

    def _batched(self, run: Run[ContinualJob]) -> bool:
        return self.settings.network == "mlp" and run.job.method.kind in BATCHED_KINDS

    def _fast(self, run: Run[ContinualJob]) -> bool:
        return self._batched(run) and self.device == "cpu" and not self.agreement and FastGEM.suits(run.job.method)

    def run(self, batch: Batch[ContinualJob], within: Within) -> Iterator[tuple[Run[ContinualJob], RunResult]]:
        label = batch[0].title if len(batch) == 1 else f"{len(batch)} runs as one batch"

        def progress(done: int, total: int) -> None:
            within(label, done / total)

        if not self._batched(batch[0]):
            (alone,) = batch
            stream = self.stream(alone.seed)
            setting, settings = self._setting(stream, alone.seed), self.settings
            with _fastest_convolutions(self.device):
                outcome = run_alone(
                    stream, alone.job.method, setting, batch=settings.batch, device=self.device,
                    agreement=self.agreement, progress=progress,
                )  # fmt: skip
            yield alone, result_of(outcome)
            return
        seeds = list(dict.fromkeys(each.seed for each in batch))
        methods = list(dict.fromkeys(each.job.method for each in batch))
        state = self.folder / "state" / hashlib.sha256(repr((self.settings, seeds, methods)).encode()).hexdigest()[:12]
        state.parent.mkdir(parents=True, exist_ok=True)
        outcome = run_together(
            [self.stream(seed) for seed in seeds], methods, hidden=(_HIDDEN, _HIDDEN), batch=self.settings.batch,
            memory=self.settings.memory, policy=self.settings.policy, device=self.device,
            agreement=self.agreement, progress=progress, resume=state,
        )  # fmt: skip
        for each in batch:
            yield each, result_of(outcome, seeds.index(each.seed), methods.index(each.job.method))
        for left in state.parent.glob(state.name + ".*"):
            left.unlink()

    def _setting(self, stream: Stream, seed: int) -> Setting:
        def make(share: float) -> nn.Module:
            return placed(network(self.settings, stream, share, seed), self.device)

        return Setting(make, self.settings.number_of_tasks, seed, self.settings.memory, self.settings.policy)


@lru_cache(maxsize=2)
def _images(settings: StreamSettings, data: Path | None) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images, read once per process."""
    dataset = settings.dataset or settings.stream_table.base
    if settings.labels == "clean":
        return load(dataset, "test", data=data).divide(CLEAN_SHARE, seed=0)
    return load(dataset, "train", data=data), load(dataset, "test", data=data)


def network(settings: StreamSettings, stream: Stream, share: float, seed: int) -> nn.Module:
    """Return the network of a run, the same for the same seed; ``share`` scales its width."""
    channels, height, width = stream.shape
    if settings.network == "mlp":
        hidden = max(1, int(_HIDDEN * share))
        return mlp((channels * height * width, hidden, hidden, stream.classes), seed)
    torch.manual_seed(seed)
    if settings.network == "resnet":
        return NarrowResNet18(stream.classes, max(1, int(20 * share)), channels)
    import congruency._torchvision_compat  # noqa: F401  (timm imports torchvision)

    import timm  # isort: skip

    if settings.network not in timm.list_models():
        raise ValueError(f"there is no model {settings.network!r}: give mlp, resnet or a name that timm knows")
    made: nn.Module = timm.create_model(settings.network, num_classes=stream.classes, in_chans=channels)
    return made


def placed(model: nn.Module, device: str) -> nn.Module:
    """Return the network on a device; on a GPU in the memory format in which convolutions take half the time."""
    memory_format = torch.contiguous_format if device == "cpu" else torch.channels_last
    return model.to(device).to(memory_format=memory_format)  # type: ignore[call-overload,no-any-return]


@contextmanager
def _fastest_convolutions(device: str) -> Iterator[None]:
    """Let cuDNN try its algorithms for every new shape on a GPU; a run has few shapes and many steps."""
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, cudnn.benchmark or device != "cpu"
    try:
        yield
    finally:
        cudnn.benchmark = before


def result_of(outcome: Outcome, s: int = 0, m: int = 0) -> RunResult:
    """Return what is kept of the run of seed s and method m."""
    matrix, baseline = outcome.matrix[s, m], outcome.baseline[s]
    agreement, losses = outcome.agreement[s, m], outcome.losses[s, m]
    of_run = scores(matrix, baseline)
    figures = {
        "accuracy": of_run.accuracy.item(),
        "backward_transfer": of_run.backward_transfer.item(),
        "forward_transfer": of_run.forward_transfer.item(),
        "memory_agreement": agreement.nanmean().item(),
        "validation_loss": losses[-1].mean().item(),
        "forgetting": of_run.forgetting.item(),
    }
    arrays = {"matrix": matrix, "baseline": baseline, "agreement": agreement, "losses": losses}
    return RunResult(figures, {name: values.tolist() for name, values in arrays.items()})


def outcome_of(results: Sequence[RunResult]) -> Outcome:
    """Return kept runs of one method as an outcome of S seeds and one method."""
    parts = {
        name: torch.tensor([result.arrays[name] for result in results], dtype=torch.float64)
        for name in ("matrix", "baseline", "agreement", "losses")
    }
    return Outcome(
        parts["matrix"].unsqueeze(1), parts["baseline"], parts["agreement"].unsqueeze(1), parts["losses"].unsqueeze(1)
    )
