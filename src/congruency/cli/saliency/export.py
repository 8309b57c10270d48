"""``congruency saliency export``: write a folder of maps to one file for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruency.cli.saliency.options import check_file
from congruency.cli.terminal import interruptible, plain_errors


def export(
    maps: Annotated[Path, typer.Argument(
        metavar="MAPS",
        help="A folder of maps (PNG, JPEG or .npy), named like the images.",
    )],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="The folder of the images, which give the sizes.")],
    out: Annotated[Path, typer.Argument(
        metavar="FILE",
        help="What to write: .hdf5 with log densities (pysaliency's HDF5Model; the MIT/Tuebingen benchmark's "
        "probabilistic models; needs h5py), or .zip with grey images of 16 bits (its saliency maps).",
    )],
) -> None:  # fmt: skip
    """Write predictions for pysaliency, or for the MIT/Tuebingen benchmark."""
    check_file(out, "FILE")
    from congruency.saliency.export import export_maps

    with interruptible("interrupted; nothing was written"), plain_errors():
        done = export_maps(maps, images, out)
    if done.resized:
        typer.echo(f"{done.resized} maps resized to their image's size")
    if done.floored:
        typer.echo(
            f"{done.floored} maps have zeros: 0.1 % of a uniform density was mixed in; .npy of a density has none"
        )
    typer.echo(f"{done.maps} maps written to {out}")
