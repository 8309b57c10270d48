"""Cache decoded images in a file."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from congruency.datasets.images import LabelledImages
from congruency.files import replacing

_FORMAT = 1


@dataclass(frozen=True)
class Cache:
    """A file with one decoded data set and a description of its source.

    Attributes:
        path: the file.
        source: fingerprint of the source files, and the decoding settings. A file with another source raises
            ValueError and is not overwritten.
    """

    path: Path
    source: dict[str, Any]

    def load(self) -> LabelledImages | None:
        """Return the data set, or None if the file does not exist yet."""
        if not self.path.exists():
            return None
        try:
            content = torch.load(self.path, weights_only=True, map_location="cpu")
            found = [content["format"], content["made_of"]]
            loaded = LabelledImages(content["images"], content["labels"], tuple(map(str, content["classes"])))
            matches = bool(found == [_FORMAT, self.source])
        except Exception as reason:  # torch.load raises many types of errors for files in other formats
            raise ValueError(
                f"{self.path} is not a complete image cache ({type(reason).__name__}); delete it or name another file"
            ) from reason
        if not matches:
            raise ValueError(
                f"{self.path} was made from {found[1]}, expected {self.source}; delete it or name another file"
            )
        return loaded

    def save(self, loaded: LabelledImages) -> None:
        """Write the file atomically."""
        content = {
            "format": _FORMAT,
            "made_of": self.source,
            "images": loaded.images,
            "labels": loaded.labels,
            "classes": list(loaded.classes),
        }
        with replacing(self.path) as file:
            torch.save(content, file)


def fingerprint(source: Path) -> str:
    """Hash the names and sizes of all files of a source; changes if files are added, removed or resized."""
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    listing = "\n".join(f"{path.relative_to(source.parent)} {path.stat().st_size}" for path in files)
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
