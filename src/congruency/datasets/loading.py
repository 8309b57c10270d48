"""From a name or a path to a labelled image set."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from congruency.datasets import cifar, digits, folders, idx, tiny_imagenet
from congruency.datasets.cache import Cache, fingerprint
from congruency.datasets.catalogue import Catalogue
from congruency.datasets.images import LabelledImages
from congruency.datasets.tree import ARCHIVES, Tree, open_tree

__all__ = ["SETS", "KnownSet", "Split", "catalogue", "find", "load"]

Split = Literal["train", "test", "all"]

_VARIABLE = "CONGRUENCY_DATA"
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@dataclass(frozen=True)
class KnownSet:
    """A set that can be asked for by name.

    Attributes:
        title: what people call it.
        places: where in the data folder it is looked for, the official names of its download among them.
        classes: their names, where the files do not carry them.
    """

    title: str
    places: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None


SETS: dict[str, KnownSet] = {
    "digits": KnownSet("scikit-learn's 8x8 digits, embedded", classes=tuple("0123456789")),
    "mnist": KnownSet("MNIST", ("mnist", "MNIST/raw", "MNIST"), tuple("0123456789")),
    "fashion_mnist": KnownSet(
        "Fashion-MNIST",
        ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
        _FASHION,
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
    """Read a labelled image set into memory, in an order that is always the same.

        train = load("cifar10", data="~/data")
        flowers = load("flowers.tar.gz", "all", size=64)

    Args:
        source: a name of :data:`SETS`, or the path of a folder or archive: idx files, CIFAR's python version, Tiny
            ImageNet, or images in ``train/<class>/`` and ``test/<class>/``.
        split: ``"train"``, ``"test"`` (the validation set where the test set has no labels), or ``"all"``.
        size: the side that images are brought to, cut to a centred square first; None leaves them as they are.
        channels: 1 or 3; None leaves arrays as they are, and reads image files in colour.
        data: the folder of sets, for a name; the environment variable ``CONGRUENCY_DATA`` otherwise.
        per_class: only the first so many images of every class.
        cache: a file to keep the decoded images in; read instead of the source from the second time on.
    """
    _check(split, size, channels)
    if source == "digits":
        return _shaped(_both(digits.read, split), size, channels, per_class)
    path = find(source, data)
    store = _cache(cache, path, split, size, channels, per_class)
    found = store.load() if store else None
    if found is None:
        found = _read(open_tree(path), split, size, channels, per_class, _classes(source))
        if store:
            store.save(found)
    return found


def catalogue(source: str | Path, split: Split = "train", *, data: str | Path | None = None) -> Catalogue:
    """The image files of a set and their classes, nothing decoded: for sets that do not fit in memory."""
    _check(split, None, None)
    tree = open_tree(find(source, data))
    if idx.recognises(tree) or cifar.recognises(tree):
        raise ValueError(f"{tree.source} holds arrays, not image files; read it with load()")
    return _catalogue(tree, split)


def find(source: str | Path, data: str | Path | None = None) -> Path:
    """Where a set is: the folder or archive that a name or path stands for."""
    known = SETS.get(str(source))
    if known is None:
        return _from_path(Path(source).expanduser(), source)
    if not known.places:
        raise ValueError(f"{source} ({known.title}) is not read from files; use load()")
    folder = data if data is not None else os.environ.get(_VARIABLE)
    if folder is None:
        raise ValueError(
            f"where {known.title} is must be said: give data, the folder that holds it, or set {_VARIABLE}"
        )
    places = [Path(folder).expanduser() / place for place in known.places]
    for place in places:
        if place.exists():
            return _the_archive_in(place)
    raise FileNotFoundError(
        f"{known.title} is not in {folder}; put it there as one of {', '.join(known.places)}, or give its path"
    )


def _from_path(path: Path, source: str | Path) -> Path:
    if path.exists():
        return _the_archive_in(path)
    near = difflib.get_close_matches(str(source), SETS, n=1, cutoff=0.5)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise FileNotFoundError(
        f"{source} is no folder or archive, and no set of that name is known ({', '.join(SETS)}){meant}"
    )


def _the_archive_in(path: Path) -> Path:
    """A folder with nothing but one archive in it stands for the archive."""
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
        return _shaped(_both(lambda part: idx.read(tree, part, classes), split), size, channels, per_class)
    if cifar.recognises(tree):
        return _shaped(_both(lambda part: cifar.read(tree, part), split), size, channels, per_class)
    files = _catalogue(tree, split)
    return (files if per_class is None else files.per_class(per_class)).decoded(size, channels)


def _catalogue(tree: Tree, split: str) -> Catalogue:
    if not tiny_imagenet.recognises(tree):
        return folders.catalogue(tree, split)
    if split != "all":
        return tiny_imagenet.catalogue(tree, split)
    parts = [tiny_imagenet.catalogue(tree, part) for part in ("train", "test")]
    labels = torch.cat([part.labels for part in parts])
    return Catalogue(tree, parts[0].names + parts[1].names, labels, parts[0].classes)


def _both(read: Callable[[str], LabelledImages], split: str) -> LabelledImages:
    if split != "all":
        return read(split)
    train, test = read("train"), read("test")
    images, labels = torch.cat([train.images, test.images]), torch.cat([train.labels, test.labels])
    return LabelledImages(images, labels, train.classes)


def _shaped(loaded: LabelledImages, size: int | None, channels: int | None, per_class: int | None) -> LabelledImages:
    chosen = loaded if per_class is None else loaded.per_class(per_class)
    return chosen.converted(size, channels)


def _classes(source: str | Path) -> tuple[str, ...] | None:
    known = SETS.get(str(source))
    return known.classes if known else None


def _cache(
    cache: str | Path | None, path: Path, split: str, size: int | None, channels: int | None, per_class: int | None
) -> Cache | None:
    if cache is None:
        return None
    settings = {"split": split, "size": size, "channels": channels, "per_class": per_class}
    return Cache(Path(cache).expanduser(), {"files": fingerprint(path), **settings})


def _check(split: str, size: int | None, channels: int | None) -> None:
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    if size is not None and size < 1:
        raise ValueError(f"size must be a positive number of pixels, got {size}")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels must be 1 (grey), 3 (colour) or None, got {channels}")
