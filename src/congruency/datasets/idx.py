"""Read the idx files of MNIST and of data sets published in its format, gzipped or not."""

import gzip
import math
import struct
import zlib
from io import BytesIO

import numpy
import torch
from torch import Tensor

from congruency.datasets.images import LabelledImages
from congruency.datasets.tree import Tree

_PREFIX = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTES = 0x08
_MAX_BYTES = 2 << 30


def recognises(tree: Tree) -> bool:
    """Whether the tree has idx files of images."""
    return any(_plain(name).endswith("-images-idx3-ubyte") for name in tree.names)


def read(tree: Tree, split: str, classes: tuple[str, ...] | None = None) -> LabelledImages:
    """Read one split, (N, 1, H, W); without ``classes`` the classes are named by their numbers."""
    images_name = _find(tree, f"{_PREFIX[split]}-images-idx3-ubyte")
    labels_name = _find(tree, f"{_PREFIX[split]}-labels-idx1-ubyte")
    images = _read_file(tree, images_name, dimensions=3)
    labels = _read_file(tree, labels_name, dimensions=1).long()
    if len(images) != len(labels):
        raise ValueError(
            f"{tree.describe(images_name)} holds {len(images)} images and {tree.describe(labels_name)} "
            f"{len(labels)} labels; they are not of the same data set"
        )
    names = classes or tuple(str(i) for i in range(int(labels.max()) + 1 if len(labels) else 0))
    try:
        return LabelledImages(images.unsqueeze(1), labels, names)
    except ValueError as reason:
        raise ValueError(f"{tree.describe(labels_name)}: {reason}") from reason


def parse(data: bytes, dimensions: int) -> Tensor:
    """Parse an idx file: two zero bytes, the type, the number of dimensions, their lengths, the values."""
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise ValueError(f"it has {len(data)} bytes, fewer than its header of {header}")
    zeros, kind, found = struct.unpack(">HBB", data[:4])
    if zeros or kind != _UNSIGNED_BYTES or found != dimensions:
        raise ValueError(f"it begins with {data[:4].hex()}, not with {_UNSIGNED_BYTES << 8 | dimensions:08x}")
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise ValueError(f"its header promises {shape}, {math.prod(shape)} bytes, and {len(data) - header} follow")
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=header).reshape(shape).copy())


def _read_file(tree: Tree, name: str, dimensions: int) -> Tensor:
    data = tree.read(name)
    try:
        return parse(_gunzip(data) if name.endswith(".gz") else data, dimensions)
    except (ValueError, OSError, EOFError, zlib.error) as reason:
        raise ValueError(f"{tree.describe(name)} is not a complete idx file ({reason}); download it again") from reason


def _gunzip(data: bytes) -> bytes:
    with gzip.open(BytesIO(data)) as stream:
        raw = stream.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"it unpacks to more than {_MAX_BYTES} bytes")
    return raw


def _find(tree: Tree, wanted: str) -> str:
    found = [name for name in tree.names if _plain(name).rsplit("/", 1)[-1] == wanted]
    if not found:
        raise FileNotFoundError(f"{tree.source} lacks {wanted} (or {wanted}.gz); put the four idx files there")
    return min(found, key=lambda name: (name.endswith(".gz"), name))


def _plain(name: str) -> str:
    """Return the name without .gz, with ``.idx``, as in some copies, replaced by ``-idx``."""
    return name.removesuffix(".gz").replace(".idx", "-idx")
