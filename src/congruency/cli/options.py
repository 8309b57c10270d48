"""Options that several commands share: one word and one help text for one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruency.studies.executor import Place

__all__ = [
    "Data", "Dataset", "FirstSeed", "Minutes", "Processes", "Ray", "Retries", "Rows", "Seeds", "Threads", "place_of",
]  # fmt: skip

_WHERE = "Where runs are executed"

Seeds = Annotated[
    int, typer.Option("--seeds", min=1, metavar="N", help="Runs per row, from different initial weights.")
]
FirstSeed = Annotated[
    int, typer.Option("--first-seed", min=0, max=2**31, metavar="N", help="The first of the consecutive seeds.")
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--row", metavar="NAME",
        help="Run only this row, or all rows whose names begin with 'NAME,'; may be repeated. (default: all)",
    ),
]  # fmt: skip
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="The folder of the data sets. (default: $CONGRUENCY_DATA)"),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        "--dataset", metavar="SET|PATH",
        help="Another image set instead: digits (embedded), mnist, fashion_mnist, cifar10, cifar100, tiny_imagenet, "
        "imagenet; or a folder or archive with train/<class>/ and test/<class>/ images.",
    ),
]  # fmt: skip
Processes = Annotated[
    int,
    typer.Option(
        "--processes", min=1, max=64, metavar="N", help="Runs at once on this machine.", rich_help_panel=_WHERE
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, metavar="N", rich_help_panel=_WHERE,
        help="CPU threads of each run; equal numbers give equal bits. (default: all cores shared; 1 with --ray)",
    ),
]  # fmt: skip
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", rich_help_panel=_WHERE,
        help="Execute the runs on the Ray cluster at this address, such as auto or 10.0.0.5:6379; local starts Ray here. "
        "All machines must see --out and the data.",
    ),
]  # fmt: skip
Retries = Annotated[
    int,
    typer.Option(
        "--retries", min=0, metavar="N", rich_help_panel=_WHERE,
        help="How often a run is attempted again after its process was killed.",
    ),
]  # fmt: skip
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes", min=0, metavar="N", rich_help_panel=_WHERE,
        help="Start no run that would not be finished by then; the same command continues. (default: no limit)",
    ),
]  # fmt: skip


def place_of(
    processes: int, threads: int | None, ray: str | None, retries: int = 3, minutes: float | None = None
) -> Place:
    """Return where runs are executed; a combination that makes no sense is refused."""
    if ray is not None and ray != "local" and processes > 1:
        raise typer.BadParameter(
            "is for this machine; a Ray cluster executes as many runs as fit", param_hint="--processes"
        )
    if ray is not None and minutes is not None:
        raise typer.BadParameter("is for this machine; leave it out with --ray", param_hint="--minutes")
    return Place(processes=processes, threads=threads, ray=ray, retries=retries, minutes=minutes)
