"""``congruency saliency train``: train one saliency network on any data set and score it on held-out images."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from congruency.cli import options
from congruency.cli.options import option
from congruency.cli.runs import check_same
from congruency.cli.saliency.options import (
    METHOD_HELP,
    AspectName,
    BatchSize,
    Height,
    ModelName,
    PixelsPerDegree,
    Width,
    device_named,
)
from congruency.cli.saliency.references import reference_lines
from congruency.cli.terminal import check_accelerator, check_folder, interrupted, interruptible, plain_errors

if TYPE_CHECKING:
    from congruency.saliency.data.prepared import Prepared
    from congruency.saliency.data.preprocessing import Preprocessing

REFERENCES_FILE = "references.json"


def train(
    dataset: Annotated[Path, typer.Argument(
        metavar="DATASET",
        help="The training set: OSIE, MIT1003, CAT2000, SALICON, a folder of images with fixations.csv, or a file "
        "written by saliency prepare.",
    )],
    out: Annotated[Path, option("Folder for the record, scores.json and model.pt.", "FOLDER")],
    test: Annotated[Path | None, option(
        "The set to score on. (default: SALICON's validation set; held-out images of other sets)", "DATASET",
    )] = None,
    holdout: Annotated[int | None, option(
        "Number of images to hold out. (default: a fifth; for OSIE its 200 test images)", "N", min=1,
    )] = None,
    model: Annotated[ModelName, option("The saliency model; dinet4: DINet with a fourth branch.")] = "dinet",
    backbone: Annotated[str | None, option(
        "Backbone of the model, a name of timm. (default: as published, resnet50 or vgg16)", "NAME",
    )] = None,
    pretrained: Annotated[str, option(
        "Weights of the backbone; download fetches timm's.", "FILE|download|none",
    )] = "none",
    optimizer: Annotated[Literal["adam", "rmsprop"], option("The optimizer, as in the paper.")] = "adam",
    method: Annotated[str, option(METHOD_HELP, "NAME")] = "baseline",
    epochs: Annotated[int, option("Passes over the data.", "N", min=1)] = 10,
    halve_every: Annotated[int, option(
        "Number of epochs after which the learning rate is halved.", "EPOCHS", min=1,
    )] = 1,
    delay: Annotated[int, option(
        "Additional epochs at the initial rate, before the first period.", "EPOCHS", min=0,
    )] = 1,
    batch_size: BatchSize = 8,
    lr: Annotated[float | None, option("Learning rate. (default: the paper's)", "RATE")] = None,
    loss: Annotated[str | None, option(
        "l1, cosine, bhattacharyya, kl, cc, nss, or a sum such as kl+0.5*cc. (default: as published)", "SUM",
    )] = None,
    seed: Annotated[int, option("The seed of weights and order.", "N", min=0)] = 0,
    width: Width = None,
    height: Height = None,
    aspect: AspectName = None,
    pixels_per_degree: PixelsPerDegree = None,
    precision: options.Precision = "32",
    device: options.Device = "auto",
) -> None:  # fmt: skip
    """Train one saliency network, with or without a correction, and score it.

    model.pt is for saliency predict. The same command resumes after an
    interruption.
    """
    check_folder(out, "--out")
    check_accelerator(device)
    with interruptible(lambda: interrupted(out, "the same command")), plain_errors():
        from congruency.pretrained import check_reachable
        from congruency.saliency.baselines import kept_references
        from congruency.saliency.losses import make_loss
        from congruency.saliency.task import Recipe, describe, train_network
        from congruency.studies.console import typed
        from congruency.training import STOPPED_EXIT_CODE, Origin
        from congruency.training.record import RECORD_NAME

        recipe = Recipe(
            model=model, backbone=backbone, weights=None if pretrained in ("none", "download") else pretrained,
            pretrained=pretrained == "download", optimizer=optimizer, method=method, epochs=epochs,
            halve_every=halve_every, delay=delay, batch=batch_size, loss=loss, lr=lr, height=height, width=width,
            aspect=aspect,
        )  # fmt: skip
        make_loss(recipe.effective_loss)
        if recipe.pretrained:
            check_reachable(str(recipe.backbone))  # before reading the data
        train_set, test_set = _sets(dataset, test, holdout, recipe.preprocessing, pixels_per_degree)
        prepared, asked = train_set.preprocessing, recipe.preprocessing
        if (width is not None and prepared.size != asked.size) or (aspect is not None and prepared.aspect != aspect):
            raise ValueError(f"{dataset} was prepared at {prepared}; prepare it again for another size or aspect")
        recipe = recipe.seen_as(prepared)
        if (out / RECORD_NAME).is_file():
            check_same(out, describe(recipe, train_set, test_set, seed))
        typer.echo(f"to train on: {train_set.data.summary()}")
        typer.echo(f"to score: {test_set.data.summary()}")
        typer.echo(f"images at {prepared}; loss {recipe.effective_loss}")
        trained = train_network(
            recipe, seed, train_set, test_set, out, device=device, precision=precision, progress=sys.stderr.isatty(),
            origin=Origin(command=typed(), data=train_set.data.name, row=recipe.name),
        )  # fmt: skip
    if trained.stopped:
        typer.echo(f"stopped in {out}; the same command resumes from there")
        raise typer.Exit(STOPPED_EXIT_CODE)
    with interruptible("interrupted; the network is trained"), plain_errors():
        kept = out / REFERENCES_FILE
        if not kept.is_file():
            typer.echo("scoring floors and people to compare with, once per folder", err=True)
        references = kept_references(kept, test_set.data, train_set.data, device=device_named(device))
        for line in reference_lines(trained.scores or {}, references, "this network"):
            typer.echo(line)
    typer.echo(f"the network: {out / 'model.pt'}")
    if math.isnan((trained.scores or {}).get("NSS", 0.0)) and any(len(v.points) for v in test_set.data.viewings):
        typer.echo(
            "error: its training diverged, its maps are nan; train again with a lower --lr, in another folder", err=True
        )
        raise typer.Exit(1)


def _sets(
    dataset: Path, test: Path | None, holdout: int | None, preprocessing: Preprocessing, degree: float | None
) -> tuple[Prepared, Prepared]:
    """Return the training set and the test set, in memory."""
    from congruency.saliency.data.loaders import open_data
    from congruency.saliency.data.prepared import load_prepared, prepare_in_memory
    from congruency.saliency.task import split_prepared

    def read(path: Path, split: str) -> Prepared:
        if path.suffix != ".pt":
            opened = open_data(path, split, pixels_per_degree=degree)
            return prepare_in_memory(opened, preprocessing.size, preprocessing.aspect)
        found = load_prepared(path)
        return found if degree is None else replace(found, data=replace(found.data, pixels_per_degree=degree))

    if test is not None and holdout is not None:
        raise ValueError("--holdout takes images of DATASET to score; with --test leave it out")
    train = read(dataset, "train")
    if test is not None:
        return train, read(test, "val")
    if train.data.name == "SALICON" and dataset.is_dir() and holdout is None:
        return train, read(dataset, "val")
    count = len(train.data)
    if holdout is None:
        holdout = 200 if train.data.name == "OSIE" and count == 700 else max(1, count // 5)
    if not 0 < holdout < count:
        raise ValueError(f"--holdout must leave images on both sides of {count}, got {holdout}")
    return split_prepared(train, count - holdout)
