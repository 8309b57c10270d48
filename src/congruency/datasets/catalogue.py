"""Which image files make up a set, before any of them is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from congruency.datasets.decoding import decode_all
from congruency.datasets.images import LabelledImages, first_of_each
from congruency.datasets.tree import Tree

__all__ = ["Catalogue"]


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Image files with their classes; what a set too large for memory is read from.

    Attributes:
        tree: where the files are.
        names: the files, N of them.
        labels: int64, (N,).
        classes: the names of the classes, in the order of the labels.
    """

    tree: Tree
    names: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def per_class(self, count: int) -> Catalogue:
        """The first ``count`` files of every class."""
        return self.subset(first_of_each(self.labels, count).tolist())

    def subset(self, indices: Sequence[int]) -> Catalogue:
        """The files at these places, in this order."""
        where = torch.as_tensor(indices, dtype=torch.int64)
        return replace(self, names=tuple(self.names[i] for i in where.tolist()), labels=self.labels[where])

    def decoded(self, size: int | None = None, channels: int | None = None) -> LabelledImages:
        """All of them in memory; ``size`` is needed where they differ in shape."""
        return LabelledImages(decode_all(self.tree, self.names, size, channels), self.labels, self.classes)
