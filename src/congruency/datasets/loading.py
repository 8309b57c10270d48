"""Load a labelled image data set by name or path."""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from congruency.datasets import cifar, folders, idx
from congruency.datasets.cache import Cache, fingerprint
from congruency.datasets.images import Catalogue, LabelledImages
from congruency.datasets.tree import ARCHIVES, Tree, open_tree

Split = Literal["train", "test", "all"]

_VARIABLE = "CONGRUENCY_DATA"
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_DIGITS_TRAIN = 1437  # four fifths of 1797


@dataclass(frozen=True)
class KnownSet:
    """A data set that can be loaded by name, from one of ``paths`` (the official names) in the data folder.

    ``classes`` are the class names, if the files do not contain them.
    """

    title: str
    paths: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None


SETS: dict[str, KnownSet] = {
    "digits": KnownSet("scikit-learn's 8x8 digits, embedded", classes=tuple("0123456789")),
    "mnist": KnownSet("MNIST", ("mnist", "MNIST/raw", "MNIST"), tuple("0123456789")),
    "fashion_mnist": KnownSet(
        "Fashion-MNIST", ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST"), _FASHION
    ),
    "cifar10": KnownSet(
        "CIFAR-10", ("cifar10", "cifar-10", "cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10.tar.xz")
    ),
    "cifar100": KnownSet("CIFAR-100", ("cifar100", "cifar-100", "cifar-100-python", "cifar-100-python.tar.gz")),
    "tiny_imagenet": KnownSet(
        "Tiny ImageNet", ("tiny_imagenet", "tiny-imagenet", "tiny-imagenet-200", "tiny-imagenet-200.zip")
    ),
    "imagenet": KnownSet("ImageNet, folders of classes", ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")),
}


def load(
    source: str | Path,
    split: Split = "train",
    size: int | None = None,
    channels: int | None = None,
    *,
    data: str | Path | None = None,
    per_class: int | None = None,
    cache: str | Path | None = None,
) -> LabelledImages:
    """Read a labelled image data set into memory, always in the same order.

        train = load("cifar10", data="~/data")
        flowers = load("flowers.tar.gz", "all", size=64)

    Args:
        source: a name of :data:`SETS`, or the path of a folder or archive: idx files, CIFAR's python version, Tiny
            ImageNet, or images in ``train/<class>/`` and ``test/<class>/``.
        split: ``"train"``, ``"test"`` (the validation set if the test set has no labels), or ``"all"``.
        size: resize images to this side length after a centre crop to a square; None keeps their size.
        channels: 1 or 3; None keeps the channels of arrays and reads image files in colour.
        data: folder in which named data sets are found; default: the environment variable ``CONGRUENCY_DATA``.
        per_class: number of images per class to keep, the first ones; None for all.
        cache: file for the decoded images, read instead of the source if it exists.
    """
    _check(split, size, channels)
    if source == "digits":
        return _converted(_concatenated(_digits, split), size, channels, per_class)
    path = find(source, data)
    store = None
    if cache is not None:
        settings = {"split": split, "size": size, "channels": channels, "per_class": per_class}
        store = Cache(Path(cache).expanduser(), {"files": fingerprint(path), **settings})
    found = store.load() if store else None
    if found is None:
        known = SETS.get(str(source))
        found = _read(open_tree(path), split, size, channels, per_class, known.classes if known else None)
        if store:
            store.save(found)
    return found


def catalogue(source: str | Path, split: Split = "train", *, data: str | Path | None = None) -> Catalogue:
    """List the image files of a data set with their classes, without decoding: for sets that do not fit in memory."""
    _check(split, None, None)
    tree = open_tree(find(source, data))
    if idx.recognises(tree) or cifar.recognises(tree):
        raise ValueError(f"{tree.source} holds arrays, not image files; read it with load()")
    return folders.catalogue(tree, split)


def find(source: str | Path, data: str | Path | None = None) -> Path:
    """Return the folder or archive of a data set given by name or path."""
    known = SETS.get(str(source))
    if known is None:
        path = Path(source).expanduser()
        if path.exists():
            return _single_archive(path)
        near = difflib.get_close_matches(str(source), SETS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise FileNotFoundError(
            f"{source} is not a folder or archive, and no data set of that name is known ({', '.join(SETS)}){hint}"
        )
    if not known.paths:
        raise ValueError(f"{source} ({known.title}) is not read from files; use load()")
    folder = data if data is not None else os.environ.get(_VARIABLE)
    if folder is None:
        raise ValueError(
            f"the location of {known.title} is unknown: give data, the folder that holds it (of the command --data), "
            f"or set {_VARIABLE}"
        )
    for path in (Path(folder).expanduser() / each for each in known.paths):
        if path.exists():
            return _single_archive(path)
    raise FileNotFoundError(
        f"{known.title} is not in {folder}; put it there as one of {', '.join(known.paths)}; or give another "
        f"folder (data, of the command --data) or the set's own path in place of its name (--dataset)"
    )


def _single_archive(path: Path) -> Path:
    """Return the only archive in a folder without subfolders, otherwise the path itself."""
    if not path.is_dir():
        return path
    inside = [each for each in path.iterdir() if not each.name.startswith(".")]
    archives = [each for each in inside if each.is_file() and each.name.endswith(ARCHIVES)]
    return archives[0] if len(archives) == 1 and not any(each.is_dir() for each in inside) else path


def _read(
    tree: Tree,
    split: str,
    size: int | None,
    channels: int | None,
    per_class: int | None,
    classes: tuple[str, ...] | None,
) -> LabelledImages:
    if idx.recognises(tree):
        return _converted(_concatenated(lambda part: idx.read(tree, part, classes), split), size, channels, per_class)
    if cifar.recognises(tree):
        return _converted(_concatenated(lambda part: cifar.read(tree, part), split), size, channels, per_class)
    files = folders.catalogue(tree, split)
    return (files if per_class is None else files.per_class(per_class)).decoded(size, channels)


def _digits(split: str) -> LabelledImages:
    """Return scikit-learn's digits in a fixed split of 1,437 and 360; grey values 0..16 are scaled to 0..255."""
    from sklearn.datasets import load_digits

    content = load_digits()
    images = (torch.from_numpy(content.images).unsqueeze(1) * (255 / 16)).round().to(torch.uint8)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = order[:_DIGITS_TRAIN] if split == "train" else order[_DIGITS_TRAIN:]
    whole = LabelledImages(images, torch.from_numpy(content.target).long(), tuple("0123456789"))
    return whole.subset(chosen.sort().values)


def _concatenated(read: Callable[[str], LabelledImages], split: str) -> LabelledImages:
    if split != "all":
        return read(split)
    train, test = read("train"), read("test")
    images, labels = torch.cat([train.images, test.images]), torch.cat([train.labels, test.labels])
    return LabelledImages(images, labels, train.classes)


def _converted(loaded: LabelledImages, size: int | None, channels: int | None, per_class: int | None) -> LabelledImages:
    return (loaded if per_class is None else loaded.per_class(per_class)).converted(size, channels)


def _check(split: str, size: int | None, channels: int | None) -> None:
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    if size is not None and size < 1:
        raise ValueError(f"size must be a positive number of pixels, got {size}")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels must be 1 (grey), 3 (colour) or None, got {channels}")
