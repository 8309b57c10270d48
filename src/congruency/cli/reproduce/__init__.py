"""``congruency reproduce``: one command for all tables; it knows their names and hands each to its task family."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from congruency.cli.terminal import check_device, check_folder, given, interruptible
from congruency.studies.catalogue import Entry, Family, runnable

__all__ = ["reproduce"]

_ONLY: dict[Family, tuple[str, ...]] = {  # options that some families do not understand
    "continual": ("base", "labels", "network", "tasks", "samples", "memory", "policy", "tune"),
    "classification": (
        "base", "budget", "model", "epochs", "batch_size", "lr", "pretrained", "precision", "capture", "compile",
        "channels_last", "processes", "minutes", "cache", "show", "order", "order_seed", "record_steps",
    ),
    "saliency": ("model", "epochs", "batch_size", "lr", "pretrained", "precision", "capture", "order", "order_seed"),
}  # fmt: skip


def reproduce(
    context: typer.Context,
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help=f"Which: {', '.join(runnable())}. Without one, they are listed."),
    ] = None,
    listing: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Show every table and figure of the paper: its command, whether its data is available, how long "
            "it takes.",
        ),
    ] = False,
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
        str | None,
        typer.Option("--model", metavar="NAME", help="Another network, or backbone of saliency, in all rows."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, metavar="N", help="Another number in all rows.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, metavar="N", help="Another one in all rows.")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", metavar="RATE", help="Another learning rate in all rows.")] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained",
            metavar="WEIGHTS",
            help="A file of weights for rows that are fine-tuned; 'installed' for those of a package "
            "(classification), 'none' to train from scratch (saliency). (default: downloaded)",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option("--precision", metavar="32|bf16|16", help="(default: 32; bf16 for grids on GPUs)"),
    ] = None,
    capture: Annotated[
        bool | None,
        typer.Option(
            "--capture/--no-capture",
            help="Classification and saliency: replay the networks' passes as CUDA graphs. (default: for the grids and "
            "saliency, on a GPU)",
        ),
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
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            metavar="seed|fixed|independent",
            help="Which runs see the samples in the same order: those of one seed; all (the paper's fixed "
            "permutations); or none, every method in an order of its own (its stochastic ones). (default: seed)",
        ),
    ] = None,
    order_seed: Annotated[
        int | None,
        typer.Option("--order-seed", min=0, metavar="N", help="Of the one order of --order fixed. (default: 0)"),
    ] = None,
    record_steps: Annotated[
        int,
        typer.Option(
            "--record-steps",
            min=0,
            metavar="N",
            help="Classification: keep the line of every N-th step in the runs' records, for the curves within epochs "
            "of congruency report.",
        ),
    ] = 0,
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
    known = runnable()
    if listing:
        _list_all(table, data)
        return
    if table not in known:
        _list(table, known)
    assert table is not None
    folder = out if out is not None else Path(f"congruency-{table}")
    check_folder(folder, "--out")
    family = known[table].family
    _refuse_options_of_others(context, family, table)
    if device not in (None, "auto"):
        check_device(str(device), "--device")
    if order_seed is not None and order != "fixed":
        raise typer.BadParameter("is for --order fixed; the other orders follow the seeds", param_hint="--order-seed")
    common: dict[str, Any] = {
        "table": table, "seeds": range(first_seed, first_seed + seeds), "rows": rows or (), "data": data, "out": folder,
    }  # fmt: skip
    with interruptible("stopped; the same command goes on where it stopped"):
        from congruency.training import CheckpointError

        try:
            if family == "continual":
                from congruency.studies.continual import command as continual

                continual.run(
                    **common, device="cpu" if device in (None, "auto") else device, base=base, labels=labels,
                    network=network, tasks=tasks, samples=samples, memory=memory, policy=policy, tune=tune,
                )  # fmt: skip
                return
            if family == "saliency":
                from congruency.cli.reproduce.saliency import saliency

                saliency(
                    table, seeds=seeds, first_seed=first_seed, rows=rows, data=data, out=folder,  # type: ignore[arg-type]
                    device=device or "auto", precision=precision or "32", capture=capture,  # type: ignore[arg-type]
                    backbone=model or "resnet50", pretrained=pretrained or "download", epochs=epochs or 10,
                    batch_size=batch_size or 8, lr=lr, order=order or "seed", order_seed=order_seed or 0,  # type: ignore[arg-type]
                )  # fmt: skip
                return
            else:
                from congruency.studies.classification import command as classification

                code = classification.run(
                    **common, device=device or "auto", base=base, budget=budget, precision=precision, compile=compile,
                    capture=capture, channels_last=channels_last, cache=cache, processes=processes, minutes=minutes,
                    only_show=show, record_steps=record_steps,
                    changes={
                        "model": model, "epochs": epochs, "batch_size": batch_size, "learning_rate": lr,
                        "pretrained": pretrained, "sample_order": order, "order_seed": order_seed,
                    },
                )  # fmt: skip
        except (ValueError, FileNotFoundError, CheckpointError) as error:
            raise typer.BadParameter(str(error)) from None
    raise typer.Exit(code)


def _list_all(table: str | None, data: Path | None) -> None:
    from congruency.studies.catalogue import lines

    if table is not None:
        raise typer.BadParameter(f"is about all tables; leave {table} out", param_hint="--list")
    for line in lines(data):
        typer.echo(line)


def _list(table: str | None, known: dict[str, Entry]) -> None:
    """All that can be run, one a line; a name that is none of them is an error."""
    if table is not None:
        typer.echo(f"there is no table {table!r}; the tables are:\n", err=True)
    width = max(map(len, known))
    for name, entry in known.items():
        where = f" ({entry.place} of the paper)" if entry.place else ""
        typer.echo(f"  {name:{width}}  {entry.family}: {entry.title}{where}", err=table is not None)
    if table is None:
        typer.echo("\n--list shows every table and figure, its data and its time.")
    raise typer.Exit(0 if table is None else 2)


def _refuse_options_of_others(context: typer.Context, family: Family, table: str) -> None:
    """An option that would be silently without effect is a mistake."""
    for name in dict.fromkeys(name for names in _ONLY.values() for name in names):
        if name not in _ONLY[family] and given(context, name):
            option = f"--{name.replace('_', '-')}"
            users = " and ".join(other for other, names in _ONLY.items() if name in names)
            raise typer.BadParameter(f"{table} is a table of {family}: {option} is for {users}", param_hint=option)
