"""The paper's three continual-learning tables: their streams, their rows, their numbers.

The equations (``mode="concentrate"``) and the published code (``mode="anchor"``, references recorded after the step,
which is our ``offset=1``) are different methods: both are run, with the margin of the published code, 0.5, and with 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from congruency.constraints.memory import Policy
from congruency.constraints.references import Mode
from congruency.continual import Scenario
from congruency.continual.config import Kind, LearnerConfig
from congruency.studies.plan import Column, Row, Study, pick

MODES: tuple[Mode, ...] = ("concentrate", "anchor")
Labels = Literal["clean", "noisy", "given"]
Numbers = tuple[float, float, float]  # accuracy in percent, backward and forward transfer
Table = Literal["mnist_r", "mnist_p", "icifar100", "split_mnist", "split_cifar10"]

SCORES = (
    Column(key="accuracy", title="Accuracy, %", scale=100),
    Column(key="backward_transfer", title="BWT", unit="", digits=4),
    Column(key="forward_transfer", title="FWT", unit="", digits=4),
)
AGREEMENT = Column(key="memory_agreement", title="mean cosine of updates and memory", unit="", digits=4, in_table=False)
"""Of the paper's rows only: on a CPU it takes nearly half of the time of GEM's runs."""
COLUMNS = (*SCORES, AGREEMENT)
FORGETTING = Column(key="forgetting", title="Forgetting", unit="", digits=4)
FIGURES = (*(column.key for column in COLUMNS), "validation_loss")
"""The figures of a run."""
CLEAN_SHARE = 0.8  # of the clean images of each class, for training
_CLEAN_IMAGES, _CLEAN_CLASSES = 100, 100  # of each class of CIFAR-100, and how many classes
_CAPTION = "Rows of DCL with memory and margin 0 are compared with GEM, margin 0, all others with GEM."


@dataclass(frozen=True)
class TableRow:
    """A row of the paper's tables, named by its method."""

    method: LearnerConfig
    paper: Numbers | None = None
    against: str = "GEM"  # the row it is compared with
    on_request: bool = False  # run only where asked for by name


