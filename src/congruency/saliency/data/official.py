"""The density maps that a set comes with, made by its authors."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from congruency.saliency.data.images import read_map
from congruency.saliency.data.viewings import DataError, Viewing

__all__ = ["official_density"]


def official_density(viewing: Viewing, size: tuple[int, int] | None = None) -> Tensor:
    """(height, width) float32, 0 to 255: the set's own density of an image (SALICON's ``maps/``, MIT1003's ``fixMap``).

    Published CC, KL and SIM are against these, not against a blur of one's own: SALICON's and MIT1003's authors chose
    their widths, and wrote the maps with 256 levels.

    Args:
        viewing: The image.
        size: (height, width) to resize the map to, as :func:`collate` resizes the image; the image's own if not given.
    """
    if viewing.density is None:
        raise DataError(
            f"there is no density map of the set's own for {viewing.image.name}; "
            "SALICON (2017) has them in maps/, MIT1003 in ALLFIXATIONMAPS/, prepared files and points alone have none"
        )
    read = read_map(viewing.density)
    if tuple(read.shape) != (viewing.height, viewing.width):
        found, expected = tuple(read.shape), (viewing.height, viewing.width)
        raise DataError(f"{viewing.density} is {found} (height, width) and its image {expected}; fetch it again")
    if size is None or tuple(size) == tuple(read.shape):
        return read
    return functional.interpolate(read[None, None], size=size, mode="bilinear", align_corners=False, antialias=True)[
        0, 0
    ]
