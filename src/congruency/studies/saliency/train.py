"""``congruency saliency train``: one saliency network on any set, scored on images that it did not see."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from congruency.cli.terminal import check_device, check_folder, interruptible
from congruency.studies.console import typed

__all__ = ["train"]


def train(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="What to train on: OSIE, MIT1003, SALICON or a folder of images with fixations.csv, or a file that "
            "saliency prepare wrote.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The record, scores.json and model.pt.")],
    test: Annotated[
        Path | None,
        typer.Option(
            "--test",
            metavar="DATA",
            help="What to score on. (default: SALICON's validation set; of other sets, images that are held out)",
        ),
    ] = None,
    holdout: Annotated[
        int | None,
        typer.Option("--holdout", min=1, metavar="N", help="Images to hold out. (default: a fifth; of OSIE its 200)"),
    ] = None,
    model: Annotated[str, typer.Option("--model", metavar="dinet|salicon")] = "dinet",
    backbone: Annotated[str, typer.Option("--backbone", metavar="NAME", help="A network of timm's.")] = "resnet50",
    pretrained: Annotated[
        str,
        typer.Option("--pretrained", metavar="FILE|download|none", help="The backbone's weights; download: timm's."),
    ] = "none",
    optimizer: Annotated[str, typer.Option("--optimizer", metavar="adam|rmsprop")] = "adam",
    method: Annotated[
        str,
        typer.Option("--method", metavar="NAME", help="baseline, GEM, DCL-W-N, 'DCL-W-N anchor': window, references."),
    ] = "baseline",
    epochs: Annotated[int, typer.Option("--epochs", min=1, metavar="N")] = 10,
    halve_every: Annotated[
        int, typer.Option("--halve-every", min=1, metavar="EPOCHS", help="Halve the learning rate so often.")
    ] = 1,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, metavar="N")] = 8,
    lr: Annotated[float | None, typer.Option("--lr", metavar="RATE", help="(default: the paper's)")] = None,
    loss: Annotated[
        str, typer.Option("--loss", metavar="SUM", help="l1, cosine, bhattacharyya, kl, cc, nss, or as kl+0.5*cc.")
    ] = "l1",
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N")] = 0,
    width: Annotated[int, typer.Option("--width", min=32, metavar="PIXELS", help="What the network sees.")] = 320,
    height: Annotated[int, typer.Option("--height", min=32, metavar="PIXELS")] = 240,
    precision: Annotated[str, typer.Option("--precision", metavar="32|bf16|16")] = "32",
    device: Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda")] = "auto",
) -> None:
    """Train one saliency network, plainly or with DCL or GEM, and score it.

    model.pt is for saliency predict. Run the same command again to go on after an
    interruption.
    """
    check_folder(out, "--out")
    if device not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(f"must be auto, cpu or cuda, got {device!r}", param_hint="--device")
    if device != "auto":
        check_device(device, "--device")
    with interruptible("interrupted; the same command goes on from the last checkpoint"):
        from congruency.saliency.losses import make_loss
        from congruency.studies.saliency.experiment import Stopped, run
        from congruency.studies.saliency.recipes import Recipe
        from congruency.training import STOPPED_EXIT_CODE, CheckpointError, Origin

        try:
            recipe = Recipe(
                model=model, backbone=backbone, weights=None if pretrained in ("none", "download") else pretrained,
                pretrained=pretrained == "download", optimizer=optimizer, method=method,  # type: ignore[arg-type]
                epochs=epochs, halve_every=halve_every, batch=batch_size, loss=loss, lr=lr,
            )  # fmt: skip
            make_loss(loss)
            _refuse_another(out, asdict(recipe), seed)
            train_set, test_set = _sets(data, test, holdout, (height, width))
            typer.echo(f"to train on: {train_set.data.summary()}")
            typer.echo(f"to score: {test_set.data.summary()}")
            scores = run(
                recipe, seed, train_set, test_set, out, device=device, precision=precision,  # type: ignore[arg-type]
                progress=sys.stderr.isatty(), origin=Origin(command=typed(), data=train_set.data.name, row=recipe.name),
            )  # fmt: skip
        except Stopped as reason:
            typer.echo(str(reason))
            raise typer.Exit(STOPPED_EXIT_CODE) from None
        except (ValueError, TypeError, FileNotFoundError, CheckpointError) as reason:
            raise typer.BadParameter(str(reason)) from None
    for name, value in scores.items():
        typer.echo(f"{name:<9}{value:>9.4f}")
    typer.echo(f"the network: {out / 'model.pt'}")


def _refuse_another(out: Path, recipe: dict[str, Any], seed: int) -> None:
    """A folder holds one run."""
    done = out / "scores.json"
    if not done.is_file():
        return
    found = json.loads(done.read_text(encoding="utf-8"))
    if (found["recipe"], found["seed"]) != (recipe, seed):
        raise ValueError(f"{out} holds another finished run; choose another --out")


def _sets(data: Path, test: Path | None, holdout: int | None, size: tuple[int, int]) -> tuple[Any, Any]:
    """What to train on and what to score on, in memory."""
    from congruency.saliency.data.loaders import open_data
    from congruency.saliency.data.prepared import load_prepared, prepare_in_memory

    def read(path: Path, split: str) -> Any:
        return load_prepared(path) if path.suffix == ".pt" else prepare_in_memory(open_data(path, split), size)

    if test is not None and holdout is not None:
        raise ValueError("--holdout takes images of DATA to score; with --test leave it out")
    train = read(data, "train")
    if test is not None:
        return train, read(test, "val")
    if train.data.name == "SALICON" and data.is_dir() and holdout is None:
        return train, read(data, "val")
    return _divided(train, holdout)


def _divided(prepared: Any, holdout: int | None) -> tuple[Any, Any]:
    from congruency.studies.saliency.study import split_prepared

    count = len(prepared.data)
    if holdout is None:
        holdout = 200 if prepared.data.name == "OSIE" and count == 700 else max(1, count // 5)
    if not 0 < holdout < count:
        raise ValueError(f"--holdout must leave images on both sides of {count}, got {holdout}")
    return split_prepared(prepared, count - holdout)
