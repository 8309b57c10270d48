"""The options of ``congruency audit``, with their help; the module ``work`` beside this one does what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from congruency.experiments.terminal import (
    check_device,
    check_folder,
    interruptible,
    plain_warnings,
    show,
    told_plainly,
    typed,
)

__all__ = ["audit"]

_TRAINING = "The training (of a network or a recipe)"
_IMAGES = "The images"


def audit(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|RECIPE",
            help="A run of congruency train, or a checkpoint in it, to look at once; or what to train and to follow: a "
            "network (resnet9, convnet, any name of timm), or a recipe of the paper as TABLE/ROW "
            "('cifar/DenseNet-100-12 SGD').",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="SET|PATH",
            help="The labelled images: digits (embedded), mnist, cifar10, ..., or a folder or archive of classes.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="For the page (index.html), the table, results.json and ranking.csv."
        ),
    ] = Path("congruency-audit"),
    top: Annotated[int, typer.Option("--top", min=1, max=500, metavar="N", help="Pictures on the page.")] = 48,
    flip: Annotated[
        float | None,
        typer.Option(
            "--flip",
            metavar="SHARE",
            help="A test of the ranking: give this share of the samples a wrong label first, as in 0.2, and see how "
            "well they are found.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=1,
            metavar="N",
            help="Trainings from different weights, orders and flips. (default: 1)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    cleanlab: Annotated[
        bool | None,
        typer.Option(
            "--cleanlab/--no-cleanlab",
            help="Rank by cleanlab too, which takes --folds more trainings a seed. (default: yes)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds",
            min=2,
            metavar="N",
            help="Parts of the cross-validation that cleanlab asks for. (default: 5)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            min=1,
            metavar="N",
            help="Times through the images. (default: 30, or the recipe's)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            metavar="N",
            help="Images in a batch. (default: 128, or the recipe's)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr",
            metavar="RATE",
            help="The highest learning rate. (default: 0.1, falling along a cosine, or the recipe's)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained",
            metavar="WEIGHTS",
            help="Begin with weights from a file; 'installed' for those of a package, 'download' for timm's.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="auto|cpu|cuda",
            help="auto takes a GPU if there is one. (default: auto)",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            min=1,
            metavar="PIXELS",
            help="The side that the network sees; a checkpoint's is known.",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    per_class: Annotated[
        int | None,
        typer.Option(
            "--per-class", min=1, metavar="N", help="Only the first so many of every class.", rich_help_panel=_IMAGES
        ),
    ] = None,
    split: Annotated[
        str, typer.Option("--split", metavar="train|test|all", help="Which part of the set.", rich_help_panel=_IMAGES)
    ] = "train",
    data_folder: Annotated[
        Path | None,
        typer.Option(
            "--data-folder",
            metavar="FOLDER",
            help="Where the named sets are. (default: $CONGRUENCY_DATA)",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
) -> None:
    """Find the samples that disagree with what a network learns.

        congruency audit runs/first --data digits
        congruency audit resnet9 --data cifar10 --epochs 20

    Ranks every sample by its congruency: how far its gradient in the last layer
    agrees with the way training has come, and with the gradients of its class;
    the least congruent come first. A checkpoint is looked at once; a network or
    recipe is trained, followed over its epochs, and compared with the loss and
    with cleanlab. --flip 0.2 makes wrong labels, and measures which ranking
    finds them.
    """
    check_folder(out, "--out")
    if device not in (None, "auto", "cpu", "cuda"):
        raise typer.BadParameter(f"must be auto, cpu or cuda, got {device!r}", param_hint="--device")
    if device in ("cpu", "cuda"):
        check_device(device, "--device")
    with interruptible("stopped; nothing was written"):
        from congruency.experiments.audit import page, work
        from congruency.experiments.audit.images import ImageSource
        from congruency.experiments.audit.subject import subject
        from congruency.experiments.audit.tables import narrow

        with told_plainly(), plain_warnings():
            source = ImageSource(name=data, split=split, folder=data_folder, per_class=per_class)
            found = subject(what, data, epochs)
            command = f"congruency {typed() or 'audit'}"
            if isinstance(found, Path):
                _only_for_training(
                    flip=flip, seeds=seeds, cleanlab=cleanlab, folds=folds, epochs=epochs, batch_size=batch_size,
                    lr=lr, pretrained=pretrained, device=device, size=size,
                )  # fmt: skip
                result = work.look_at(found, source, command)
            else:
                weights = True if pretrained == "download" else pretrained
                network = found.changed(size, batch_size=batch_size, learning_rate=lr, pretrained=weights)
                result = work.train_and_follow(
                    network, source, command, flip=flip, seeds=seeds or 1, folds=_folds(cleanlab, folds),
                    device=device or "auto",
                )  # fmt: skip
            made, paths = page.write(result, out, top)
            show(narrow(made.table), list(made.findings), paths[0])


def _only_for_training(**given: Any) -> None:
    """A checkpoint is looked at as it is."""
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            why = "; --flip needs a network that was trained on the flipped labels" if name == "flip" else ""
            raise ValueError(f"{option} is for a network or a recipe that is trained; a checkpoint is already{why}")


def _folds(cleanlab: bool | None, folds: int | None) -> int | None:
    if cleanlab is not False:
        return folds or 5
    if folds is not None:
        raise ValueError("--folds are cleanlab's; leave them out, or --no-cleanlab")
    return None
