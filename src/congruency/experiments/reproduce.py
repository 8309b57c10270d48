"""``congruency reproduce``: one command for all tables; it knows their names and hands each to its task family."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from congruency.experiments.terminal import check_device, check_folder, interruptible

__all__ = ["reproduce", "titles"]

_CONTINUAL = "continual learning"
_CLASSIFICATION = "classification"
_ONLY = {  # options that one family alone understands
    _CONTINUAL: ("labels", "network", "tasks", "samples", "memory", "policy", "tune"),
    _CLASSIFICATION: (
        "budget", "model", "epochs", "batch_size", "lr", "pretrained", "precision", "compile", "channels_last",
        "processes", "minutes", "cache", "show",
    ),
}  # fmt: skip


def titles() -> dict[str, tuple[str, str]]:
    """Every table: its family, and what it shows in a line."""
    from congruency.experiments.classification.grids import TITLES as GRIDS
    from congruency.experiments.classification.tables import TITLES as PAPER
    from congruency.experiments.continual.tables import TABLES

    continual = {name: (_CONTINUAL, table.title) for name, table in TABLES.items()}
    return continual | {name: (_CLASSIFICATION, title) for name, title in {**PAPER, **GRIDS}.items()}


def reproduce(
    context: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Which table; without one, all are listed.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="N", help="Runs of every row, from different first weights.")
    ] = 5,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--rows",
            "--row",
            metavar="NAME",
            help="Only this row, or all whose names begin so; may be given several times. (default: all)",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Where the data sets are. (default: $CONGRUENCY_DATA)"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="DEVICE", help="cpu, cuda, ... (default: cpu; for classification a GPU if there is one)"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="For the page, the figures and results.json; runs that are finished there are not run again. "
            "(default: congruency-TABLE)",
        ),
    ] = None,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, max=2**31, metavar="N", help="Use the seeds from this on.")
    ] = 0,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="SET", help="Another image set instead: digits (embedded), or a path."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="paper|small",
            help="Classification: the paper's trainings (hours to days on a GPU each), or small ones of minutes that "
            "show the way, not the result. (default: paper)",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Classification: another network in all rows.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, metavar="N", help="Classification: another number in all rows.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, metavar="N", help="Classification: another one in all rows.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option("--lr", metavar="RATE", help="Classification: another learning rate in all rows.")
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained",
            metavar="WEIGHTS",
            help="Classification: a file of weights for rows that are fine-tuned, or 'installed' for those of a "
            "package. (default: downloaded)",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option("--precision", metavar="32|bf16|16", help="Classification. (default: 32; bf16 for grids on GPUs)"),
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Classification: torch.compile the networks, once for all runs.")
    ] = False,
    channels_last: Annotated[
        bool | None,
        typer.Option("--channels-last/--no-channels-last", help="Classification. (default: on a GPU)"),
    ] = None,
    processes: Annotated[
        int,
        typer.Option("--processes", min=1, max=64, metavar="N", help="Classification: so many trainings at once."),
    ] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0,
            metavar="N",
            help="Classification: begin no training that would last longer than this; the same command goes on.",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="FOLDER", help="Classification: keep decoded images here, to begin faster."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Classification: run nothing, show what is finished in --out.")
    ] = False,
    labels: Annotated[
        str,
        typer.Option(
            "--labels",
            metavar="WHICH",
            help="Continual: for CIFAR-100 with noisy training labels: clean divides the clean test images, noisy uses "
            "the set as it is and says so.",
        ),
    ] = "given",
    network: Annotated[
        str | None,
        typer.Option(
            "--network", metavar="NAME", help="Continual: another network: mlp, resnet, or a name that timm knows."
        ),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=1, metavar="N", help="Continual: tasks of the stream.")] = 20,
    samples: Annotated[
        int | None,
        typer.Option("--samples", min=1, metavar="N", help="Continual: samples of a task. (default: the paper's)"),
    ] = None,
    memory: Annotated[
        int, typer.Option("--memory", min=1, metavar="N", help="Continual: samples kept of every task.")
    ] = 256,
    policy: Annotated[
        str,
        typer.Option("--policy", metavar="WHICH", help="Continual: which samples are kept: first or ring (last)."),
    ] = "first",
    tune: Annotated[
        str | None,
        typer.Option(
            "--tune",
            metavar="KIND",
            help="Continual: instead of the table: search learning rate and strength of ewc or icarl on held-out "
            "seeds.",
        ),
    ] = None,
) -> None:
    """Run a table of the paper, or one of our own grids, with as many seeds as you like.

    Every row is trained from every seed; the table shows means, intervals and
    paired differences beside the paper's numbers. Interrupted runs go on where
    they stopped when the same command is given again.
    """
    known = titles()
    if table not in known:
        _list(table, known)
    assert table is not None
    folder = out if out is not None else Path(f"congruency-{table}")
    check_folder(folder, "--out")
    family = known[table][0]
    _refuse_options_of_others(context, family, table)
    if device not in (None, "auto"):
        check_device(str(device), "--device")
    common: dict[str, Any] = {
        "table": table, "seeds": range(first_seed, first_seed + seeds), "rows": rows or (), "data": data,
        "out": folder, "base": base,
    }  # fmt: skip
    with interruptible("stopped; the same command goes on where it stopped"):
        try:
            if family == _CONTINUAL:
                from congruency.experiments.continual import command as continual

                continual.run(
                    **common, device="cpu" if device in (None, "auto") else device, labels=labels, network=network,
                    tasks=tasks, samples=samples, memory=memory, policy=policy, tune=tune,
                )  # fmt: skip
                return
            from congruency.experiments.classification import command as classification

            code = classification.run(
                **common, device=device or "auto", budget=budget, precision=precision, compile=compile,
                channels_last=channels_last, cache=cache, processes=processes, minutes=minutes, only_show=show,
                changes={
                    "model": model, "epochs": epochs, "batch_size": batch_size, "learning_rate": lr,
                    "pretrained": pretrained,
                },
            )  # fmt: skip
        except (ValueError, FileNotFoundError) as error:
            raise typer.BadParameter(str(error)) from None
    raise typer.Exit(code)


def _list(table: str | None, known: dict[str, tuple[str, str]]) -> None:
    """All tables, one a line; a name that is none of them is an error."""
    if table is not None:
        typer.echo(f"there is no table {table!r}; the tables are:\n", err=True)
    width = max(map(len, known))
    for name, (family, title) in known.items():
        typer.echo(f"  {name:{width}}  {family}: {title}", err=table is not None)
    raise typer.Exit(0 if table is None else 2)


def _refuse_options_of_others(context: typer.Context, family: str, table: str) -> None:
    """An option that would be silently without effect is a mistake."""
    for other, names in _ONLY.items():
        for name in names:
            source = context.get_parameter_source(name)
            if other != family and source is not None and source.name == "COMMANDLINE":
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(f"{table} is a table of {family}: {option} is for {other}", param_hint=option)
