"""``congruency reproduce tuned``: compare methods on image classifiers, each at its best learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from congruency.cli import options
from congruency.cli.options import option


def tuned(
    table: Annotated[Literal[
        "cifar10_resnet9", "cifar100_resnet9", "cifar10_resnext29", "cifar10_densenet100", "tiny_lite0",
        "tiny_lite0_sgd", "tiny_lite0_scratch", "tiny_resnet50", "tiny_resnet50_scratch", "tiny_resnet101",
        "tiny_resnet101_scratch",
    ], typer.Argument(
        metavar="TABLE",
        help="A data set and a network. On CIFAR from scratch with SGD, on Tiny ImageNet fine-tuned with SGD (Lite0: "
        "AdamW) or from scratch.",
    )],
    seeds: options.Seeds = 10,
    first_seed: options.FirstSeed = 0,
    tuning_seeds: options.TuningSeeds = 2,
    rows: options.MethodRows = None,
    screen: Annotated[bool, option(
        "Rows are families (gem, cautious, dcl, concentrate, concentrate-update, anchor, anchor-update, anchor-start, "
        "l2sp): the tuning chooses each one's window, margin or strength with the rate.", name="--screen",
    )] = False,
    rate: options.Rates = None,
    data: options.Data = None,
    dataset: options.Dataset = None,
    out: options.TableOut = None,
    model: options.Model = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    pretrained: options.Pretrained = None,
    precision: Annotated[options.PrecisionName | None, option(
        "bf16 and 16 are mixed precision. (default: 32; bf16 on a GPU)",
    )] = None,
    compile: options.CompileFlag = False,
    device: options.Device = "auto",
    processes: options.Processes = 1,
    threads: options.Threads = None,
    ray: options.Ray = None,
) -> None:  # fmt: skip
    """Compare corrections on an image classifier at tuned learning rates.

        congruency reproduce tuned cifar10_resnet9 --data FOLDER --row cautious --seeds 20

    Every method first runs with every learning rate of one grid, on seeds of
    their own; then all methods are compared at their best rates on fresh
    seeds. With --screen a method's own setting is tuned too, in as many runs
    for all. The same command resumes after an interruption.
    """
    folder = (out or Path(f"congruency-tuned-{table}")).absolute()
    changes = options.chosen(model=model, epochs=epochs, batch_size=batch_size, pretrained=pretrained)
    with options.studying(folder, processes, threads, ray) as place:
        from dataclasses import asdict, replace

        from congruency.studies.classification.runner import ClassificationRunner
        from congruency.studies.classification.tuned import TUNED, tuned_study
        from congruency.studies.console import command_line, typed
        from congruency.studies.image_tables import choose_machine, remarks
        from congruency.studies.store import Store
        from congruency.studies.tuned import Methods, conduct_tuned
        from congruency.training import choose_families, choose_methods

        machine = choose_machine(table, device, precision, compile)
        settings: dict[str, Any] = {
            "study": "tuned", "table": table, "base": Path(dataset).name if dataset else None,
            "changes": changes, "machine": asdict(machine),
            **({"screen": True} if screen else {}),
        }  # fmt: skip
        if not screen and (Store(folder).settings() or {}).get("screen"):
            raise ValueError(f"{folder} holds a comparison of families; give --screen, or another --out")
        own = TUNED[table]
        methods: Methods = choose_families(rows or own.families) if screen else choose_methods(rows or own.rows)
        study = tuned_study(table, methods, tuple(dict.fromkeys(rate or ())), changes)
        notes = [] if dataset else remarks([own.data.name], data)
        instead = f", {settings['base']} instead of its images" if dataset else ""
        study = replace(study, title=f"{study.title}{instead}", lead=" ".join([study.lead, *notes]))
        runner = ClassificationRunner(
            folder=folder,
            machine=machine,
            images=options.image_source(folder, place, data, dataset),
            study=f"tuned {table}",
            command=typed(),
        )
        code = conduct_tuned(
            study, runner, seeds=range(first_seed, first_seed + seeds), tuning_seeds=tuning_seeds, place=place,
            settings=settings, command=command_line(),
        )  # fmt: skip
    raise typer.Exit(code)
