"""Reading MATLAB files, with errors that say what is wrong with them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import loadmat
from torch import Tensor

from congruency.saliency.data.matlab_layout import checked
from congruency.saliency.data.viewings import DataError

__all__ = ["field", "load_mat", "points_of", "structs"]


def load_mat(path: Path) -> dict[str, Any]:
    """The variables of a .mat file (version 4 to 7), structs as objects with attributes."""
    if not path.is_file():
        raise DataError(f"the file {path} is missing")
    with path.open("rb") as file:
        if file.read(19) == b"MATLAB 7.3 MAT-file":
            raise DataError(
                f"{path} is a MATLAB 7.3 file (HDF5), which is not read here; in MATLAB, load it and "
                "save it again with save(name, '-v7')"
            )
    try:
        data = BytesIO(checked(path.read_bytes()))
        variables: dict[str, Any] = loadmat(data, squeeze_me=True, struct_as_record=False)
    except Exception as reason:  # scipy raises many kinds on broken files
        raise DataError(f"{path} is not a MATLAB file that can be read ({reason}); fetch it again") from None
    return {name: value for name, value in variables.items() if not name.startswith("__")}


def field(struct: Any, name: str, path: Path) -> Any:
    """A struct's field; an error names those that are there."""
    if not hasattr(struct, name):
        there = ", ".join(getattr(struct, "_fieldnames", [])) or type(struct).__name__
        raise DataError(f"{path} has no field {name!r} where it is expected (there: {there})")
    return getattr(struct, name)


def structs(value: Any) -> list[Any]:
    """The members of a struct array; squeezing makes one of length one a struct, and an empty one an array."""
    return list(value.ravel()) if isinstance(value, np.ndarray) else [value]


def points_of(x: Any, y: Any, path: Path) -> Tensor:
    """(n, 2) points counted from 0, from MATLAB's coordinates, counted from 1."""
    try:
        columns = [torch.from_numpy(np.atleast_1d(np.asarray(value, dtype=np.float64)).ravel()) for value in (x, y)]
    except (TypeError, ValueError, OverflowError) as reason:
        raise DataError(f"{path} has coordinates that are not numbers ({reason})") from None
    if len(columns[0]) != len(columns[1]):
        raise DataError(f"{path} has {len(columns[0])} x and {len(columns[1])} y coordinates for one viewer")
    return torch.stack(columns, 1) - 1.0
