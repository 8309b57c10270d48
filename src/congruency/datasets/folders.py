"""Image folders: ``train/<class>/*.jpg`` beside ``test/<class>/*.jpg``, or one plain folder of classes."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from congruency.datasets.catalogue import Catalogue
from congruency.datasets.decoding import EXTENSIONS
from congruency.datasets.tree import Tree

__all__ = ["catalogue"]

_SPLITS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}


def catalogue(tree: Tree, split: str) -> Catalogue:
    """The files of one split, by class and name. A class is a folder; its index is its place in the sorted names.

    Both splits must have the same classes, so that a label means the same in each. A plain folder of classes has one
    split, ``"all"``; a folder that itself is called ``train`` or ``val`` is that split.
    """
    root = _root(tree)
    places = {name: _place(tree, root, name) for name in _SPLITS}
    if places["train"] is None and places["test"] is None:
        return _plain(tree, root, split)
    wanted = [name for name in _SPLITS if split in (name, "all")]
    for name in wanted:
        if places[name] is None:
            raise ValueError(f"{tree.source} has no folder for the split {name!r} (one of {', '.join(_SPLITS[name])})")
    classes = _agreed(tree, [place for place in places.values() if place is not None])
    return _listed(tree, [str(places[name]) for name in wanted], classes)


def _plain(tree: Tree, root: str, split: str) -> Catalogue:
    if split != "all" and tree.source.name not in _SPLITS[split]:
        raise ValueError(
            f"{tree.source} has no train/ and test/ folders of classes; "
            "read it as one set with split='all' and divide it yourself (on the command line: --holdout 0.2)"
        )
    return _listed(tree, [root], _classes(tree, root))


def _listed(tree: Tree, places: Iterable[str], classes: tuple[str, ...]) -> Catalogue:
    index = {name: i for i, name in enumerate(classes)}
    files: list[str] = []
    labels: list[int] = []
    for place in places:
        here = [name for name in tree.names if name.startswith(place) and _is_image(name)]
        of_class = [(index[name[len(place) :].split("/")[0]], name) for name in here if "/" in name[len(place) :]]
        _check_none_empty(tree, place, classes, {label for label, _ in of_class})
        for label, name in sorted(of_class):
            files.append(name)
            labels.append(label)
    return Catalogue(tree, tuple(files), torch.tensor(labels, dtype=torch.int64), classes)


def _check_none_empty(tree: Tree, place: str, classes: tuple[str, ...], seen: set[int]) -> None:
    empty = [name for i, name in enumerate(classes) if i not in seen]
    if empty:
        raise ValueError(
            f"the class folder {tree.describe(place + empty[0])} holds no image ({', '.join(EXTENSIONS)}); "
            "fill it or take it away"
        )


def _agreed(tree: Tree, places: list[str]) -> tuple[str, ...]:
    classes = [_classes(tree, place) for place in places]
    odd = sorted(set(classes[0]).symmetric_difference(classes[-1]))
    if odd:
        lacking = places[0] if odd[0] in classes[-1] else places[-1]
        raise ValueError(
            f"{tree.describe(lacking)} lacks the class {odd[0]!r} that the other split has "
            f"({len(classes[0])} and {len(classes[-1])} classes); both need the same"
        )
    return classes[0]


def _classes(tree: Tree, place: str) -> tuple[str, ...]:
    """The folders directly below a place, those without files too where the tree knows of them."""
    below = {name[len(place) :] for name in (*tree.folders, *tree.names) if name.startswith(place)}
    files = {name[len(place) :] for name in tree.names if name.startswith(place)}
    classes = tuple(sorted({name.split("/")[0] for name in below} - files))
    if not classes:
        raise ValueError(
            f"{tree.describe(place) if place else tree.source} holds no class folders with images; "
            "expected <class>/<image> in it, or train/<class>/<image>"
        )
    return classes


def _place(tree: Tree, root: str, split: str) -> str | None:
    """The folder of a split that has class folders; ImageNet's flat ``test``, without labels, gives way to ``val``."""
    for name in _SPLITS[split]:
        place = f"{root}{name}/"
        inside = [each[len(place) :] for each in (*tree.names, *tree.folders) if each.startswith(place)]
        if any("/" in each for each in inside):
            return place
    return None


def _root(tree: Tree) -> str:
    """The folders that everything is in, as an archive often has one on top: ``""`` or ``"top/"``."""
    splits = {name for names in _SPLITS.values() for name in names}
    images = [name.split("/") for name in tree.names if _is_image(name)]
    root: list[str] = []
    while images:
        depth = len(root)
        tops = {parts[depth] for parts in images if len(parts) > depth + 2}
        if len(tops) != 1 or any(len(parts) <= depth + 2 for parts in images) or tops & splits:
            break
        root += tops
    return "".join(f"{part}/" for part in root)


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)
