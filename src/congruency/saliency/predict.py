"""Predict saliency maps for image files and write them to a folder."""

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


@dataclass(frozen=True)
class Prediction:
    """The files written for one image; ``overlay`` and ``values`` are None if not requested."""

    image: Path
    map: Path
    overlay: Path | None
    values: Path | None = None


@torch.no_grad()
def saliency_of(model: SaliencyModel, image: Tensor, longest: int = 320) -> Tensor:
    """(height, width) saliency of a (3, height, width) uint8 image of any size.

    The image is resized so that its longer side has ``longest`` pixels (best: the size of the training images), and
    the map is resized back to the image's size.
    """
    height, width = image.shape[-2:]
    scale = longest / max(height, width)
    size = (max(32, round(height * scale)), max(32, round(width * scale)))
    device = next(model.parameters()).device
    inputs = resized(image.to(device).float(), size).unsqueeze(0)
    return resized(model(inputs), (height, width))[0]


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
    """Write ``out/maps/<name>.png`` for every image, and optionally overlays and values.

    Args:
        images: Files of any format that Pillow reads, with different names.
        checkpoint: The ``model.pt`` of a run.
        out: The output folder.
        device: Where the network runs.
        longest: See :func:`saliency_of`.
        bits: Of the grey maps, 8 or 16.
        overlays: Also write ``out/overlays/<name>.png``.
        values: Also write the values as ``out/values/<name>.npy``, for KL, SIM and information gain, which the scaling
            of the grey maps changes.
    """
    if bits not in (8, 16):
        raise ValueError(f"bits must be 8 or 16, got {bits}")
    paths = [Path(image) for image in images]
    names = [path.stem for path in paths]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"several images are named {sorted(repeated)[0]!r}; their maps would overwrite each other")
    model, folder = load_model(checkpoint, device), Path(out)
    for path in paths:
        image = read_image(path)
        saliency = saliency_of(model, image, longest)
        written = save_grey(saliency, folder / "maps" / f"{path.stem}.png", bits)
        over = save_overlay(image, saliency, folder / "overlays" / f"{path.stem}.png") if overlays else None
        kept = save_values(saliency, folder / "values" / f"{path.stem}.npy") if values else None
        yield Prediction(path, written, over, kept)
