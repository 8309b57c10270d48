"""``congruency bench``: the cost of a correction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from congruency.cli.options import option, several
from congruency.cli.terminal import check_device, check_folder, interruptible, plain_errors


def bench(
    device: Annotated[list[str] | None, option(
        "Where to measure: cpu, cuda, cuda:1, ...; may be repeated. (default: the CPU, and the GPU if there is one)",
        "DEVICE", name="--device",
    )] = None,
    size: Annotated[list[float] | None, option(
        "Measure one tensor of so many parameters, as in 1e6; may be repeated. (default: many sizes, and the shapes "
        "of real networks)", "PARAMETERS", min=1, max=1e15,
    )] = None,
    references: Annotated[list[int] | None, option(
        "Reference points DCL keeps; may be repeated. (default: 1, 3, 10 and 20)", "N", min=1, max=64,
    )] = None,
    only: Annotated[list[str] | None, several(
        "Measure only this; may be repeated. (default: all)",
        "corrections", "memory", "meter", "updates", "steps",
    )] = None,
    network: Annotated[list[str] | None, option(
        "Measure training steps only of networks whose names begin with this, such as MLP; may be repeated. (default: "
        "all)", "NAME",
    )] = None,
    mode: Annotated[list[str] | None, several(
        "Measure training steps only in this mode; may be repeated. (default: all)", "eager", "graph", "compile",
    )] = None,
    out: Annotated[Path | None, option(
        "Folder for the measurements, as JSON, and a page with charts.", "FOLDER",
    )] = None,
    quick: Annotated[bool, option("Use small sizes and short runs, to check that it works.", name="--quick")] = False,
) -> None:  # fmt: skip
    """Measure what a correction costs.

    Compares the time to correct a gradient or an update with the optimizer's
    own step, and with the time that reading the memory alone would take.
    """
    devices = device or _devices()
    for name in devices:
        check_device(name, "--device")
    if out is not None:
        check_folder(out, "--out")
    with interruptible("stopped; nothing was written"), plain_errors():
        from congruency.studies import bench
        from congruency.studies.console import plain_warnings

        with plain_warnings(shown=False):  # warnings on training do not apply here
            bench.run(
                devices=devices, sizes=size or None, references=references or [1, 3, 10, 20], only=only or None,
                out=out, quick=quick, networks=network or None, modes=mode or None,
            )  # fmt: skip


def _devices() -> list[str]:
    import torch

    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
