"""Read MATLAB files (version 4 to 7), validating every element before SciPy parses it.

SciPy's reader trusts the types and lengths in the file, so a damaged file can crash the process. Each element is first
checked against the format's description (MAT-File Format, MathWorks): a tag with type and length, and in an array
flags, dimensions and name, then numbers, characters, fields or cells.
"""

import math
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import loadmat
from torch import Tensor

from congruency.saliency.data.viewings import DataError

_HEADER = 128
_MAX_BYTES = 1 << 30
_MAX_DEPTH = 40
_COMPRESSED, _MATRIX = 15, 14
_SIZES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}  # bytes per number, by type
_TEXT = (1, 2, 4, 16, 17, 18)
_CELL, _STRUCT, _CHARACTERS = 1, 2, 4
_NUMBERS = range(6, 16)
_COMPLEX = 0x08


def load_mat(path: Path) -> dict[str, Any]:
    """Load the variables of a .mat file, with structs as objects with attributes."""
    if not path.is_file():
        raise DataError(f"the file {path} is missing")
    with path.open("rb") as file:
        if file.read(19) == b"MATLAB 7.3 MAT-file":
            raise DataError(
                f"{path} is a MATLAB 7.3 file (HDF5), which is not supported; in MATLAB, load it and "
                "save it again with save(name, '-v7')"
            )
    try:
        data = BytesIO(_validated(path.read_bytes()))
        variables: dict[str, Any] = loadmat(data, squeeze_me=True, struct_as_record=False)
    except Exception as reason:  # scipy raises many types of errors for broken files
        raise DataError(f"{path} is not a MATLAB file that can be read ({reason}); download it again") from None
    return {name: value for name, value in variables.items() if not name.startswith("__")}


def field(struct: Any, name: str, path: Path) -> Any:
    """Return a field of a struct; the error for a missing field lists those present."""
    if not hasattr(struct, name):
        there = ", ".join(getattr(struct, "_fieldnames", [])) or type(struct).__name__
        raise DataError(f"{path} has no field {name!r} where it is expected (found: {there})")
    return getattr(struct, name)


def structs(value: Any) -> list[Any]:
    """Return the members of a struct array, which ``squeeze_me`` turns into a struct if it has only one."""
    return list(value.ravel()) if isinstance(value, np.ndarray) else [value]


def points_of(x: Any, y: Any, path: Path) -> Tensor:
    """Return (n, 2) zero-based points from MATLAB's one-based coordinates."""
    try:
        columns = [torch.from_numpy(np.atleast_1d(np.asarray(value, dtype=np.float64)).ravel()) for value in (x, y)]
    except (TypeError, ValueError, OverflowError) as reason:
        raise DataError(f"{path} has coordinates that are not numbers ({reason})") from None
    if len(columns[0]) != len(columns[1]):
        raise DataError(f"{path} has {len(columns[0])} x and {len(columns[1])} y coordinates for one viewer")
    return torch.stack(columns, 1) - 1.0


def _validated(data: bytes) -> bytes:
    """Unpack the compressed elements of a file and check every element; version 4 is returned unchanged.

    Raises:
        ValueError: An element is incomplete or of an unsupported kind.
    """
    if len(data) < 4 or 0 in data[:4]:  # version 4, which SciPy parses in Python
        return data
    if len(data) < _HEADER or data[126:128] not in (b"IM", b"MI"):
        raise ValueError("its header is damaged")
    order = "<" if data[126:128] == b"IM" else ">"
    parts = [data[:_HEADER]]
    place, unpacked = _HEADER, 0
    while place < len(data):
        kind, length = _numbers(data, place, order, "II")
        end = place + 8 + length
        if end > len(data):
            raise ValueError(f"it ends inside an element of {length} bytes")
        whole = _unpacked(data[place + 8 : end]) if kind == _COMPRESSED else data[place:end]
        unpacked += len(whole)
        if unpacked > _MAX_BYTES:
            raise ValueError(f"it unpacks to more than {_MAX_BYTES} bytes")
        if _Elements(whole, order).array(0, 0) != len(whole):
            raise ValueError("an array in it is longer than declared")
        parts.append(whole)
        place = end
    return b"".join(parts)


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        whole = unpacker.decompress(data, _MAX_BYTES + 1)
    except zlib.error as reason:
        raise ValueError(f"an element cannot be unpacked ({reason})") from None
    if not unpacker.eof:
        raise ValueError("a compressed element in it is incomplete or too large")
    return whole


