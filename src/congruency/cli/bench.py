"""``congruency bench``: what DCL costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from congruency.cli.terminal import check_device, check_folder, interruptible

__all__ = ["bench"]


def bench(
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",  # named, because typer 0.27 would take the metavar for the name
            metavar="DEVICE",
            help="Where to measure: cpu, cuda, cuda:1, ...; may be repeated. "
            "(default: the CPU, and the GPU if there is one)",
        ),
    ] = None,
    size: Annotated[
        list[float] | None,
        typer.Option(
            min=1,
            metavar="PARAMETERS",
            help="Measure one tensor of so many parameters, as in 1e6; may be repeated. "
            "(default: many sizes, and the shapes of real networks)",
        ),
    ] = None,
    references: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=64, metavar="N",
            help="Reference points DCL keeps; may be repeated. (default: 1, 3, 10 and 20)",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A folder to write the measurements to, as JSON.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes and short runs: to see that it works.")
    ] = False,
) -> None:  # fmt: skip
    """Measure what DCL costs.

    Times the correction of a gradient beside the optimizer's own step and
    beside the time that reading the memory alone would take.
    """
    devices = device or _devices()
    for name in devices:
        check_device(name, "--device")
    if not all(map(math.isfinite, size or [])):
        raise typer.BadParameter("must be a finite number of parameters", param_hint="--size")
    if out is not None:
        check_folder(out, "--out")
    with interruptible("stopped; nothing was written"):
        from congruency.studies import bench

        bench.run(devices=devices, sizes=size or None, references=references or [1, 3, 10, 20], out=out, quick=quick)


def _devices() -> list[str]:
    import torch

    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
