"""Tiny ImageNet in its official layout, zipped or extracted."""

from __future__ import annotations

import torch

from congruency.datasets.catalogue import Catalogue
from congruency.datasets.decoding import EXTENSIONS
from congruency.datasets.tree import Tree

__all__ = ["catalogue", "recognises"]


def recognises(tree: Tree) -> bool:
    """Whether its list of classes is there."""
    return any(name == "wnids.txt" or name.endswith("/wnids.txt") for name in tree.names)


def catalogue(tree: Tree, split: str) -> Catalogue:
    """One split. The official test images have no labels, so ``"test"`` is the validation set, as in the paper.

    Classes are in the order of their WordNet ids, and called by the first word of ``words.txt`` where that is unique.
    """
    root = next(name for name in tree.names if name.split("/")[-1] == "wnids.txt").removesuffix("wnids.txt")
    ids = sorted(set(_lines(tree, f"{root}wnids.txt")))
    if not ids:
        raise ValueError(f"{tree.describe(root + 'wnids.txt')} names no classes; fetch the set again")
    pairs = _train(tree, root, ids) if split == "train" else _validation(tree, root, ids)
    labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
    return Catalogue(tree, tuple(name for name, _ in pairs), labels, _words(tree, root, ids))


def _train(tree: Tree, root: str, ids: list[str]) -> list[tuple[str, int]]:
    files: dict[str, list[str]] = {wnid: [] for wnid in ids}
    prefix = f"{root}train/"
    for name in tree.names:
        parts = name[len(prefix) :].split("/") if name.startswith(prefix) else []
        if len(parts) == 3 and parts[1] == "images" and parts[0] in files and name.lower().endswith(EXTENSIONS):
            files[parts[0]].append(name)
    for wnid, names in files.items():
        if not names:
            raise ValueError(
                f"the class folder {tree.describe(f'{prefix}{wnid}/images')} holds no image; "
                f"it is listed in wnids.txt, so fill it or take its line away"
            )
    return [(name, label) for label, wnid in enumerate(ids) for name in files[wnid]]


def _validation(tree: Tree, root: str, ids: list[str]) -> list[tuple[str, int]]:
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


def _words(tree: Tree, root: str, ids: list[str]) -> tuple[str, ...]:
    if f"{root}words.txt" not in tree.names:
        return tuple(ids)
    table = dict(line.split("\t", 1) for line in _lines(tree, f"{root}words.txt") if "\t" in line)
    first = [table.get(wnid, wnid).split(",")[0].strip() for wnid in ids]
    return tuple(word if first.count(word) == 1 else wnid for word, wnid in zip(first, ids, strict=True))


def _lines(tree: Tree, name: str) -> list[str]:
    if name not in tree.names:
        raise FileNotFoundError(f"{tree.describe(name)} is missing; fetch the set again")
    return [line.strip() for line in tree.read(name).decode("utf-8", "replace").splitlines() if line.strip()]