def _numbers(data: bytes, place: int, order: str, kinds: str) -> tuple[int, ...]:
    try:
        return struct.unpack_from(order + kinds, data, place)
    except struct.error:
        raise ValueError("it ends within an element") from None


class _Elements:
    """The elements of one variable; ``place`` is an offset in its bytes."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data, self.order = data, order

    def element(self, place: int) -> tuple[int, int, int, int]:
        """Return type, start, length and end of the element at ``place``; a small one stores its data in its tag."""
        (first,) = _numbers(self.data, place, self.order, "I")
        if first >> 16:
            kind, start, length, end = first & 0xFFFF, place + 4, first >> 16, place + 8
            if length > 4:
                raise ValueError(f"a small element in it has {length} bytes")
        else:
            kind, length = _numbers(self.data, place, self.order, "II")
            start = place + 8
            end = start + length + (-length % 8 if kind != _MATRIX else 0)
        if end > len(self.data):
            raise ValueError(f"it ends inside an element of {length} bytes")
        return kind, start, length, end

    def array(self, place: int, depth: int) -> int:
        """Check the array at ``place`` and everything in it; return its end."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"arrays in it are nested more than {_MAX_DEPTH} deep")
        kind, start, length, end = self.element(place)
        if kind != _MATRIX or start != place + 8:
            raise ValueError(f"there is an element of type {kind}, expected an array")
        if not length:
            return end  # an empty array
        flags_kind, flags, size, place = self.element(start)
        if flags_kind != 6 or size != 8:
            raise ValueError("an array in it has no flags")
        (word,) = _numbers(self.data, flags, self.order, "I")
        shape, place = self.integers(place)
        if not 2 <= len(shape) <= 32 or min(shape) < 0:
            raise ValueError(f"an array in it has the shape {shape[:8]}")
        name_kind, _, _, place = self.element(place)
        if name_kind not in _TEXT:
            raise ValueError("an array in it has no name")
        place = self.content(word & 0xFF, bool(word >> 8 & _COMPLEX), math.prod(shape), place, depth)
        if place != end:
            raise ValueError("an array in it is longer or shorter than declared")
        return end

    def content(self, kind: int, is_complex: bool, count: int, place: int, depth: int) -> int:
        """Check the content of an array of one class; return its end."""
        if count > _MAX_BYTES:
            raise ValueError(f"an array in it declares {count} members")
        if kind in _NUMBERS:
            for _ in range(1 + is_complex):
                stored, _, length, place = self.element(place)
                if stored not in _SIZES or length != count * _SIZES[stored]:
                    raise ValueError(f"an array in it has {length} bytes for {count} numbers of type {stored}")
            return place
        if kind == _CHARACTERS:
            stored, _, _, place = self.element(place)
            if stored not in _TEXT:
                raise ValueError(f"there are characters of type {stored} in it")
            return place
        if kind not in (_CELL, _STRUCT):
            raise ValueError(f"it holds an array of class {kind} (sparse, object or function), which is not supported")
        fields = 1
        if kind == _STRUCT:
            lengths, place = self.integers(place)
            names_kind, _, size, place = self.element(place)
            if len(lengths) != 1 or lengths[0] < 1 or names_kind not in _TEXT or size % lengths[0]:
                raise ValueError("the names of a struct's fields in it are damaged")
            fields = size // lengths[0]
        for _ in range(count * fields):
            place = self.array(place, depth + 1)
        return place

    def integers(self, place: int) -> tuple[tuple[int, ...], int]:
        """Return the values of an element of 32-bit integers, and its end."""
        kind, start, length, end = self.element(place)
        if kind not in (5, 6) or length % 4:
            raise ValueError(f"there is an element of type {kind}, expected integers")
        return _numbers(self.data, start, self.order, f"{length // 4}i"), end
