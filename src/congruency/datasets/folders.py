"""Read image folders (``train/<class>/*.jpg`` and ``test/<class>/*.jpg``, or class folders) and Tiny ImageNet."""

from collections.abc import Iterable

import torch

from congruency.datasets.images import EXTENSIONS, Catalogue
from congruency.datasets.tree import Tree

_SPLITS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}


def catalogue(tree: Tree, split: str) -> Catalogue:
    """List the files of one split, sorted by class and name. Each class is a folder; labels index the sorted names.

    Both splits must have the same classes, so that labels agree. A plain folder of classes has one split, ``"all"``;
    a folder named like a split, such as ``train`` or ``val``, is that split. Tiny ImageNet is recognised by its
    ``wnids.txt``.
    """
    if any(name == "wnids.txt" or name.endswith("/wnids.txt") for name in tree.names):
        return _tiny_imagenet(tree, split)
    root = _root(tree)
    places = {name: _place(tree, root, name) for name in _SPLITS}
    if places["train"] is None and places["test"] is None:
        if split != "all" and tree.source.name not in _SPLITS[split]:
            raise ValueError(
                f"{tree.source} has no train/ and test/ folders of classes; "
                "read it as one set with split='all' and split it yourself (on the command line: --holdout 0.2)"
            )
        return _listed(tree, [root], _classes(tree, root))
    wanted = [name for name in _SPLITS if split in (name, "all")]
    for name in wanted:
        if places[name] is None:
            raise ValueError(f"{tree.source} has no folder for the split {name!r} (one of {', '.join(_SPLITS[name])})")
    classes = _agreed(tree, [place for place in places.values() if place is not None])
    return _listed(tree, [str(places[name]) for name in wanted], classes)


def _listed(tree: Tree, places: Iterable[str], classes: tuple[str, ...]) -> Catalogue:
    index = {name: i for i, name in enumerate(classes)}
    files: list[str] = []
    labels: list[int] = []
    for place in places:
        here = [name for name in tree.names if name.startswith(place) and _is_image(name)]
        of_class = [(index[name[len(place) :].split("/")[0]], name) for name in here if "/" in name[len(place) :]]
        empty = set(range(len(classes))) - {label for label, _ in of_class}
        if empty:
            raise ValueError(
                f"the class folder {tree.describe(place + classes[min(empty)])} holds no image "
                f"({', '.join(EXTENSIONS)}); add images or delete it"
            )
        for label, name in sorted(of_class):
            files.append(name)
            labels.append(label)
    return Catalogue(tree, tuple(files), torch.tensor(labels, dtype=torch.int64), classes)


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
    """Return the folders directly below a path, including empty ones if the tree lists folders."""
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
    """Return the folder of a split that has class folders; ``val`` if ``test`` is flat and unlabelled (ImageNet)."""
    for name in _SPLITS[split]:
        place = f"{root}{name}/"
        inside = [each[len(place) :] for each in (*tree.names, *tree.folders) if each.startswith(place)]
        if any("/" in each for each in inside):
            return place
    return None


def _root(tree: Tree) -> str:
    """Return the common top folders that contain everything, as in many archives: ``""`` or ``"top/"``."""
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


def _tiny_imagenet(tree: Tree, split: str) -> Catalogue:
    """List Tiny ImageNet in its official layout. Its test images have no labels: ``"test"`` is the validation set.

    Classes are sorted by WordNet id and named by the first word in ``words.txt`` if that is unique.
    """
    root = next(name for name in tree.names if name.split("/")[-1] == "wnids.txt").removesuffix("wnids.txt")
    ids = sorted(set(_lines(tree, f"{root}wnids.txt")))
    if not ids:
        raise ValueError(f"{tree.describe(root + 'wnids.txt')} names no classes; download the data set again")
    pairs = _tiny_train(tree, root, ids) if split != "test" else []
    pairs += _tiny_validation(tree, root, ids) if split != "train" else []
    labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
    return Catalogue(tree, tuple(name for name, _ in pairs), labels, _tiny_class_names(tree, root, ids))


def _tiny_train(tree: Tree, root: str, ids: list[str]) -> list[tuple[str, int]]:
    files: dict[str, list[str]] = {wnid: [] for wnid in ids}
    prefix = f"{root}train/"
    for name in tree.names:
        parts = name[len(prefix) :].split("/") if name.startswith(prefix) else []
        if len(parts) == 3 and parts[1] == "images" and parts[0] in files and _is_image(name):
            files[parts[0]].append(name)
    for wnid, names in files.items():
        if not names:
            raise ValueError(
                f"the class folder {tree.describe(f'{prefix}{wnid}/images')} holds no image; "
                f"it is listed in wnids.txt, so add images or delete that line"
            )
    return [(name, label) for label, wnid in enumerate(ids) for name in files[wnid]]


def _tiny_validation(tree: Tree, root: str, ids: list[str]) -> list[tuple[str, int]]:
    index = {wnid: label for label, wnid in enumerate(ids)}
    annotations = f"{root}val/val_annotations.txt"
    present = set(tree.names)
    pairs = []
    for number, line in enumerate(_lines(tree, annotations), 1):
        name, wnid = ([*line.split("\t"), ""])[:2]
        if wnid not in index:
            raise ValueError(f"line {number} of {tree.describe(annotations)} names {wnid!r}, which wnids.txt lacks")
        path = f"{root}val/images/{name}"
        if path not in present:
            raise FileNotFoundError(f"{tree.describe(path)} is missing; val_annotations.txt lists it")
        pairs.append((path, index[wnid]))
    return sorted(pairs)


def _tiny_class_names(tree: Tree, root: str, ids: list[str]) -> tuple[str, ...]:
    if f"{root}words.txt" not in tree.names:
        return tuple(ids)
    table = dict(line.split("\t", 1) for line in _lines(tree, f"{root}words.txt") if "\t" in line)
    first = [table.get(wnid, wnid).split(",")[0].strip() for wnid in ids]
    return tuple(word if first.count(word) == 1 else wnid for word, wnid in zip(first, ids, strict=True))


def _lines(tree: Tree, name: str) -> list[str]:
    if name not in tree.names:
        raise FileNotFoundError(f"{tree.describe(name)} is missing; download the data set again")
    return [line.strip() for line in tree.read(name).decode("utf-8", "replace").splitlines() if line.strip()]
