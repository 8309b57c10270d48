"""Saliency maps as pictures: grey maps to score later, colours over the image to look at, a page of examples."""

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

__all__ = ["example_page", "overlay", "save_grey", "save_overlay", "save_values", "unit_range"]

_HEADING = 28  # characters of a line above a picture


def unit_range(saliency: Tensor) -> Tensor:
    """(H, W) from 0 to 1; a constant map is 0."""
    low, high = saliency.amin(), saliency.amax()
    return (saliency - low) / (high - low) if high > low else torch.zeros_like(saliency)


def save_grey(saliency: Tensor, path: Path, bits: int = 8) -> Path:
    """Write an (H, W) map as a grey PNG, its least value black, its largest white.

    256 levels lose the ranks within a level: for scores, 16 bits are the better choice.
    """
    if bits not in (8, 16):
        raise ValueError(f"bits must be 8 or 16, got {bits}")
    values = (unit_range(saliency.float().cpu()) * (2**bits - 1)).round().numpy()
    return _write_png(Image.fromarray(values.astype(np.uint8 if bits == 8 else np.uint16)), path)


def save_values(saliency: Tensor, path: Path) -> Path:
    """Write an (H, W) map as it is, float32, as a numpy array (.npy).

    A grey picture keeps neither the zero nor the scale of a map, on which KL and information gain depend.
    """
    buffer = BytesIO()
    np.save(buffer, saliency.float().cpu().numpy())
    return write_together(path.parent, {path.name: buffer.getvalue()})[0]


def _write_png(image: Image.Image, path: Path) -> Path:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return write_together(path.parent, {path.name: buffer.getvalue()})[0]


def overlay(image: Tensor, saliency: Tensor, strength: float = 0.6) -> Tensor:
    """(3, H, W) uint8: the image with the map's colours over it, the more visible the more salient.

    Args:
        image: (3, H, W) uint8.
        saliency: (H, W), any range.
        strength: How far the colours cover the most salient pixel.
    """
    from matplotlib import colormaps

    level = unit_range(saliency.float().cpu())
    colours = torch.from_numpy(colormaps["inferno"](level.numpy())[..., :3].astype(np.float32)).permute(2, 0, 1)
    share = strength * level.sqrt()
    mixed = (1 - share) * image.float().cpu() + share * 255 * colours
    return mixed.round().clamp(0, 255).to(torch.uint8)


def save_overlay(image: Tensor, saliency: Tensor, path: Path) -> Path:
    """Write :func:`overlay` as a PNG."""
    return _write_png(Image.fromarray(overlay(image, saliency).permute(1, 2, 0).numpy()), path)


def example_page(images: Sequence[Tensor], columns: Mapping[str, Sequence[Tensor]], path: str | Path) -> Path:
    """Write a picture with one row an image: the image, then each column's map over it.

    Args:
        images: (3, H, W) uint8 each.
        columns: Heading -> one (H, W) map an image, of the image's size.
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
        for axes, picture, heading in zip(grid[i], shown, ["image", *columns], strict=True):
            axes.imshow(picture.permute(1, 2, 0).cpu().numpy())
            axes.set_axis_off()
            if i == 0:
                axes.set_title(fill(heading, _HEADING), fontsize=9)
    path, buffer = Path(path), BytesIO()
    figure.savefig(buffer, dpi=100, format=path.suffix.removeprefix(".") or "png")
    return write_together(path.parent, {path.name: buffer.getvalue()})[0]
