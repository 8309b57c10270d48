"""OSIE (Xu et al., 2014): 700 images of 800x600, each viewed by 15 people for three seconds."""

from __future__ import annotations

import hashlib
from pathlib import Path

from congruency.saliency.data.images import image_header
from congruency.saliency.data.matlab import field, load_mat, points_of, structs
from congruency.saliency.data.viewings import DataError, SaliencyData, viewing

_PIXELS_PER_DEGREE = 24.0


def osie(root: str | Path) -> SaliencyData:
    """Load OSIE from a folder with ``stimuli/*.jpg`` and ``fixations.mat`` (or ``eye/fixations.mat``).

    The viewers' fixations are kept separate. The default blur is 24 pixels, about one degree of visual angle; state it
    with every CC, which depends on it.
    """
    root = Path(root)
    path = next((p for p in (root / "fixations.mat", root / "eye" / "fixations.mat") if p.is_file()), None)
    if path is None or not (root / "stimuli").is_dir():
        raise DataError(f"{root} is not OSIE: it must hold the folder stimuli/ and the file fixations.mat")
    variables = load_mat(path)
    if "fixations" not in variables:
        raise DataError(f"{path} has no variable 'fixations' (found: {', '.join(variables) or 'none'})")
    viewings = []
    for entry in structs(variables["fixations"]):
        name = str(field(entry, "img", path))
        if not name or name in (".", "..") or Path(name).name != name or "\\" in name or "\0" in name:
            raise DataError(f"{path} names the image {name!r:.80}, which is not a file name in the folder stimuli/")
        image = root / "stimuli" / name
        viewers = [
            points_of(field(s, "fix_x", path), field(s, "fix_y", path), path)
            for s in structs(field(entry, "subjects", path))
        ]
        size, grey = image_header(image)
        viewings.append(viewing(image, size, viewers, grey=grey))
    return SaliencyData("OSIE", tuple(viewings), pixels_per_degree=_PIXELS_PER_DEGREE)


def osie_split(data: SaliencyData, *, train: int = 500, seed: int = 0) -> tuple[SaliencyData, SaliencyData]:
    """A fixed split into 500 training and 200 test images, since OSIE has no official one.

    Images are sorted by the SHA-256 of ``"<seed>:<file name>"`` and the first 500 are for training: the split depends
    only on the file names. Each part keeps the order of the data set.
    """
    if not 0 < train < len(data):
        raise ValueError(f"train must leave images on both sides of {len(data)}, got {train}")

    def key(index: int) -> str:
        return hashlib.sha256(f"{seed}:{data[index].image.name}".encode()).hexdigest()

    order = sorted(range(len(data)), key=key)
    return data.subset(sorted(order[:train])), data.subset(sorted(order[train:]))
