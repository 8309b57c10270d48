"""``congruency saliency predict``: a saliency map for every image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from congruency.cli.options import option
from congruency.cli.saliency.options import Device, device_named
from congruency.cli.terminal import check_folder, interruptible, plain_errors

__all__ = ["predict"]


def predict(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images of any format and size.")],
    checkpoint: Annotated[Path, option("A trained model: model.pt of saliency train.", "FILE")],
    out: Annotated[Path, option(
        "Maps go into FOLDER/maps, overlays into FOLDER/overlays.", "FOLDER",
    )] = Path("saliency"),
    longest: Annotated[int, option("The model sees the longer side at this size.", "PIXELS", min=32)] = 320,
    bits: Annotated[Literal["8", "16"], option("Of the grey maps; 8 are smaller, and score lower AUCs.")] = "16",
    npy: Annotated[bool, option(
        "Also write the maps' values into FOLDER/values, which KL, SIM and IG should be scored with.", name="--npy",
    )] = False,
    overlays: Annotated[bool, option("Also write the images with the maps' colours over them.")] = True,
    device: Device = "auto",
) -> None:  # fmt: skip
    """Write a saliency map for every image, and an overlay to look at."""
    wanted = {"maps": True, "overlays": overlays, "values": npy}
    for name in [name for name, written in wanted.items() if written]:
        check_folder(out / name, "--out")
    place = device_named(device)
    from congruency.saliency.predict import predict as write

    with interruptible("interrupted"), plain_errors():
        count = 0
        for prediction in write(
            images, checkpoint, out, device=place, longest=longest, bits=int(bits), overlays=overlays, values=npy
        ):
            files = (prediction.map, prediction.overlay, prediction.values)
            typer.echo("  ".join(str(path) for path in files if path is not None))
            count += 1
        typer.echo(f"{count} maps written to {out}")
