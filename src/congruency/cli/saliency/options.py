"""Options that several saliency commands share, and checks of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from congruency.cli.options import option
from congruency.cli.terminal import check_device, check_folder

__all__ = [
    "METHOD_HELP", "Accelerator", "BatchSize", "Capture", "Device", "Height", "Order", "OrderSeed", "Precision",
    "Width", "check_accelerator", "check_file", "device_named",
]  # fmt: skip

METHOD_HELP = "baseline, GEM, DCL-W-N or 'DCL-W-N anchor' with window W (or inf) and N references, such as DCL-120-1."

Accelerator = Annotated[Literal["auto", "cpu", "cuda"], option("Where to train; auto takes a GPU if there is one.")]
Device = Annotated[str, option("Where to compute: cpu, cuda, cuda:1; auto takes a GPU.", "DEVICE")]
Precision = Annotated[Literal["32", "bf16", "16"], option("Of training; bf16 and 16 are mixed.")]
Capture = Annotated[bool | None, option("Replay passes as CUDA graphs. (default: on a GPU)")]
BatchSize = Annotated[int, option("Images per step.", "N", min=1)]
Order = Annotated[Literal["seed", "fixed", "independent"], option(
    "Which runs see the images in the same order: those of one seed; all, whatever seed and method (the paper's fixed"
    " permutations); or none, every method in an order of its own (its stochastic ones).",
)]  # fmt: skip
OrderSeed = Annotated[int, option("Seed of the one order of --order fixed.", "N", min=0)]
Width = Annotated[int, option("Width of the resized images.", "PIXELS", min=32)]
Height = Annotated[int, option("Height of the resized images.", "PIXELS", min=32)]


def check_accelerator(name: str) -> None:
    """Refuse, before any work, a device that PyTorch cannot use."""
    if name != "auto":
        check_device(name, "--device")


def device_named(name: str) -> str:
    """Return the device of this name, refused where PyTorch cannot use it; ``"auto"`` takes a GPU if there is one."""
    import torch

    check_accelerator(name)
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def check_file(path: Path, option: str) -> None:
    """Refuse, before any work, a file that could not be written after it."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder, name a file", param_hint=option)
    check_folder(path.parent, option)
