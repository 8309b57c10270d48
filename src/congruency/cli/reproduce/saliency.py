"""``congruency reproduce saliency``: the paper's saliency tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from congruency.cli import options
from congruency.cli.options import option
from congruency.cli.saliency.options import Capture, Order, OrderSeed
from congruency.cli.terminal import check_accelerator


def saliency(
    table: Annotated[Literal["salicon", "osie"], typer.Argument(
        metavar="TABLE", help="salicon (scored on its validation set) or osie (scored on MIT1003).",
    )],
    seeds: options.Seeds = 5,
    first_seed: options.FirstSeed = 0,
    rows: options.Rows = None,
    data: options.Data = None,
    out: options.TableOut = None,
    backbone: Annotated[str, option("Another network in all rows, by timm's name.", "NAME")] = "resnet50",
    pretrained: Annotated[str, option(
        "The backbone's ImageNet weights: a file, timm's, or none to train from scratch.", "FILE|download|none",
    )] = "download",
    epochs: Annotated[int, option("Passes over the data.", "N", min=1)] = 10,
    batch_size: Annotated[int, option("Images per step.", "N", min=1)] = 8,
    lr: Annotated[float | None, option("Another learning rate in all rows. (default: the paper's)", "RATE")] = None,
    order: Order = "seed",
    order_seed: OrderSeed = 0,
    precision: options.Precision = "32",
    capture: Capture = None,
    device: options.Device = "auto",
    processes: options.Processes = 1,
    threads: options.Threads = None,
    ray: options.Ray = None,
) -> None:  # fmt: skip
    """Run a saliency table of the paper.

    Every row is trained from every seed; the table shows means, intervals and
    paired differences beside the paper's numbers. The same command resumes
    after an interruption.
    """
    folder = out if out is not None else Path(f"congruency-{table}")
    if ray is None:
        check_accelerator(device)
    with options.studying(folder, processes, threads, ray) as place:
        from congruency.pretrained import check_reachable
        from congruency.studies.console import command_line, typed
        from congruency.studies.saliency.recipes import table_recipes
        from congruency.studies.saliency.runner import DATA_SETS, SaliencyRunner, Sets, conduct_saliency, find_set
        from congruency.studies.saliency.study import saliency_study
        from congruency.training import Origin

        changes: dict[str, Any] = {
            "backbone": backbone, "epochs": epochs, "batch": batch_size, "lr": lr, "sample_order": order,
            "order_seed": order_seed,
        }  # fmt: skip
        weights = None if pretrained in ("none", "download") else Path(pretrained).absolute()
        recipes = table_recipes(table, rows or (), weights=weights, pretrained=pretrained != "none", **changes)
        places = tuple(find_set(name, data).absolute() for name in DATA_SETS[table])
        if pretrained == "download":
            check_reachable(backbone)  # before reading the data
        runner = SaliencyRunner(
            sets=Sets(table, places), out=folder.absolute(), accelerator=device, precision=precision, capture=capture,
            origin=Origin(command=typed(), data=DATA_SETS[table][0], table=table),
        )  # fmt: skip
        code = conduct_saliency(
            saliency_study(table, recipes), runner, range(first_seed, first_seed + seeds), place=place,
            command=command_line(),
        )  # fmt: skip
    raise typer.Exit(code)
