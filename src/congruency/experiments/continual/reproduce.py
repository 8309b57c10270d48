"""Running a continual-learning table: every row, every seed, what is finished never again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from congruency.continual import STREAMS, Outcome, Setting, Stream, mlp, run, run_together
from congruency.continual.methods import Method
from congruency.continual.networks import NarrowResNet18
from congruency.continual.vectorised import STACKED_KINDS, stream_shape
from congruency.datasets import LabelledImages, load
from congruency.experiments.continual.store import Store
from congruency.experiments.continual.tables import TABLES, Row, StreamTable, pick
from congruency.memory import Policy

__all__ = ["Labels", "Results", "Settings", "run_rows"]

Labels = Literal["clean", "noisy", "given"]
Results = dict[str, Outcome]  # by row; S seeds, M = 1

_CLEAN_SHARE = 0.8  # of the clean images of each class, for training
_ROOM = {"cpu": 3 << 30, "cuda": 40 << 30}  # bytes that the runs of one batch may take
_HIDDEN = 100


@dataclass(frozen=True)
class Settings:
    """What to run.

    Attributes:
        table: a name of :data:`TABLES`.
        seeds: one run of every row each.
        rows: names of rows; empty runs all.
        data: the folder of data sets.
        device: where to compute.
        base: another labelled image set instead of the table's, a name or a path.
        labels: for CIFAR-100: ``"clean"`` divides the clean test images, ``"noisy"`` trains on the noisy training
            images; ``"given"`` takes the set as it is.
        network: ``"mlp"``, ``"resnet"`` or a timm name instead of the table's.
        tasks: how many.
        samples: of every task; None takes the table's.
        batch: samples in a step.
        memory: samples kept of every task.
        policy: which.
    """

    table: str
    seeds: Sequence[int] = tuple(range(5))
    rows: Sequence[str] = ()
    data: Path | None = None
    device: str = "cpu"
    base: str | None = None
    labels: Labels = "given"
    network: str | None = None
    tasks: int = 20
    samples: int | None = None
    batch: int = 10
    memory: int = 256
    policy: Policy = "first"

    def __post_init__(self) -> None:
        if self.table not in TABLES:
            raise ValueError(f"there is no table {self.table!r}; the tables are {', '.join(TABLES)}")
        if not self.seeds:
            raise ValueError("at least one seed is needed")
        if self.labels not in get_args(Labels):
            raise ValueError(f"labels must be one of {', '.join(get_args(Labels))}, got {self.labels!r}")
        if self.labels != "given" and (self.table != "icifar100" or self.base is not None):
            raise ValueError(f"labels {self.labels!r} are for CIFAR-100, the images of icifar100; leave them as given")

    @property
    def stream_table(self) -> StreamTable:
        return TABLES[self.table]

    @property
    def chosen(self) -> list[Row]:
        """The rows to run."""
        return pick(self.stream_table, self.rows)

    @property
    def network_name(self) -> str:
        return self.network or self.stream_table.network

    def described(self) -> dict[str, Any]:
        """All that changes what comes out, but for row and seed."""
        return {
            "table": self.table,
            "base": Path(self.base).name if self.base else self.stream_table.base,
            "labels": self.labels,
            "network": self.network_name,
            "tasks": self.tasks,
            "samples": self.samples or self.stream_table.samples,
            "batch": self.batch,
            "memory": self.memory,
            "policy": self.policy,
        }


def run_rows(
    settings: Settings,
    folder: Path,
    progress: Callable[[str, float, float], Any] | None = None,
    methods: Sequence[Method] | None = None,
) -> Results:
    """Run what is not finished yet and return everything, row by row.

    Args:
        settings: What to run.
        folder: Where finished runs are kept.
        progress: Called with a label, the work done and the work in all, in tasks learned by one run.
        methods: To run instead of the settings' rows.
    """
    wanted = list(methods) if methods is not None else [row.method for row in settings.chosen]
    store = Store(folder / "runs", settings.described())
    streams = _Streams(settings)
    missing = {method: [seed for seed in settings.seeds if store.load(method, seed) is None] for method in wanted}
    total = sum(map(len, missing.values())) * settings.tasks
    bar = _Bar(progress, total)
    for seeds, group in _together(settings, missing, streams):
        _run_together(settings, streams, store, folder, seeds, group, bar)
    for method, seeds in missing.items():
        if not _stacks(settings, method):
            for seed in seeds:
                bar.label = f"{method.name}, seed {seed}"
                store.save(method, seed, _run_alone(settings, streams(seed), method, seed, bar))
    return {method.name: _joined([store.load(method, seed) for seed in settings.seeds]) for method in wanted}


@dataclass
class _Bar:
    """Work done, told as it is done."""

    tell: Callable[[str, float, float], Any] | None
    total: float
    done: float = 0.0
    label: str = field(default="")

    def advance(self, amount: float) -> None:
        self.done += amount
        if self.tell is not None:
            self.tell(self.label, self.done, self.total)


class _Streams:
    """The stream of every seed, from images that are read once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._images: tuple[LabelledImages, LabelledImages] | None = None
        self._shapes: dict[int, tuple[Any, ...]] = {}

    def shape(self, seed: int) -> tuple[Any, ...]:
        if seed not in self._shapes:
            self._shapes[seed] = stream_shape(self(seed))
        return self._shapes[seed]

    def __call__(self, seed: int) -> Stream:
        settings = self._settings
        train, test = self._images = self._images or base_images(settings)
        make = STREAMS[settings.stream_table.stream]
        samples = settings.samples or settings.stream_table.samples
        return make(train, test, tasks=settings.tasks, samples=samples, seed=seed)


