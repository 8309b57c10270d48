"""``congruency saliency prepare``: write a data set to one small file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from congruency.cli.options import option
from congruency.cli.saliency.options import PixelsPerDegree, check_file
from congruency.cli.terminal import interruptible, plain_errors


def prepare(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="The folder of a data set.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, such as osie.pt.")],
    width: Annotated[int, option("Width of the resized images.", "PIXELS", min=32)] = 320,
    height: Annotated[int, option("Height of the resized images.", "PIXELS", min=32)] = 240,
    aspect: Annotated[Literal["stretch", "pad"], option(
        "Images of other proportions: stretched, or padded with black.",
    )] = "stretch",
    split: Annotated[str | None, option(
        "SALICON's part (default: train), or test or train of OSIE. (default: all)", "NAME",
    )] = None,
    pixels_per_degree: PixelsPerDegree = None,
) -> None:  # fmt: skip
    """Put a data set into one small file: resized images, all fixations."""
    check_file(out, "FILE")
    from congruency.saliency import data
    from congruency.saliency.data.loaders import open_split

    with interruptible("interrupted; nothing was written"), plain_errors():
        opened = open_split(dataset, split, "train", pixels_per_degree=pixels_per_degree)
        path = data.prepare(opened, out, (height, width), aspect)
    typer.echo(opened.summary())
    typer.echo(
        f"{path}: {path.stat().st_size / 2**20:.1f} MiB, images at {data.Preprocessing((height, width), aspect)}"
    )
