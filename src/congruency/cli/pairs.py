"""``congruency pairs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruency.cli.options import Data, option
from congruency.cli.terminal import show, writing
from congruency.studies.console import command_line

_MOST_SAMPLES = 100  # matrices grow with the square


def pairs(
    checkpoints: Annotated[list[Path], typer.Argument(
        metavar="CHECKPOINT...",
        help="A run of congruency train, or a checkpoint in it; or a saliency model (model.pt). With several runs, "
        "such as several seeds, it tests whether samples of one class agree more than samples of two classes.",
    )],
    dataset: Annotated[str, option(
        "The images: digits (embedded), cifar10, ..., or a folder or archive; for a saliency model a folder of images"
        " with fixations, or a file that congruency saliency prepare wrote.", "SET|PATH",
    )],
    classes: Annotated[tuple[str, str] | None, option(
        "Two classes to compare, by name. (default: a mixture)", "A B",
    )] = None,
    other: Annotated[str | None, option(
        "A third class, to test whether the first two classes agree more than the first and this one.", "C",
    )] = None,
    count: Annotated[int, option(
        "Images per class, or in total without --classes.", "N", name="--samples", min=2, max=100,
    )] = 10,
    split: Annotated[str | None, option("Which part of the set. (default: test; SALICON's: train)", "NAME")] = None,
    data: Data = None,
    out: Annotated[Path, option(
        "The folder for the page (index.html), table.md and results.json.", "FOLDER",
    )] = Path("congruency-pairs"),
) -> None:  # fmt: skip
    """Measure how well the gradients of single samples agree in a trained network.

        congruency pairs runs/first --dataset digits --classes 3 8

    Shows the congruency of the gradients in the last layer for every two
    samples, next to the similarity of the images (the paper's Figures 7 and 8),
    as a matrix and as pictures.
    """
    if other is not None and classes is None:
        raise typer.BadParameter("needs the first two classes; give --classes A B", param_hint="--other")
    similar = None if other is None else classes
    with writing(out):
        from congruency.studies.analysis import pairs as work
        from congruency.studies.analysis import samples

        def chosen(checkpoint: Path) -> samples.Samples:
            if samples.is_saliency(checkpoint):
                if classes is not None:
                    raise ValueError("a saliency set has no classes; leave --classes out")
                found = samples.saliency_samples(checkpoint, Path(dataset), count, split=split or "train")
            else:
                named = (*(classes or ()), *((other,) if other else ()))
                found = samples.classifier_samples(
                    checkpoint, dataset, named, count, split=split or "test", folder=data
                )
            if len(found.labels) > _MOST_SAMPLES:
                raise ValueError(f"{len(found.labels)} samples are too many for a page; at most {_MOST_SAMPLES}")
            return found

        samples.all_different(checkpoints)
        first = chosen(checkpoints[0])
        results = [work.compare(first), *(work.compare(chosen(other)) for other in checkpoints[1:])]
        trained = [made for checkpoint in checkpoints if (made := samples.trained_by(checkpoint)) is not None]
        page, paths = work.write(first, results, out, command_line(), trained, similar)
        show(page.table, page.findings, paths[0])
