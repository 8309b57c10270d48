"""The options of ``congruency ablate``, with their help; the module ``command`` beside this one does what they say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from congruency.cli.terminal import check_device, check_folder, interruptible

__all__ = ["ablate"]

_GRID = "The grid (each takes several values: --window 5 10 none)"
_TRAINING = "What is trained"
_MACHINE = "The machine"
_NONE = ("none", "inf")


def ablate(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A row of a table, TABLE/ROW as `congruency reproduce` has them, such as 'tiny_imagenet/ResNet-101 "
            "SGD' or cifar10_grid. Without one: --data.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option(
            "--window",
            metavar="STEPS|none",
            help="DCL takes new reference points every so many steps; none: once. (default: 5 10 20 50 none)",
            rich_help_panel=_GRID,
        ),
    ] = None,
    references: Annotated[
        list[int] | None,
        typer.Option(
            "--references",
            min=1,
            max=64,
            metavar="N",
            help="Reference points of DCL. (default: 1 2 3 5)",
            rich_help_panel=_GRID,
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            metavar="concentrate|anchor",
            help="The paper's equations, or its published code. (default: concentrate)",
            rich_help_panel=_GRID,
        ),
    ] = None,
    margin: Annotated[
        list[float] | None,
        typer.Option(
            "--margin",
            min=0.0,
            metavar="NUMBER",
            help="Least multiplier of every constraint. (default: 0 for concentrate, 0.5 for anchor)",
            rich_help_panel=_GRID,
        ),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="head|all",
            help="Correct the last layer, as in the paper, or the whole network. (default: head)",
            rich_help_panel=_GRID,
        ),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option("--baseline/--no-baseline", help="Train without DCL too, to compare with.", rich_help_panel=_GRID),
    ] = True,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Runs of every cell.")] = 5,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, max=2**31, metavar="N", help="Use the seeds from this on.")
    ] = 0,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="For the page, results.json and a folder with the record of every run. Runs that are finished there "
            "are not run again; one that was interrupted goes on from its checkpoint. A cluster must share it.",
        ),
    ] = Path("congruency-ablation"),
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="SET|PATH",
            help="digits (embedded), mnist, fashion_mnist, cifar10, cifar100, tiny_imagenet, imagenet; or a folder or "
            "archive with train/<class>/ and test/<class>/ images. With a RECIPE: instead of its images.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="As in `congruency train`. (default: the recipe's, or resnet9)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            min=1,
            metavar="N",
            help="Times through the images. (default: the recipe's, or 30)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            metavar="N",
            help="Images in a batch. (default: the recipe's, or 128)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr",
            metavar="RATE",
            help="The highest learning rate. (default: the recipe's, or 0.1)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            "--weight-decay",
            min=0.0,
            metavar="NUMBER",
            help="Of SGD. (default: the recipe's, or 5e-4)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained",
            metavar="WEIGHTS",
            help="A file of weights for a recipe that is fine-tuned, or 'installed' for those of a package. "
            "(default: downloaded)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="paper|small",
            help="Of a recipe of the paper: its own, hours to days on a GPU each, or one of minutes that shows the "
            "way, not the result. (default: paper)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    per_class: Annotated[
        int | None,
        typer.Option(
            "--per-class", min=1, metavar="N", help="Only so many training images a class.", rich_help_panel=_TRAINING
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size", min=1, metavar="PIXELS", help="The side that the network sees.", rich_help_panel=_TRAINING
        ),
    ] = None,
    data_folder: Annotated[
        Path | None,
        typer.Option(
            "--data-folder",
            metavar="FOLDER",
            help="Where the named sets are. (default: $CONGRUENCY_DATA)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="local|ray",
            help="In this process (or --processes of them); or as tasks of Ray, where a run whose worker process is "
            "lost goes on from its checkpoint (needs the extra: cluster).",
            rich_help_panel=_MACHINE,
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT|auto",
            help="Of a Ray cluster. (default: one on this machine, for as long as the command runs)",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            max=1024,
            metavar="N",
            help="So many trainings at once. (default: 1; on Ray as many as there are cores)",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            min=1,
            max=1024,
            metavar="N",
            help="CPU cores of each training: with the same number results are the same, bit for bit, here and on Ray.",
            rich_help_panel=_MACHINE,
        ),
    ] = 1,
    retries: Annotated[
        int,
        typer.Option(
            "--retries",
            min=0,
            metavar="N",
            help="On Ray: begin a run again so often after its worker process was lost.",
            rich_help_panel=_MACHINE,
        ),
    ] = 3,
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="auto|cpu|cuda", help="auto takes a GPU if there is one.", rich_help_panel=_MACHINE
        ),
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="32|bf16|16", help="bf16 and 16 are mixed.", rich_help_panel=_MACHINE),
    ] = "32",
) -> None:
    """Train over a grid of DCL's settings and draw the curves (the paper's Figure 9).

        congruency ablate --data digits --model convnet --epochs 3 --window 5 10 50 none --references 1 2

    Every cell is trained from every seed and compared with the baseline, seed
    by seed. The same command goes on where it stopped; a cell that fails is
    reported, is tried again the next time, and does not stop the others.
    """
    check_folder(out, "--out")
    if device == "cuda" and on == "local":
        check_device(device, "--device")
    with interruptible("stopped; the same command goes on where it stopped"):
        from congruency.studies.ablation import command
        from congruency.studies.ablation.grid import Axes
        from congruency.training import CheckpointError, RecordError

        given: dict[str, Any] = {
            "windows": window and _windows(window), "references": references and tuple(references),
            "modes": mode and tuple(mode), "margins": margin and tuple(margin), "scopes": scope and tuple(scope),
        }  # fmt: skip
        changes = {
            "model": model, "epochs": epochs, "batch_size": batch_size, "learning_rate": lr,
            "weight_decay": weight_decay, "pretrained": pretrained,
        }  # fmt: skip
        try:
            axes = Axes(baseline=baseline, **{name: values for name, values in given.items() if values})
            training = command.Training(
                recipe=recipe, images=data, folder=data_folder, size=size, per_class=per_class, budget=budget,
                changes=changes,
            )  # fmt: skip
            place = command.Place(
                on=on, address=address, processes=processes, threads=threads, retries=retries, device=device,
                precision=precision,
            )  # fmt: skip
            code = command.run(training, axes, range(first_seed, first_seed + seeds), place, out)
        except (ValueError, TypeError, FileNotFoundError, CheckpointError, RecordError) as error:
            raise typer.BadParameter(str(error)) from None
    raise typer.Exit(code)


def _windows(words: Sequence[str]) -> tuple[int | None, ...]:
    """Whole numbers of steps, and none for infinity."""
    made: list[int | None] = []
    for word in words:
        if word.lower() in _NONE:
            made.append(None)
        elif word.isascii() and word.isdigit() and int(word) > 0:
            made.append(int(word))
        else:
            raise typer.BadParameter(
                f"must be positive numbers of steps, or none for a single start, got {word!r}", param_hint="--window"
            )
    return tuple(made)
