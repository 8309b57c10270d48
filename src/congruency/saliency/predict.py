"""Predict saliency maps for image files and save them as grey images, arrays and colour overlays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from congruency.files import replacing
from congruency.saliency.data.images import IMAGE_SUFFIXES, image_names, read_image
from congruency.saliency.data.preprocessing import Preprocessing
from congruency.saliency.data.viewings import DataError
from congruency.saliency.models import SaliencyModel, load_model
from congruency.saliency.scorer import resized

_HEADING = 28  # characters per line above an image
_PAPER, _INK = "#18212b", "#e8edf3"  # colours of the pictures: dark, also on light pages


@dataclass(frozen=True)
class Prediction:
    """The files written for one image; ``overlay`` and ``values`` are None if not requested."""

    image: Path
    map: Path
    overlay: Path | None
    values: Path | None = None


@torch.no_grad()
def saliency_of(model: SaliencyModel, image: Tensor, preprocessing: Preprocessing | None = None) -> Tensor:
    """Predict the (height, width) saliency of a (3, height, width) uint8 image of any size.

    The image is preprocessed as in training (``model.preprocessing``) unless ``preprocessing`` is given; the map is
    resized to the image's size, as in scoring.
    """
    preprocessing = preprocessing or model.preprocessing
    frame = image.shape[1], image.shape[2]
    device = next(model.parameters()).device
    maps = model(preprocessing.apply(image).unsqueeze(0).to(device))
    return resized(preprocessing.crop(maps, frame), frame)[0]


def images_of(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Return image files, given or in folders, by map name: ``"1001"``, or ``"Action/001"`` in a subfolder."""
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        inside = image_names(path) if path.is_dir() else {path.name: path}
        if not inside:
            raise DataError(f"{path} and its subfolders hold no images ({', '.join(IMAGE_SUFFIXES)})")
        for name, image in inside.items():
            key = name.removesuffix(image.suffix)
            if key in found:
                raise ValueError(
                    f"several images are named {key!r} ({found[key]} and {image}); their maps would overwrite each "
                    "other"
                )
            found[key] = image
    return found


def predict(
    images: Sequence[str | Path],
    model: SaliencyModel | str | Path,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    preprocessing: Preprocessing | None = None,
    bits: int = 16,
    overlays: bool = True,
    values: bool = False,
) -> Iterator[Prediction]:
    """Write ``out/maps/<name>.png`` for every image or folder of images, with a network or the ``model.pt`` of a run.

    ``preprocessing`` is as in :func:`saliency_of`; ``bits`` per pixel of the grey maps are 8 or 16. ``overlays`` also
    writes ``out/overlays/<name>.png``, ``values`` also ``out/values/<name>.npy`` for KL, SIM and information gain,
    which grey maps distort.
    """
    _check_bits(bits)
    named = images_of(images)
    network = model.to(device) if isinstance(model, SaliencyModel) else load_model(model, device)
    folder = Path(out)
    for name, path in named.items():
        image = read_image(path)
        saliency = saliency_of(network, image, preprocessing)
        if not torch.isfinite(saliency).all():  # its grey map would be black and score at chance
            raise ValueError(f"the network's map of {path} has nan: its training diverged; train it with a lower rate")
        written = save_grey(saliency, folder / "maps" / f"{name}.png", bits)
        over = save_overlay(image, saliency, folder / "overlays" / f"{name}.png") if overlays else None
        kept = save_values(saliency, folder / "values" / f"{name}.npy") if values else None
        yield Prediction(path, written, over, kept)


def _check_bits(bits: int) -> None:
    if bits not in (8, 16):
        raise ValueError(f"bits must be 8 or 16, got {bits}")


def unit_range(saliency: Tensor) -> Tensor:
    """Scale an (H, W) map to [0, 1]; a constant map becomes 0."""
    low, high = saliency.amin(), saliency.amax()
    return (saliency - low) / (high - low) if high > low else torch.zeros_like(saliency)


def save_grey(saliency: Tensor, path: Path, bits: int = 16) -> Path:
    """Write an (H, W) map as a grey PNG, from black at its minimum to white at its maximum.

    8 bits lose the ranks within each of 256 levels, which lowers the AUCs; use them for viewing only.
    """
    return _write_png(grey(saliency, bits), path)


def grey(saliency: Tensor, bits: int) -> Image.Image:
    """Convert an (H, W) map to an 8- or 16-bit grey image, black at its minimum and white at its maximum."""
    _check_bits(bits)
    values = (unit_range(saliency.float().cpu()) * (2**bits - 1)).round().numpy()
    return Image.fromarray(values.astype(np.uint8 if bits == 8 else np.uint16))


def save_values(saliency: Tensor, path: Path) -> Path:
    """Write the values of an (H, W) map as a float32 numpy array (.npy).

    Unlike a grey image this keeps the map's zero and scale, on which KL and information gain depend.
    """
    with replacing(path) as file:
        np.save(file, saliency.float().cpu().numpy())
    return path


def _write_png(image: Image.Image, path: Path) -> Path:
    with replacing(path) as file:
        image.save(file, "PNG")
    return path


def overlay(image: Tensor, saliency: Tensor, strength: float = 0.6) -> Tensor:
    """Overlay a (3, H, W) uint8 image with the colours of an (H, W) map, ``strength`` opaque at its maximum."""
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
    """Write a figure with one row per (3, H, W) image: the image, then the overlay of each column's (H, W) map."""
    from matplotlib.figure import Figure

    for heading, maps in columns.items():
        if len(maps) != len(images):
            raise ValueError(f"column {heading!r} has {len(maps)} maps for {len(images)} images")
    figure = Figure(figsize=(2.6 * (1 + len(columns)), 2.1 * len(images)), layout="constrained", facecolor=_PAPER)
    grid = figure.subplots(len(images), 1 + len(columns), squeeze=False)
    for i, image in enumerate(images):
        shown = [image, *(overlay(image, maps[i]) for maps in columns.values())]
        for axes, panel, heading in zip(grid[i], shown, ["image", *columns], strict=True):
            axes.imshow(panel.permute(1, 2, 0).cpu().numpy())
            axes.set_axis_off()
            if i == 0:
                axes.set_title(fill(heading, _HEADING), fontsize=9, color=_INK)
    path = Path(path)
    with replacing(path) as file:
        figure.savefig(file, dpi=100, facecolor=_PAPER, format=path.suffix.removeprefix(".") or "png")
    return path
