"""The paper's three continual-learning tables: their streams, their rows, their numbers.

The equations (``mode="concentrate"``) and the published code (``mode="anchor"``, references recorded after the step,
which is our ``offset=1``) are different methods: both are run, with the margin of the published code, 0.5, and with 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from congruency.continual.config import LearnerConfig
from congruency.references import Mode

__all__ = ["TABLES", "Row", "StreamTable", "pick"]

MODES: tuple[Mode, ...] = ("concentrate", "anchor")
Numbers = tuple[float, float, float]  # accuracy in percent, backward and forward transfer


@dataclass(frozen=True)
class Row:
    """A row to run.

    Attributes:
        name: what tables call it.
        method: how it learns.
        paper: the paper's accuracy in percent, backward and forward transfer.
        against: the row it is compared with.
        on_request: run only where asked for by name.
    """

    name: str
    method: LearnerConfig
    paper: Numbers | None = None
    against: str = "GEM"
    on_request: bool = False


@dataclass(frozen=True)
class StreamTable:
    """A table of the paper.

    Attributes:
        title: what it shows.
        base: the labelled image set.
        stream: how tasks are made of it, a name of :data:`congruency.continual.STREAMS`.
        samples: of every task.
        network: ``"mlp"``, ``"resnet"`` (narrow ResNet-18), or a timm name.
        rows: all that can be run.
    """

    title: str
    base: str
    stream: str
    samples: int
    network: str
    rows: tuple[Row, ...]


def _with_memory(network: str, windows: dict[int, Numbers | None]) -> list[Row]:
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
                rows.append(Row(method.name, method, shown, "GEM" if margin else "GEM, margin 0"))
    return rows


def _alone(network: str, window: int) -> list[Row]:
    """DCL without memory, in both modes."""
    return [
        Row(method.name, method)
        for mode in MODES
        for method in [
            LearnerConfig(f"{network} DCL-{window}-1, {mode}, margin 0", "dcl", mode=mode, window=window,
                   offset=int(mode == "anchor"))
        ]
    ]  # fmt: skip


def _gem(name: str, numbers: Numbers) -> list[Row]:
    return [
        Row(name, LearnerConfig(name, "gem", memory_margin=0.5), numbers),
        Row(f"{name}, margin 0", LearnerConfig(f"{name}, margin 0", "gem")),
    ]


def _mnist(
    stream: str, ewc: LearnerConfig, ewc_numbers: Numbers, gem: Numbers, windows: dict[int, Numbers | None]
) -> StreamTable:
    return StreamTable(
        f"MNIST {stream}", "mnist", stream, 1000, "mlp",
        (
            Row("single", LearnerConfig("single", "single")),
            Row("independent", LearnerConfig("independent", "independent"), on_request=True),
            Row("multimodal", LearnerConfig("multimodal", "multimodal"), on_request=True),
            Row("EWC", ewc, ewc_numbers),
            Row("A-GEM", LearnerConfig("A-GEM", "agem")),
            *_gem("GEM", gem),
            *_alone("MLP", min(windows)),
            *_with_memory("MLP", windows),
        ),
    )  # fmt: skip


# EWC's and iCaRL's learning rates and strengths: searched on held-out seeds (`--tune`), see docs/results.
TABLES: dict[str, StreamTable] = {
    "mnist_r": _mnist(
        "rotations",
        LearnerConfig("EWC", "ewc", lr=0.01, strength=10.0),
        (54.61, -0.2087, 0.5574),
        (83.35, -0.0047, 0.6521),
        {30: (84.08, 0.0094, 0.6423), 40: (84.02, 0.0127, 0.6351), 50: (82.77, 0.0238, 0.6111)},
    ),
    "mnist_p": _mnist(
        "permutations",
        LearnerConfig("EWC", "ewc", lr=0.1, strength=1.0),
        (59.31, -0.1960, -0.0075),
        (82.44, 0.0224, -0.0095),
        {3: (82.30, 0.0248, -0.0038), 4: (82.58, 0.0402, -0.0092), 5: (82.10, 0.0464, -0.0095)},
    ),
    "icifar100": StreamTable(
        "incremental CIFAR-100", "cifar100", "incremental", 2500, "resnet",
        (
            Row("single", LearnerConfig("single", "single"), against="ResNet GEM"),
            Row("EWC", LearnerConfig("EWC", "ewc", lr=0.003, strength=0.01), (48.33, -0.1050, 0.0216), "ResNet GEM"),
            Row("iCARL", LearnerConfig("iCARL", "icarl", lr=0.03, strength=1.0), (51.56, -0.0848, 0.0), "ResNet GEM"),
            *_gem("ResNet GEM", (66.67, 0.0001, 0.0108)),
            *(
                Row(row.name, row.method, row.paper, f"ResNet {row.against}")
                for row in _with_memory("ResNet", {
                    4: (67.92, 0.0063, 0.0102), 8: (67.27, 0.0104, 0.0190), 12: (66.58, 0.0089, 0.0139),
                    20: (66.56, 0.0030, 0.0102), 24: (64.97, 0.0082, 0.0238), 32: (66.10, 0.0305, 0.0176),
                    50: (64.86, 0.0244, 0.0125),
                })
            ),
        ),
    ),
}  # fmt: skip


def pick(table: StreamTable, names: Sequence[str]) -> list[Row]:
    """The rows called so, or all whose names begin so: ``MLP DCL-30-1 MEM`` picks its modes and margins."""
    if not names:
        return [row for row in table.rows if not row.on_request]
    known = {row.name: row for row in table.rows}
    chosen: dict[str, Row] = {}
    for name in names:
        found = [known[name]] if name in known else [row for row in table.rows if row.name.startswith(name + ",")]
        if not found:
            raise ValueError(f"there is no row {name!r}; the rows are: {'; '.join(known)}")
        chosen.update((row.name, row) for row in found)
    return [row for row in table.rows if row.name in chosen]
