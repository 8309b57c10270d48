"""Options shared by several saliency commands, and checks of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from congruency.cli.options import ORDERS, OrderName, option
from congruency.cli.terminal import check_accelerator, check_folder

METHOD_HELP = (
    "baseline, GEM, Cautious, or DCL-W-N with window W (or inf) and N references, such as DCL-120-1; append 'anchor' "
    "for the paper's published code, 'floor' for a floor, or 'update' to project the update."
)

Device = Annotated[str, option(
    "Where to compute: cpu, cuda, cuda:1; auto uses a GPU if there is one.", "DEVICE", name="--device",
)]  # fmt: skip
Capture = Annotated[bool | None, option("Replay passes as CUDA graphs. (default: on a GPU)")]
BatchSize = Annotated[int, option("Images per step.", "N", min=1)]
Order = Annotated[OrderName, option(ORDERS)]
OrderSeed = Annotated[int, option("The seed of the order of --order fixed.", "N", min=0)]
PixelsPerDegree = Annotated[float | None, option(
    "Pixels per degree of visual angle, which sets the default blur. (default: the set's own if known)", "PIXELS",
)]  # fmt: skip
Width = Annotated[int | None, option("Width of the resized images, with --height.", "PIXELS", min=32)]
Height = Annotated[int | None, option("Height of the resized images, with --width.", "PIXELS", min=32)]
AspectName = Annotated[Literal["stretch", "pad"] | None, option(
    "How images of other proportions are resized: stretched, or padded with black.",
)]  # fmt: skip
ModelName = Literal["dinet", "salicon", "dinet4"]


METRICS = ("NSS", "sAUC", "AUC", "CC", "AUC-Judd", "KL", "SIM", "IG")


def device_named(name: str) -> str:
    """Check and return a device; ``"auto"`` chooses a GPU if there is one."""
    import torch

    check_accelerator(name)
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def check_file(path: Path, option: str) -> None:
    """Raise BadParameter, before any work, if a file cannot be written."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder, name a file", param_hint=option)
    check_folder(path.parent, option)
