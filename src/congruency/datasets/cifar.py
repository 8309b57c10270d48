"""CIFAR-10 and CIFAR-100 as their authors publish them: pickled batches, in a tar.gz or extracted."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy
import torch

from congruency.datasets.images import LabelledImages
from congruency.datasets.tree import Tree

__all__ = ["read", "recognises"]

_TEN: dict[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test": ("test_batch",),
}
_HUNDRED: dict[str, tuple[str, ...]] = {"train": ("train",), "test": ("test",)}
_PIXELS = 3 * 32 * 32


def recognises(tree: Tree) -> bool:
    """Whether the batches of either set are there."""
    last = {name.rsplit("/", 1)[-1] for name in tree.names}
    return "data_batch_1" in last or "batches.meta" in last or {"train", "test", "meta"} <= last


def read(tree: Tree, split: str) -> LabelledImages:
    """One split in the official order, (N, 3, 32, 32), with the fine labels of CIFAR-100."""
    if _is_hundred(tree):
        files, key, meta, names = _HUNDRED[split], "fine_labels", "meta", "fine_label_names"
    else:
        files, key, meta, names = _TEN[split], "labels", "batches.meta", "label_names"
    batches = [_batch(tree, _find(tree, file), key) for file in files]
    images = torch.cat([torch.from_numpy(pixels) for pixels, _ in batches])
    labels = torch.tensor([label for _, part in batches for label in part], dtype=torch.int64)
    try:
        return LabelledImages(images, labels, _names(tree, _find(tree, meta), names))
    except ValueError as reason:
        raise ValueError(f"the {split} batches in {tree.source}: {reason}") from reason


def _is_hundred(tree: Tree) -> bool:
    return any(name.rsplit("/", 1)[-1] == "meta" for name in tree.names)


def _batch(tree: Tree, name: str, key: str) -> tuple[numpy.ndarray[Any, Any], list[int]]:
    content = _unpickled(tree, name)
    pixels, labels = content.get("data"), content.get(key)
    whole = isinstance(pixels, numpy.ndarray) and pixels.dtype == numpy.uint8 and pixels.shape[1:] == (_PIXELS,)
    if not whole or not isinstance(labels, list) or not all(_is_label(label) for label in labels):
        raise ValueError(f"{tree.describe(name)} lacks 'data' (N, {_PIXELS}) or {key!r}; fetch the set again")
    assert isinstance(pixels, numpy.ndarray)
    if len(pixels) != len(labels):
        raise ValueError(f"{tree.describe(name)} holds {len(pixels)} images and {len(labels)} labels")
    return pixels.reshape(-1, 3, 32, 32), labels


def _is_label(label: Any) -> bool:
    return isinstance(label, int) and abs(label) < 1 << 31  # whether there is such a class is looked at later


def _names(tree: Tree, name: str, key: str) -> tuple[str, ...]:
    names = _unpickled(tree, name).get(key)
    if not isinstance(names, list) or not names:
        raise ValueError(f"{tree.describe(name)} lacks {key!r}, the names of the classes; fetch the set again")
    return tuple(_text(each) for each in names)


def _find(tree: Tree, wanted: str) -> str:
    found = [name for name in tree.names if name.rsplit("/", 1)[-1] == wanted]
    if not found:
        raise FileNotFoundError(f"{tree.source} lacks the file {wanted}; put the whole official python version there")
    return found[0]


def _unpickled(tree: Tree, name: str) -> Mapping[str, Any]:
    data = tree.read(name)
    try:
        content = _Unpickler(BytesIO(data), encoding="bytes").load()
    except Exception as reason:  # a damaged pickle raises of every kind
        raise ValueError(
            f"{tree.describe(name)} cannot be read as a CIFAR batch ({reason}); fetch it again"
        ) from reason
    if not isinstance(content, dict):
        raise ValueError(f"{tree.describe(name)} is not a CIFAR batch: it holds a {type(content).__name__}")
    return {_text(key): value for key, value in content.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _Unpickler(
    pickle._Unpickler
):  # the one in Python: that in C makes room for any place a pickle names, 64 GB of it
    """Builds arrays of bytes and plain containers, and refuses everything else that a pickle could ask for."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return None  # only ever an argument of _reconstruct
        # New functions each time: what a pickle sets on one is gone with it.
        if (module, name) == ("numpy", "dtype"):
            return lambda kind, *_: _bytes_dtype(kind)
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return lambda *_: numpy.ndarray((0,), numpy.uint8)  # the pickle fills it next
        if (module, name) == ("_codecs", "encode"):
            return lambda text, *_: text.encode("latin1")  # bytes as Python 3 writes them for Python 2 to read
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")


def _bytes_dtype(kind: Any) -> numpy.dtype[Any]:
    """The only type of a batch: a structured one from a pickle could make numpy take bytes for addresses of objects."""
    if _text(kind) not in ("u1", "|u1"):
        raise pickle.UnpicklingError(f"it asks for an array of {kind!r:.40}, not of bytes")
    return numpy.dtype(numpy.uint8)
