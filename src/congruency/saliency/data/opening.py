"""Any of the sets from its folder, known by what lies in it."""

from __future__ import annotations

from pathlib import Path

from congruency.saliency.data.folder import folder
from congruency.saliency.data.mit1003 import mit1003
from congruency.saliency.data.osie import osie
from congruency.saliency.data.prepared import load_prepared
from congruency.saliency.data.salicon import salicon
from congruency.saliency.data.viewings import DataError, SaliencyData

__all__ = ["open_data"]


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
    return folder(path)
