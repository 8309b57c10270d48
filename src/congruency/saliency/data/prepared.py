"""A data set with resized images, in memory or in one compact file; fixations keep their original coordinates."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from congruency.files import replacing
from congruency.saliency.data.images import read_image
from congruency.saliency.data.preprocessing import Aspect, Preprocessing
from congruency.saliency.data.viewings import DataError, SaliencyData, Viewing

_FORMAT = "congruency saliency data, version 1"


@dataclass(frozen=True)
class Prepared:
    """A data set with all its images in memory, resized to one size.

    Attributes:
        data: The viewings; their image files need not exist.
        images: (N, 3, height, width) uint8.
        aspect: How images of other aspect ratios were resized; see :class:`Preprocessing`.
    """

    data: SaliencyData
    images: Tensor
    aspect: Aspect = "stretch"

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the images."""
        return Preprocessing((self.images.shape[2], self.images.shape[3]), self.aspect)

    def subset(self, names: Sequence[str]) -> Prepared:
        """Return only the images with these names, in this order."""
        places = {v.name: i for i, v in enumerate(self.data.viewings)}
        indices = [places[name] for name in names]
        return Prepared(self.data.subset(indices), self.images[indices], self.aspect)


def prepare_in_memory(data: SaliencyData, size: tuple[int, int] = (240, 320), aspect: Aspect = "stretch") -> Prepared:
    """Read a data set into memory, with images resized to (height, width)."""
    preprocessing = Preprocessing(size, aspect)
    images = torch.empty(len(data), 3, *size, dtype=torch.uint8)
    for i, v in enumerate(data.viewings):
        images[i] = preprocessing.apply(read_image(v.image))
    return Prepared(data, images, aspect)


def prepare(
    data: SaliencyData, path: str | Path, size: tuple[int, int] = (240, 320), aspect: Aspect = "stretch"
) -> Path:
    """Write a data set to one file: images resized to (height, width) as JPEG, fixations in original coordinates.

    OSIE at 320x240 takes about 30 MB instead of 50. Read it with :func:`load_prepared`.
    """
    preprocessing = Preprocessing(size, aspect)
    encoded = [_encoded(preprocessing.apply(read_image(v.image))) for v in data.viewings]
    content = {
        "format": _FORMAT,
        "name": data.name,
        "version": data.version,
        "pixels_per_degree": data.pixels_per_degree,
        "size": list(size),
        "aspect": aspect,
        "images": torch.cat(encoded) if encoded else torch.zeros(0, dtype=torch.uint8),
        "lengths": [len(image) for image in encoded],
        "names": [v.name for v in data.viewings],
        "frames": [[v.height, v.width] for v in data.viewings],
        "grey": [v.grey for v in data.viewings],
        "outside": [v.outside for v in data.viewings],
        "missing": [v.missing for v in data.viewings],
        "fixations": [[points.float() for points in v.fixations] for v in data.viewings],
    }
    with replacing(Path(path)) as file:
        torch.save(content, file)
    return Path(path)


def load_prepared(path: str | Path) -> Prepared:
    """Read a file written by :func:`prepare`; images are decoded into memory."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; convert it to one file with: congruency saliency prepare {path} FILE.pt")
    if not path.is_file():
        raise DataError(f"the prepared file {path} is missing; create it with congruency saliency prepare")
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as reason:  # torch.load raises many types of errors for broken files
        raise DataError(f"{path} cannot be read ({type(reason).__name__}); prepare it again") from None
    if not isinstance(content, dict) or str(content.get("format")) != _FORMAT:
        raise DataError(f"{path} is not a prepared saliency data set; create one with congruency saliency prepare")
    try:
        return _prepared(content)
    except Exception as reason:  # a damaged file may contain anything
        raise DataError(f"{path} is damaged ({type(reason).__name__}: {reason}); prepare it again") from None


def _prepared(content: dict[str, Any]) -> Prepared:
    names = content["names"]
    viewings = []
    missing = content.get("missing", [0] * len(names))  # earlier files do not have this count
    columns = names, content["frames"], content["fixations"], content["outside"], content["grey"], missing
    for name, (height, width), viewers, outside, is_grey, lost in zip(*columns, strict=True):
        image, points = Path(name), tuple(p.double().reshape(-1, 2) for p in viewers)
        folder = "" if image.parent == Path() else image.parent.as_posix()
        viewings.append(
            Viewing(
                image, int(height), int(width), points, int(outside), grey=bool(is_grey), missing=int(lost),
                folder=folder,
            )
        )  # fmt: skip
    height, width = content["size"]
    parts = content["images"].split(content["lengths"])
    if len(parts) != len(viewings):
        raise ValueError(f"it has {len(parts)} images and {len(viewings)} names")
    decoded = [_decoded(part, (height, width)) for part in parts]
    images = torch.stack(decoded) if decoded else torch.empty(0, 3, height, width, dtype=torch.uint8)
    data = SaliencyData(content["name"], tuple(viewings), content["version"], content["pixels_per_degree"])
    return Prepared(data, images, Preprocessing((height, width), content.get("aspect", "stretch")).aspect)


def _encoded(image: Tensor) -> Tensor:
    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=95, subsampling=0)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _decoded(part: Tensor, size: tuple[int, int]) -> Tensor:
    with Image.open(io.BytesIO(part.numpy().tobytes())) as image:
        if (image.height, image.width) != size:  # check before decoding
            raise ValueError(f"an image of {image.height}x{image.width} in a set of {size[0]}x{size[1]}")
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
