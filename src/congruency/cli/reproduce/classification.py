"""``congruency reproduce classification``: the paper's error and cost tables, and our grids of short runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from congruency.cli import options

_machine = partial(options.option, panel="How runs are computed")


def classification(
    table: Annotated[Literal[
        "cifar", "tiny_imagenet", "imagenet", "from_scratch", "cost", "cost_window", "cost_references",
        "cifar10_grid", "cifar100_noisy", "tiny_subset",
    ], typer.Argument(
        metavar="TABLE",
        help="cifar, tiny_imagenet, imagenet, from_scratch, cost, cost_window, cost_references, cifar10_grid, "
        "cifar100_noisy or tiny_subset; `congruency reproduce --list` says what each is.",
    )],
    seeds: options.Seeds = 5,
    first_seed: options.FirstSeed = 0,
    row: options.Rows = None,
    data: options.Data = None,
    dataset: options.Dataset = None,
    out: options.TableOut = None,
    model: options.Model = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    per_class: options.PerClass = None,
    pretrained: options.Pretrained = None,
    record_steps: Annotated[int, options.option(
        "Keep the line of every N-th step in the runs' records, for the curves within epochs of congruency report.",
        "N", min=0,
    )] = 0,
    cache: Annotated[Path | None, options.option(
        "Keep decoded images here. (default: in --out, for several processes)", "FOLDER",
    )] = None,
    device: options.Device = "auto",
    precision: Annotated[options.PrecisionName | None, options.option(
        "bf16 and 16 are mixed precision. (default: 32; bf16 for the grids on a GPU)",
    )] = None,
    capture: Annotated[bool | None, _machine(
        "Replay the networks' passes as CUDA graphs. (default: for the grids, on a GPU)",
    )] = None,
    compile: Annotated[bool, _machine("torch.compile the networks, once for all runs.", name="--compile")] = False,
    processes: options.Processes = 1,
    threads: options.Threads = None,
    ray: options.Ray = None,
) -> None:  # fmt: skip
    """Run a table of classification.

    congruency reproduce classification cifar10_grid --data FOLDER --seeds 10
    """
    folder = (out or Path(f"congruency-{table}")).absolute()
    changes = options.chosen(
        model=model, epochs=epochs, batch_size=batch_size, learning_rate=lr, per_class=per_class, pretrained=pretrained
    )
    with options.studying(folder, processes, threads, ray) as place:
        from dataclasses import asdict

        from rich.console import Console

        from congruency.studies.classification.jobs import describe_changes
        from congruency.studies.classification.runner import ClassificationRunner
        from congruency.studies.conduct import conduct
        from congruency.studies.console import command_line, typed
        from congruency.studies.image_tables import choose_machine, named_study, remarks, sets_of, study_of
        from congruency.studies.network_runs import made_by
        from congruency.studies.plan import pick
        from congruency.studies.store import Store

        console = Console()
        machine = choose_machine(table, device, precision, compile, capture)
        settings: dict[str, Any] = {
            "table": table, "base": Path(dataset).name if dataset else None, "changes": changes,
            "machine": asdict(machine),
        }  # fmt: skip
        remembered = Store(folder).settings() or {
            "command": command_line(), **machine.remembered,
            "remarks": [] if dataset else remarks(sets_of(named_study(table)), data),
        }  # fmt: skip
        study = pick(study_of(remembered | settings), row or ())
        if dataset and not sets_of(study):
            raise ValueError(f"{table} is measured on random images; leave --dataset out")
        if record_steps and all(job.short for each in study.rows for job in each.jobs):
            raise ValueError(f"--record-steps is for runs whose records are kept, which those of {table} are not")
        for sentence in [*remembered.get("remarks", []), describe_changes(changes)]:
            if sentence:
                console.print(sentence, markup=False, highlight=False)
        runner = ClassificationRunner(
            folder=folder,
            machine=machine,
            images=options.image_source(folder, place, data, dataset, cache=cache),
            study=table,
            command=typed(),
            record_steps=record_steps,
        )
        code = conduct(
            study, runner, range(first_seed, first_seed + seeds), folder, place=place, settings=settings,
            remembered=remembered, command=command_line(), made=made_by, console=console,
        )  # fmt: skip
    raise typer.Exit(code)
