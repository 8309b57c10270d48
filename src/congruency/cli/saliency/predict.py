"""``congruency saliency predict``: write a saliency map for every image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from congruency.cli.options import option
from congruency.cli.saliency.options import Device, device_named
from congruency.cli.terminal import check_folder, interruptible, plain_errors


def predict(
    images: Annotated[list[Path], typer.Argument(
        metavar="IMAGE...",
        help="Images of any format and size, or folders of images; if a folder has no images, its subfolders are read.",
    )],
    checkpoint: Annotated[Path, option("A trained model: model.pt of saliency train.", "FILE")],
    out: Annotated[Path, option(
        "Maps are written to FOLDER/maps, overlays to FOLDER/overlays.", "FOLDER",
    )] = Path("saliency"),
    width: Annotated[int | None, option(
        "Width of the model's input images, with --height. (default: as in training)", "PIXELS", min=32,
    )] = None,
    height: Annotated[int | None, option("Height of the model's input images, with --width.", "PIXELS", min=32)] = None,
    bits: Annotated[Literal["8", "16"], option(
        "Bits per pixel of the grey maps; 8-bit files are smaller, but lower the AUCs.",
    )] = "16",
    npy: Annotated[bool, option(
        "Also write the maps' values to FOLDER/values; use these to score KL, SIM and IG.", name="--npy",
    )] = False,
    overlays: Annotated[bool, option("Also write the images with the maps' colours over them.")] = True,
    device: Device = "auto",
) -> None:  # fmt: skip
    """Write a saliency map and an overlay for every image."""
    wanted = {"maps": True, "overlays": overlays, "values": npy}
    for name in [name for name, written in wanted.items() if written]:
        check_folder(out / name, "--out")
    place = device_named(device)
    from congruency.saliency.data.preprocessing import Preprocessing
    from congruency.saliency.models import load_model
    from congruency.saliency.predict import images_of
    from congruency.saliency.predict import predict as write

    with interruptible("interrupted"), plain_errors():
        if (width is None) != (height is None):
            raise ValueError("--width and --height belong together: give both, or neither for the size of the training")
        images_of(images)  # raises for invalid input before the network is loaded
        model = load_model(checkpoint, place)
        trained = seen = model.preprocessing
        if width is not None and height is not None:
            seen = Preprocessing((height, width), trained.aspect)
        typer.echo(f"{type(model).__name__} on {model.backbone.name} sees images at {seen}")
        if seen != trained:
            typer.echo(f"note: it was trained at {trained}; at another size its maps are usually worse")
        count = 0
        for prediction in write(
            images, model, out, device=place, preprocessing=seen, bits=int(bits), overlays=overlays, values=npy
        ):
            files = (prediction.map, prediction.overlay, prediction.values)
            typer.echo("  ".join(str(path) for path in files if path is not None))
            count += 1
        typer.echo(f"{count} maps written to {out}")