@dataclass(frozen=True)
class StreamTable:
    """A table of the paper: its stream, its network and all rows that can be run."""

    title: str
    base: str  # the labelled image set
    stream: str  # a name of congruency.continual.STREAMS
    samples: int  # per task
    network: str  # "mlp", "resnet" (narrow ResNet-18), or a timm name
    rows: tuple[TableRow, ...]
    scenario: Scenario = "domain"
    tasks: int = 20
    shuffle: bool = True  # the classes, by the seed


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """What the runs of a study have in common.

    Attributes:
        table: a name of :data:`TABLES`.
        dataset: another labelled image set instead of the table's, a name or a path.
        labels: for CIFAR-100: ``"clean"`` divides the clean test images, ``"noisy"`` trains on the noisy training
            images; ``"given"`` takes the set as it is.
        model: ``"mlp"``, ``"resnet"`` or a timm name instead of the table's.
        scenario: whether a test image comes with its task, for tasks with classes of their own; None takes the table's.
        tasks: how many; None takes the table's.
        samples: per task; None takes the table's.
        batch: samples per step.
        memory: samples kept per task.
        policy: which samples to keep.
    """

    table: Table
    dataset: str | None = None
    labels: Labels = "given"
    model: str | None = None
    scenario: Scenario | None = None
    tasks: int | None = None
    samples: int | None = None
    batch: int = 10
    memory: int = 256
    policy: Policy = "first"

    def __post_init__(self) -> None:
        if self.labels != "given" and (self.table != "icifar100" or self.dataset is not None):
            raise ValueError(f"labels {self.labels!r} are for CIFAR-100, the images of icifar100; leave them as given")
        if self.scenario is not None and (self.scenario == "domain") != (self.stream_table.scenario == "domain"):
            raise ValueError(f"the tasks of {self.table} are of scenario {self.stream_table.scenario!r}; leave it out")

    @property
    def stream_table(self) -> StreamTable:
        return TABLES[self.table] if self.table in TABLES else SPLITS[self.table]

    @property
    def chosen_scenario(self) -> Scenario:
        return self.scenario or self.stream_table.scenario

    @property
    def number_of_tasks(self) -> int:
        return self.tasks or self.stream_table.tasks

    @property
    def most_samples(self) -> int:
        """How many samples a task has at most: fewer than asked for where there are only so many clean images."""
        asked = self.samples or self.stream_table.samples
        if self.labels != "clean":
            return asked
        return min(asked, int(CLEAN_SHARE * _CLEAN_IMAGES) * (_CLEAN_CLASSES // self.number_of_tasks))

    @property
    def network(self) -> str:
        return self.model or self.stream_table.network

    def described(self) -> dict[str, Any]:
        """Return all that changes a result except for row and seed, as records on disk name it."""
        named = self.table in SPLITS or self.chosen_scenario != self.stream_table.scenario  # older records do not say
        return {
            "table": self.table,
            "base": Path(self.dataset).name if self.dataset else self.stream_table.base,
            "labels": self.labels,
            "network": self.network,
            "tasks": self.number_of_tasks,
            "samples": self.samples or self.stream_table.samples,
            "batch": self.batch,
            "memory": self.memory,
            "policy": self.policy,
            **({"scenario": self.chosen_scenario} if named else {}),
        }


@dataclass(frozen=True)
class ContinualJob:
    """A method on a stream."""

    settings: StreamSettings
    method: LearnerConfig
    label: str = ""

    @property
    def columns(self) -> Mapping[str, str]:
        return {figure: figure for figure in FIGURES}

    def digest(self) -> str:
        """Fields of the method at their defaults are left out, so that new ones leave finished runs finished."""
        defaults = {field.name: field.default for field in fields(LearnerConfig)}
        changed = {name: value for name, value in asdict(self.method).items() if value != defaults.get(name)}
        described = [self.settings.described(), changed]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]


def continual_study(
    settings: StreamSettings, names: Sequence[str] = (), rows: Sequence[TableRow] | None = None, caption: str = _CAPTION
) -> Study[ContinualJob]:
    """Return a table as a study: the rows with these names, all that are not on request where none is given.

    ``rows`` are run instead of the paper's; their table shows forgetting too, and no agreement with the memory.
    """
    chosen = settings.stream_table.rows if rows is None else rows
    study = Study(
        name=settings.table,
        title=_title(settings),
        lead=_lead(settings),
        rows=tuple(_row(settings, row) for row in chosen if names or not row.on_request),
        columns=COLUMNS if rows is None else (*SCORES, FORGETTING),
        notes=_NOTES if rows is None else (*_NOTES, *_FURTHER_NOTES),
    )
    study = pick(study, names)
    return replace(study, caption=caption + _too_long(settings, study.rows))


def _too_long(settings: StreamSettings, rows: Sequence[Row[ContinualJob]]) -> str:
    """A sentence on windows that never end within a task, as in quick tries."""
    steps = -(-settings.most_samples // settings.batch)
    windows = {job.method.window for row in rows for job in row.jobs} - {None}
    longer = sorted(window for window in windows if window is not None and window >= steps)
    if not longer:
        return ""
    listed = ", ".join(map(str, longer))
    return (
        f" A task has {steps} steps: windows as long or longer ({listed}) never renew their reference within one"
        + (", and rows that differ in nothing else are equal" if len(longer) > 1 else "")
        + ("." if settings.labels == "clean" else "; give more --samples.")
    )


def _row(settings: StreamSettings, row: TableRow) -> Row[ContinualJob]:
    name = row.method.name
    as_printed = row.paper is not None and settings.dataset is None and settings.model is None
    return Row(
        name=name,
        jobs=(ContinualJob(settings, row.method),),
        paper=dict(zip(FIGURES[:3], row.paper or (), strict=True)) if as_printed else {},
        against=row.against if row.against != name else None,
        settings=asdict(row.method),
    )


def _title(settings: StreamSettings) -> str:
    labels = {"clean": ", clean images only", "noisy": ", noisy training labels", "given": ""}[settings.labels]
    other = f", {Path(settings.dataset).name} instead of {settings.stream_table.base}" if settings.dataset else ""
    return f"{settings.stream_table.title}{labels}{other}"


def _lead(settings: StreamSettings) -> str:
    described = settings.described()
    text = (
        f"{described['tasks']} tasks of up to {settings.most_samples} samples, one pass in batches of "
        f"{described['batch']}, {described['memory']} samples of each task kept ({described['policy']} seen), "
        f"network {described['network']}, plain SGD. Within a seed all rows see the same stream from the same weights."
    )
    if settings.network == "mlp":
        text += (
            " The runs are by congruency.continual.run_together, an implementation of its own, which the tests compare "
            "with congruency.DCL and congruency.GEM."
        )
    if "scenario" in described:
        text += _SCENARIOS[settings.chosen_scenario]
    if settings.labels == "clean":
        share = min(1.0, settings.memory / settings.most_samples)
        text += (
            " Only the clean test images of CIFAR-100 are used: four fifths of each class to train, one to test. "
            f"The memory keeps {100 * share:.0f} % of a task's samples; that of the paper, 256 of 2500, keeps 10 %."
        )
    if settings.labels == "noisy":
        text += " About a fifth of the training labels are wrong; the test labels are clean."
    return text


_SCENARIOS: dict[Scenario, str] = {
    "domain": " Domain-incremental: all tasks have the same classes; the task is not given at test time.",
    "task": " Task-incremental: the task is given at test time, and predictions are among its classes.",
    "class": " Class-incremental: the task is not given at test time, and predictions are among all classes.",
}
_FURTHER_NOTES = (
    ("Forgetting", "Best accuracy on a task at any time before the last task, minus that after it; mean over tasks."),
)
_NOTES = (
    ("Accuracy", "Mean over all tasks after the last one."),
    ("BWT, backward transfer", "How much later tasks changed the accuracy on earlier ones; below 0 is forgetting."),
    ("FWT, forward transfer", "How much better than the untrained network a task is solved before it is learned."),
    (
        "Validation loss",
        "Mean cross entropy of the test images, in nats, over the classes of their task; that of iCaRL is of its "
        "network's outputs, by which it learns, not of the nearest class means, by which it predicts. Runs from before "
        "losses were recorded have none.",
    ),
    (
        "DCL-W-N MEM",
        "N reference points, renewed every W steps and discarded at every task, together with GEM's memory. "
        "Concentrate: the paper's equations, no step opposes the accumulated gradient. Anchor: the paper's published "
        "code, which pulls weights back toward the reference, and records it one step later.",
    ),
    (
        "Margin",
        "Lower bound of every constraint's multiplier: 0 is the exact projection, 0.5 what GEM's code and the paper "
        "use.",
    ),
)


def _with_memory(network: str, windows: dict[int, Numbers | None]) -> list[TableRow]:
    """DCL with GEM's memory: each window in both modes, with both margins."""
    rows = []
    for window, numbers in windows.items():
        name = f"{network} DCL-{window}-1 MEM"
        for mode in MODES:
            for margin in (0.0, 0.5):
                method = LearnerConfig(
                    f"{name}, {mode}, margin {margin:g}", "dcl_memory", mode=mode, window=window,
                    offset=int(mode == "anchor"), memory_margin=margin, reference_margin=margin,
                )  # fmt: skip
                # the paper's number came from the published code: anchor with margin 0.5
                shown = numbers if mode == "anchor" and margin else None
                rows.append(TableRow(method, shown, "GEM" if margin else "GEM, margin 0"))
    return rows


def _alone(network: str, window: int) -> list[TableRow]:
    """DCL without memory, in both modes."""
    name = f"{network} DCL-{window}-1"
    return [
        TableRow(
            LearnerConfig(f"{name}, {mode}, margin 0", "dcl", mode=mode, window=window, offset=int(mode == "anchor"))
        )
        for mode in MODES
    ]


def _gem(name: str, numbers: Numbers) -> list[TableRow]:
    return [
        TableRow(LearnerConfig(name, "gem", memory_margin=0.5), numbers, name),
        TableRow(LearnerConfig(f"{name}, margin 0", "gem"), None, name),
    ]


def _mnist(
    stream: str, ewc: LearnerConfig, ewc_numbers: Numbers, gem: Numbers, windows: dict[int, Numbers | None]
) -> StreamTable:
    return StreamTable(
        f"MNIST {stream}", "mnist", stream, 1000, "mlp",
        (
            TableRow(LearnerConfig("single", "single")),
            TableRow(LearnerConfig("independent", "independent"), on_request=True),
            TableRow(LearnerConfig("multimodal", "multimodal"), on_request=True),
            TableRow(ewc, ewc_numbers),
            TableRow(LearnerConfig("A-GEM", "agem")),
            *_gem("GEM", gem),
            *_alone("MLP", min(windows)),
            *_with_memory("MLP", windows),
        ),
    )  # fmt: skip


TUNED: dict[Table, dict[Kind, LearnerConfig]] = {
    "mnist_r": {"ewc": LearnerConfig("EWC", "ewc", lr=0.01, strength=10.0)},
    "mnist_p": {"ewc": LearnerConfig("EWC", "ewc", lr=0.1, strength=1.0)},
    "icifar100": {
        "ewc": LearnerConfig("EWC", "ewc", lr=0.003, strength=0.01),
        "icarl": LearnerConfig("iCARL", "icarl", lr=0.03, strength=1.0),
    },
}
"""Learning rates and strengths of the losses, searched on held-out seeds (`--tune KIND`)."""

TABLES: dict[Table, StreamTable] = {
    "mnist_r": _mnist(
        "rotations",
        TUNED["mnist_r"]["ewc"],
        (54.61, -0.2087, 0.5574),
        (83.35, -0.0047, 0.6521),
        {30: (84.08, 0.0094, 0.6423), 40: (84.02, 0.0127, 0.6351), 50: (82.77, 0.0238, 0.6111)},
    ),
    "mnist_p": _mnist(
        "permutations",
        TUNED["mnist_p"]["ewc"],
        (59.31, -0.1960, -0.0075),
        (82.44, 0.0224, -0.0095),
        {3: (82.30, 0.0248, -0.0038), 4: (82.58, 0.0402, -0.0092), 5: (82.10, 0.0464, -0.0095)},
    ),
    "icifar100": StreamTable(
        "incremental CIFAR-100", "cifar100", "incremental", 2500, "resnet",
        (
            TableRow(LearnerConfig("single", "single"), against="ResNet GEM"),
            TableRow(TUNED["icifar100"]["ewc"], (48.33, -0.1050, 0.0216), "ResNet GEM"),
            TableRow(TUNED["icifar100"]["icarl"], (51.56, -0.0848, 0.0), "ResNet GEM"),
            *_gem("ResNet GEM", (66.67, 0.0001, 0.0108)),
            *(
                TableRow(row.method, row.paper, f"ResNet {row.against}")
                for row in _with_memory("ResNet", {
                    4: (67.92, 0.0063, 0.0102), 8: (67.27, 0.0104, 0.0190), 12: (66.58, 0.0089, 0.0139),
                    20: (66.56, 0.0030, 0.0102), 24: (64.97, 0.0082, 0.0238), 32: (66.10, 0.0305, 0.0176),
                    50: (64.86, 0.0244, 0.0125),
                })
            ),
        ),
        scenario="task",
    ),
}  # fmt: skip
"""The tables of the paper."""

SPLITS: dict[Table, StreamTable] = {
    "split_mnist": StreamTable("split MNIST", "mnist", "incremental", 2000, "mlp", (), "class", 5, shuffle=False),
    "split_cifar10": StreamTable(
        "split CIFAR-10", "cifar10", "incremental", 2500, "resnet", (), "class", 5, shuffle=False
    ),
}
"""Streams that the paper does not have: the classes in their order, two per task."""
