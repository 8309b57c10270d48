"""Save saliency maps: as grey images or arrays for scoring, and as colour overlays for viewing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from congruency.files import write_together

_HEADING = 28  # characters per line above an image


def unit_range(saliency: Tensor) -> Tensor:
    """Scale an (H, W) map to [0, 1]; a constant map becomes 0."""
    low, high = saliency.amin(), saliency.amax()
    return (saliency - low) / (high - low) if high > low else torch.zeros_like(saliency)


def save_grey(saliency: Tensor, path: Path, bits: int = 8) -> Path:
    """Write an (H, W) map as a grey PNG, from black at its minimum to white at its maximum.

    8 bits lose the ranks within each of 256 levels: use 16 bits for maps to be scored.
    """
    if bits not in (8, 16):
        raise ValueError(f"bits must be 8 or 16, got {bits}")
    values = (unit_range(saliency.float().cpu()) * (2**bits - 1)).round().numpy()
    return _write_png(Image.fromarray(values.astype(np.uint8 if bits == 8 else np.uint16)), path)


def save_values(saliency: Tensor, path: Path) -> Path:
    """Write the values of an (H, W) map as a float32 numpy array (.npy).

    A grey image keeps neither the zero nor the scale of a map, on which KL and information gain depend.
    """
    buffer = BytesIO()
    np.save(buffer, saliency.float().cpu().numpy())
    return write_together(path.parent, {path.name: buffer.getvalue()})[0]


def _write_png(image: Image.Image, path: Path) -> Path:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return write_together(path.parent, {path.name: buffer.getvalue()})[0]


def overlay(image: Tensor, saliency: Tensor, strength: float = 0.6) -> Tensor:
    """(3, H, W) uint8: the image overlaid with the colour-coded map, more opaque where it is more salient.

    Args:
        image: (3, H, W) uint8.
        saliency: (H, W), any range.
        strength: Opacity at the most salient pixel.
    """
    from matplotlib import colormaps

    level = unit_range(saliency.float().cpu())
    colours = torch.from_numpy(colormaps["inferno"](level.numpy())[..., :3].astype(np.float32)).permute(2, 0, 1)
    opacity = strength * level.sqrt()
    mixed = (1 - opacity) * image.float().cpu() + opacity * 255 * colours
    return mixed.round().clamp(0, 255).to(torch.uint8)


def save_overlay(image: Tensor, saliency: Tensor, path: Path) -> Path:
    """Write :func:`overlay` as a PNG."""
    return _write_png(Image.fromarray(overlay(image, saliency).permute(1, 2, 0).numpy()), path)


def example_page(images: Sequence[Tensor], columns: Mapping[str, Sequence[Tensor]], path: str | Path) -> Path:
    """Write a figure with one row per image: the image, then the overlay of each column's map.

    Args:
        images: (3, H, W) uint8 each.
        columns: Heading -> one (H, W) map per image, of the image's size.
        path: The file.
    """
    from matplotlib.figure import Figure

    for heading, maps in columns.items():
        if len(maps) != len(images):
            raise ValueError(f"column {heading!r} has {len(maps)} maps for {len(images)} images")
    figure = Figure(figsize=(2.6 * (1 + len(columns)), 2.1 * len(images)), layout="constrained")
    grid = figure.subplots(len(images), 1 + len(columns), squeeze=False)
    for i, image in enumerate(images):
        shown = [image, *(overlay(image, maps[i]) for maps in columns.values())]
        for axes, panel, heading in zip(grid[i], shown, ["image", *columns], strict=True):
            axes.imshow(panel.permute(1, 2, 0).cpu().numpy())
            axes.set_axis_off()
            if i == 0:
                axes.set_title(fill(heading, _HEADING), fontsize=9)
    path, buffer = Path(path), BytesIO()
    figure.savefig(buffer, dpi=100, format=path.suffix.removeprefix(".") or "png")
    return write_together(path.parent, {path.name: buffer.getvalue()})[0]