def base_images(settings: Settings) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images of a table."""
    base = settings.base or settings.stream_table.base
    if settings.labels == "clean":
        return load(base, "test", data=settings.data).divide(_CLEAN_SHARE, seed=0)
    return load(base, "train", data=settings.data), load(base, "test", data=settings.data)


def _stacks(settings: Settings, method: Method) -> bool:
    return settings.network_name == "mlp" and method.kind in STACKED_KINDS


def _together(
    settings: Settings, missing: dict[Method, list[int]], streams: _Streams
) -> list[tuple[list[int], list[Method]]]:
    """Seeds and methods that can run as one batch: streams of one shape, the same seeds missing, room for all."""
    alike: dict[tuple[int, ...], list[Method]] = {}
    for method, seeds in missing.items():
        if _stacks(settings, method):
            for part in _of_one_shape(seeds, streams):
                alike.setdefault(part, []).append(method)
    batches = []
    for missed, group in alike.items():
        rows = 4 * 90_000 * (settings.tasks + 4) * len(group) + 4 * 784 * settings.memory * settings.tasks
        size = max(1, _ROOM["cpu" if settings.device == "cpu" else "cuda"] // rows)
        batches += [(list(missed[i : i + size]), group) for i in range(0, len(missed), size)]
    return batches


def _of_one_shape(seeds: Sequence[int], streams: _Streams) -> list[tuple[int, ...]]:
    """The seeds in parts: where classes differ in size, what is in a task differs between seeds."""
    parts: dict[tuple[Any, ...], list[int]] = {}
    for seed in seeds:
        parts.setdefault(streams.shape(seed), []).append(seed)
    return [tuple(part) for part in parts.values()]


def _run_together(
    settings: Settings, streams: _Streams, store: Store, folder: Path, seeds: list[int], group: list[Method], bar: _Bar
) -> None:
    bar.label = f"{len(group)} rows, seeds {seeds[0]} to {seeds[-1]}"
    runs = len(seeds) * len(group)
    before = bar.done

    def advance(done: int, total: int) -> None:
        bar.advance(before + runs * settings.tasks * done / total - bar.done)

    described = repr((settings.described(), seeds, group)).encode()
    state = folder / "state" / hashlib.sha256(described).hexdigest()[:12]
    state.parent.mkdir(parents=True, exist_ok=True)
    outcome = run_together(
        [streams(seed) for seed in seeds], group, hidden=(_HIDDEN, _HIDDEN), batch=settings.batch,
        memory=settings.memory, policy=settings.policy, device=settings.device, progress=advance, resume=state,
    )  # fmt: skip
    for s, seed in enumerate(seeds):
        for m, method in enumerate(group):
            one = Outcome(
                outcome.matrix[s, m][None, None], outcome.baseline[s][None], outcome.agreement[s, m][None, None],
                outcome.losses[s, m][None, None],
            )  # fmt: skip
            store.save(method, seed, one)
    for left in state.parent.glob(state.name + ".*"):
        left.unlink()


def _run_alone(settings: Settings, stream: Stream, method: Method, seed: int, bar: _Bar) -> Outcome:
    def make(share: float) -> nn.Module:
        return network(settings, stream, share, seed).to(settings.device)

    setting = Setting(make, settings.tasks, seed, settings.memory, settings.policy)
    return run(
        stream,
        method,
        setting,
        batch=settings.batch,
        device=settings.device,
        progress=lambda done, total: bar.advance(1),
    )


def network(settings: Settings, stream: Stream, share: float, seed: int) -> nn.Module:
    """The network of a run, the same for the same seed."""
    channels, height, width = stream.shape
    if settings.network_name == "mlp":
        hidden = max(1, int(_HIDDEN * share))
        return mlp((channels * height * width, hidden, hidden, stream.classes), seed)
    torch.manual_seed(seed)
    if settings.network_name == "resnet":
        return NarrowResNet18(stream.classes, max(1, int(20 * share)), channels)
    import congruency._torchvision_compat  # noqa: F401  (timm imports torchvision)

    import timm  # isort: skip

    if settings.network_name not in timm.list_models():
        raise ValueError(f"there is no network {settings.network_name!r}: give mlp, resnet or a name that timm knows")
    made: nn.Module = timm.create_model(settings.network_name, num_classes=stream.classes, in_chans=channels)
    return made


def _joined(outcomes: Sequence[Outcome | None]) -> Outcome:
    found = [outcome for outcome in outcomes if outcome is not None]
    return Outcome(
        torch.cat([o.matrix for o in found]), torch.cat([o.baseline for o in found]),
        torch.cat([o.agreement for o in found]), torch.cat([o.losses for o in found]),
    )  # fmt: skip
