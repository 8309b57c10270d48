"""Open any saliency data set by its path; the format is recognised by the files in it."""

from __future__ import annotations

from pathlib import Path

from congruency.saliency.data.folder import folder
from congruency.saliency.data.mit1003 import mit1003
from congruency.saliency.data.osie import osie, osie_split
from congruency.saliency.data.prepared import load_prepared
from congruency.saliency.data.salicon import salicon
from congruency.saliency.data.viewings import DataError, SaliencyData


def open_data(path: str | Path, split: str = "train") -> SaliencyData:
    """Open OSIE, MIT1003, one ``split`` of SALICON, a prepared file, or any folder of images with fixations.

    The layout decides: ``stimuli/`` is OSIE's, ``ALLSTIMULI/`` MIT1003's, ``annotations/`` or ``fixations/`` SALICON's,
    ``fixations.csv`` or ``fixations.json`` your own.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".pt":
        return load_prepared(path).data
    if not path.is_dir():
        raise DataError(f"there is no data set at {path}: give a folder, or a file of congruency saliency prepare")
    if (path / "stimuli").is_dir():
        return osie(path)
    if (path / "ALLSTIMULI").is_dir():
        return mit1003(path)
    if (path / "annotations").is_dir() or (path / "fixations").is_dir():
        return salicon(path, split)
    if not any((path / f"fixations.{kind}").is_file() for kind in ("csv", "json")):
        raise DataError(
            f"{path} is not a known data set: it holds neither stimuli/ (OSIE), ALLSTIMULI/ (MIT1003), "
            "annotations/ or fixations/ (SALICON), nor images beside a fixations.csv or fixations.json (your own)"
        )
    return folder(path)


def open_split(path: str | Path, split: str | None, default: str = "train") -> SaliencyData:
    """Open one split of a data set: SALICON's by name, ``"train"`` or ``"test"`` of OSIE's fixed split.

    Args:
        path: See :func:`open_data`.
        split: The split; None for the whole data set, and for ``default`` of SALICON, which is stored in splits.
        default: SALICON's split if none is given.
    """
    data = open_data(path, default if split is None else split)
    if split is None or (data.name == "SALICON" and Path(path).is_dir()):
        return data
    if data.name == "SALICON":
        raise DataError(f"{path} is a prepared split of SALICON; do not name a split, got {split!r}")
    if data.name != "OSIE":
        raise DataError(f"{path} has no splits; do not name one, got {split!r}")
    if split not in ("train", "test"):
        raise DataError(f"OSIE has the splits train and test, got {split!r}")
    train, test = osie_split(data)
    return train if split == "train" else test
