"""Any of the sets from its folder, known by what lies in it."""

from __future__ import annotations

from pathlib import Path

from congruency.saliency.data.folder import folder
from congruency.saliency.data.mit1003 import mit1003
from congruency.saliency.data.osie import osie, osie_split
from congruency.saliency.data.prepared import load_prepared
from congruency.saliency.data.salicon import salicon
from congruency.saliency.data.viewings import DataError, SaliencyData

__all__ = ["open_data", "open_part"]


def open_data(path: str | Path, split: str = "train") -> SaliencyData:
    """A set by its path: OSIE, MIT1003, SALICON (``split`` of it), a prepared file, or any folder with fixations.

    A folder is known by its layout: ``stimuli/`` is OSIE's, ``ALLSTIMULI/`` MIT1003's, ``annotations/`` or
    ``fixations/`` SALICON's, ``fixations.csv`` or ``fixations.json`` anyone's.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".pt":
        return load_prepared(path).data
    if not path.is_dir():
        raise DataError(f"there is no data set at {path}: give a folder, or a file that saliency prepare wrote")
    if (path / "stimuli").is_dir():
        return osie(path)
    if (path / "ALLSTIMULI").is_dir():
        return mit1003(path)
    if (path / "annotations").is_dir() or (path / "fixations").is_dir():
        return salicon(path, split)
    if not any((path / f"fixations.{kind}").is_file() for kind in ("csv", "json")):
        raise DataError(
            f"{path} is not laid out like a set known here: it holds neither stimuli/ (OSIE), ALLSTIMULI/ (MIT1003), "
            "annotations/ or fixations/ (SALICON), nor images beside a fixations.csv or fixations.json (your own)"
        )
    return folder(path)


def open_part(path: str | Path, split: str | None, otherwise: str = "train") -> SaliencyData:
    """A set by its path, and of it one part: SALICON's by name, ``"train"`` or ``"test"`` of OSIE's fixed split.

    Args:
        path: See :func:`open_data`.
        split: The part; None for the whole, and for ``otherwise`` of SALICON, which lies there in parts.
        otherwise: SALICON's part if none is named.
    """
    data = open_data(path, otherwise if split is None else split)
    if split is None or (data.name == "SALICON" and Path(path).is_dir()):
        return data
    if data.name == "SALICON":
        raise DataError(f"{path} holds one part of SALICON, prepared before; do not name the part {split!r}")
    if data.name != "OSIE":
        raise DataError(f"{path} is not divided into parts; do not name the part {split!r}")
    if split not in ("train", "test"):
        raise DataError(f"OSIE has the parts train and test, got {split!r}")
    train, test = osie_split(data)
    return train if split == "train" else test
