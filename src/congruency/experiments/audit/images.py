"""The images of an audit, each with a name by which it can be found again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from congruency.datasets import SETS, Catalogue, LabelledImages, catalogue, load

__all__ = ["ImageSource", "Named", "read"]


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Which images.

    Attributes:
        name: a name of :data:`congruency.datasets.SETS` or a path.
        split: train or test.
        folder: of the data sets, for a name.
        per_class: only so many of every class.
    """

    name: str
    split: str = "train"
    folder: Path | None = None
    per_class: int | None = None

    @property
    def title(self) -> str:
        """What a page calls the set."""
        return Path(self.name).name

    @property
    def kind(self) -> str:
        """What a page calls its images: "training ", "test ", or nothing where they are all."""
        return {"train": "training ", "test": "test "}.get(self.split, "")


@dataclass(frozen=True, eq=False)
class Named:
    """Images in memory, and the file of each where they come from files."""

    images: LabelledImages
    files: tuple[str, ...] | None


def read(source: ImageSource, *, size: int | None = None, channels: int | None = None) -> Named:
    """All images of a set, brought to one size where the set is not one of the known ones, which have one."""
    side = None if source.name in SETS and source.name != "imagenet" else size
    found = _catalogue(source)
    if found is None:
        images = load(source.name, source.split, side, channels, data=source.folder, per_class=source.per_class)  # type: ignore[arg-type]
        return Named(images, None)
    files = found if source.per_class is None else found.per_class(source.per_class)
    return Named(files.decoded(side, channels), files.names)


def _catalogue(source: ImageSource) -> Catalogue | None:
    try:
        return catalogue(source.name, source.split, data=source.folder)  # type: ignore[arg-type]
    except ValueError:  # it holds arrays; what else may be wrong is told by load
        return None
