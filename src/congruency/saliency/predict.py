"""From image files to files of saliency maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from congruency.saliency.data.images import read_image
from congruency.saliency.models import SaliencyModel, load_model
from congruency.saliency.pictures import save_grey, save_overlay, save_values
from congruency.saliency.scorer import resized

__all__ = ["Prediction", "predict", "saliency_of"]


@dataclass(frozen=True)
class Prediction:
    """The files made of one image; ``overlay`` and ``values`` are None where they were not wanted."""

    image: Path
    map: Path
    overlay: Path | None
    values: Path | None = None


@torch.no_grad()
def saliency_of(model: SaliencyModel, image: Tensor, longest: int = 320) -> Tensor:
    """(height, width) saliency of a (3, height, width) uint8 image of any size.

    The network sees the image with its longer side at ``longest`` pixels (its training size serves best; larger
    images show it finer things, at another scale than it was trained on); the map comes back at the image's size.
    """
    height, width = image.shape[-2:]
    scale = longest / max(height, width)
    size = (max(32, round(height * scale)), max(32, round(width * scale)))
    device = next(model.parameters()).device
    seen = resized(image.to(device).float(), size).unsqueeze(0)
    return resized(model(seen), (height, width))[0]


def predict(
    images: Sequence[str | Path],
    checkpoint: str | Path,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    longest: int = 320,
    bits: int = 8,
    overlays: bool = True,
    values: bool = False,
) -> Iterator[Prediction]:
    """Write ``<name>.png`` into ``out/maps`` for every image, and into ``out/overlays``, and what else is wanted.

    Args:
        images: Files of any kind that Pillow reads; two of the same name would overwrite each other and are refused.
        checkpoint: A ``model.pt`` that training left.
        out: The folder.
        device: Where the network runs.
        longest: See :func:`saliency_of`.
        bits: Of the grey maps, 8 or 16.
        overlays: Whether to write those too.
        values: Whether to write the maps' numbers too, as ``out/values/<name>.npy``: what KL, SIM and information gain
            are to be computed from, which the pictures' scaling changes.
    """
    if bits not in (8, 16):
        raise ValueError(f"bits must be 8 or 16, got {bits}")
    paths = [Path(image) for image in images]
    names = [path.stem for path in paths]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"several images are named {sorted(twice)[0]!r}; their maps would overwrite each other")
    model, folder = load_model(checkpoint, device), Path(out)
    for path in paths:
        image = read_image(path)
        saliency = saliency_of(model, image, longest)
        written = save_grey(saliency, folder / "maps" / f"{path.stem}.png", bits)
        over = save_overlay(image, saliency, folder / "overlays" / f"{path.stem}.png") if overlays else None
        kept = save_values(saliency, folder / "values" / f"{path.stem}.npy") if values else None
        yield Prediction(path, written, over, kept)
