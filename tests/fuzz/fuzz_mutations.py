"""Damage: bytes flipped, cut and spliced, and parts of nested structures replaced by what does not belong there."""

from __future__ import annotations

import copy
from typing import Any

import torch
from hypothesis import strategies as st

__all__ = ["JUNK", "damaged", "mutated"]

JUNK: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.just(10**400),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=6),
    st.lists(st.integers(-1, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from([
        torch.zeros(0), torch.zeros(2, 3), torch.full((4,), float("nan")), torch.zeros(4, dtype=torch.int64),
        torch.zeros(3, dtype=torch.complex64), torch.zeros(4, dtype=torch.float64), torch.tensor(True),
    ]),
)  # fmt: skip


def damaged(data: st.DataObject, whole: bytes) -> bytes:
    """A few of: flip a byte, cut the end, cut a stretch out, put bytes in, begin anew in the middle."""
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "flip", "flip", "cut", "drop", "insert", "zeros", "head"]))
        place = data.draw(st.integers(0, max(0, len(content) - 1)))
        if kind == "flip" and content:
            content[place] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del content[place:]
        elif kind == "drop":
            del content[place : place + data.draw(st.integers(1, 64))]
        elif kind == "insert":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=16))
        elif kind == "zeros":
            stretch = content[place : place + 16]
            content[place : place + len(stretch)] = bytes(len(stretch))
        elif kind == "head" and content:  # headers hold the lengths
            at = data.draw(st.integers(0, min(len(content), 64) - 1))
            content[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    return bytes(content)


def mutated(data: st.DataObject, value: Any) -> Any:
    """A copy with a few parts replaced by junk, taken away, doubled or renamed."""
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 3))):
        value = _once(data, value)
    return value


def _once(data: st.DataObject, value: Any) -> Any:
    inner = isinstance(value, dict | list) and len(value) > 0
    if not inner or data.draw(st.integers(0, 9)) == 0:
        return data.draw(JUNK)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = data.draw(st.sampled_from(keys))
    kind = data.draw(st.sampled_from(["deeper", "deeper", "deeper", "replace", "remove", "add", "rename"]))
    if kind == "deeper" and isinstance(value[key], dict | list) and len(value[key]):
        value[key] = _once(data, value[key])
    elif kind == "remove":
        del value[key]
    elif kind == "add":
        if isinstance(value, dict):
            value[data.draw(st.one_of(st.text(max_size=3), st.integers(-2, 9)))] = data.draw(JUNK)
        else:
            value.append(data.draw(JUNK))
    elif kind == "rename" and isinstance(value, dict):
        value[data.draw(st.one_of(st.text(max_size=3), st.integers(-2, 99), st.just("99999")))] = value.pop(key)
    else:
        value[key] = data.draw(JUNK)
    return value
