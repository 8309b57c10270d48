"""A walk through the elements of a MATLAB 5 file, before anything is built from them.

SciPy's reader takes types and lengths as they stand in the file: a damaged one can end the whole process. Every
element is looked at here first, by the format's description (MAT-File Format, MathWorks): a tag with a type and a
length, and in an array its flags, dimensions and name, then numbers, characters, fields or cells.
"""

from __future__ import annotations

import math
import struct
import zlib

__all__ = ["checked"]

_HEADER = 128
_MOST_BYTES = 1 << 30
_DEEPEST = 40
_COMPRESSED, _MATRIX = 15, 14
_SIZES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}  # bytes of a number, by type
_TEXT = (1, 2, 4, 16, 17, 18)
_CELL, _STRUCT, _CHARACTERS = 1, 2, 4
_NUMBERS = range(6, 16)
_COMPLEX = 0x08


def checked(data: bytes) -> bytes:
    """The same file with its compressed elements unpacked, every element checked; version 4 is left as it is.

    Raises:
        ValueError: An element is not whole, or of a kind that is not read here.
    """
    if len(data) < 4 or 0 in data[:4]:  # how version 4 begins; SciPy reads that in Python
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
        if unpacked > _MOST_BYTES:
            raise ValueError(f"it unpacks to more than {_MOST_BYTES} bytes")
        if _Walk(whole, order).array(0, 0) != len(whole):
            raise ValueError("an array in it is longer than it says")
        parts.append(whole)
        place = end
    return b"".join(parts)


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        whole = unpacker.decompress(data, _MOST_BYTES + 1)
    except zlib.error as reason:
        raise ValueError(f"an element cannot be unpacked ({reason})") from None
    if not unpacker.eof:
        raise ValueError("a compressed element in it is not whole, or too large")
    return whole


def _numbers(data: bytes, place: int, order: str, kinds: str) -> tuple[int, ...]:
    try:
        return struct.unpack_from(order + kinds, data, place)
    except struct.error:
        raise ValueError("it ends within an element") from None


class _Walk:
    """The elements of one variable, one after the other."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data, self.order = data, order

    def element(self, place: int) -> tuple[int, int, int, int]:
        """Type, start, length and end of the element at a place; a small one holds its data in its tag."""
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
        """Check the array at a place and all within it; where it ends."""
        if depth > _DEEPEST:
            raise ValueError(f"arrays in it are nested more than {_DEEPEST} deep")
        kind, start, length, end = self.element(place)
        if kind != _MATRIX or start != place + 8:
            raise ValueError(f"there is an element of type {kind} where an array should be")
        if not length:
            return end  # an empty one
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
            raise ValueError("an array in it is longer or shorter than it says")
        return end

    def content(self, kind: int, is_complex: bool, count: int, place: int, depth: int) -> int:
        """Check what an array of a kind holds; where that ends."""
        if count > _MOST_BYTES:
            raise ValueError(f"an array in it promises {count} members")
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
            raise ValueError(f"it holds an array of class {kind} (sparse, object or function), which is not read here")
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
        """An element of 32-bit integers, and where it ends."""
        kind, start, length, end = self.element(place)
        if kind not in (5, 6) or length % 4:
            raise ValueError(f"there is an element of type {kind} where whole numbers should be")
        return _numbers(self.data, start, self.order, f"{length // 4}i"), end
