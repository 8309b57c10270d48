"""Read CIFAR-10 and CIFAR-100 as published: pickled batches, in a tar.gz or extracted."""

import pickle
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy
import torch

from congruency.datasets.images import LabelledImages
from congruency.datasets.tree import Tree

_CIFAR10: dict[str, tuple[str, ...]] = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
_CIFAR100: dict[str, tuple[str, ...]] = {"train": ("train",), "test": ("test",)}
_PIXELS = 3 * 32 * 32


def recognises(tree: Tree) -> bool:
    """Whether the tree has batches of either data set."""
    files = {name.rsplit("/", 1)[-1] for name in tree.names}
    return "data_batch_1" in files or "batches.meta" in files or {"train", "test", "meta"} <= files


def read(tree: Tree, split: str) -> LabelledImages:
    """Read one split in the official order, (N, 3, 32, 32), for CIFAR-100 with the fine labels."""
    if any(name.rsplit("/", 1)[-1] == "meta" for name in tree.names):
        files, key, meta, names = _CIFAR100[split], "fine_labels", "meta", "fine_label_names"
    else:
        files, key, meta, names = _CIFAR10[split], "labels", "batches.meta", "label_names"
    batches = [_batch(tree, _find(tree, file), key) for file in files]
    images = torch.cat([torch.from_numpy(pixels) for pixels, _ in batches])
    labels = torch.tensor([label for _, part in batches for label in part], dtype=torch.int64)
    try:
        return LabelledImages(images, labels, _class_names(tree, _find(tree, meta), names))
    except ValueError as reason:
        raise ValueError(f"the {split} batches in {tree.source}: {reason}") from reason


def _batch(tree: Tree, name: str, key: str) -> tuple[numpy.ndarray[Any, Any], list[int]]:
    content = _unpickle(tree, name)
    pixels, labels = content.get("data"), content.get(key)
    valid = isinstance(pixels, numpy.ndarray) and pixels.dtype == numpy.uint8 and pixels.shape[1:] == (_PIXELS,)
    # LabelledImages checks whether the class of a label exists.
    if not valid or not isinstance(labels, list) or not all(isinstance(x, int) and abs(x) < 1 << 31 for x in labels):
        raise ValueError(f"{tree.describe(name)} lacks 'data' (N, {_PIXELS}) or {key!r}; download the data set again")
    assert isinstance(pixels, numpy.ndarray)
    if len(pixels) != len(labels):
        raise ValueError(f"{tree.describe(name)} has {len(pixels)} images but {len(labels)} labels")
    return pixels.reshape(-1, 3, 32, 32), labels


def _class_names(tree: Tree, name: str, key: str) -> tuple[str, ...]:
    names = _unpickle(tree, name).get(key)
    if not isinstance(names, list) or not names:
        raise ValueError(f"{tree.describe(name)} lacks {key!r}, the class names; download the data set again")
    return tuple(_text(each) for each in names)


def _find(tree: Tree, wanted: str) -> str:
    found = [name for name in tree.names if name.rsplit("/", 1)[-1] == wanted]
    if not found:
        raise FileNotFoundError(f"{tree.source} lacks the file {wanted}; put the whole official python version there")
    return found[0]


def _unpickle(tree: Tree, name: str) -> Mapping[str, Any]:
    data = tree.read(name)
    try:
        content = _Unpickler(BytesIO(data), encoding="bytes").load()
    except Exception as reason:  # a damaged pickle raises many types of errors
        raise ValueError(
            f"{tree.describe(name)} cannot be read as a CIFAR batch ({reason}); download it again"
        ) from reason
    if not isinstance(content, dict):
        raise ValueError(f"{tree.describe(name)} is not a CIFAR batch: it holds a {type(content).__name__}")
    return {_text(key): value for key, value in content.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# Python's implementation: the one in C allocates memory for any memo index that a pickle names, up to 64 GB.
class _Unpickler(pickle._Unpickler):
    """Unpickler that only builds uint8 arrays and plain containers; anything else raises UnpicklingError."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return None  # only ever an argument of _reconstruct
        # New functions each time, so that attributes set by a pickle do not persist.
        if (module, name) == ("numpy", "dtype"):
            return lambda kind, *_: _uint8_dtype(kind)
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return lambda *_: numpy.ndarray((0,), numpy.uint8)  # the pickle fills it next
        if (module, name) == ("_codecs", "encode"):
            return lambda text, *_: text.encode("latin1")  # bytes as Python 3 writes them for Python 2 to read
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")


def _uint8_dtype(kind: Any) -> numpy.dtype[Any]:
    """Return uint8, the only allowed dtype: a structured one could make numpy read pickled bytes as object pointers."""
    if _text(kind) not in ("u1", "|u1"):
        raise pickle.UnpicklingError(f"it asks for an array of {kind!r:.40}, not of bytes")
    return numpy.dtype(numpy.uint8)
