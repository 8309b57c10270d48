"""Decoded images kept in one file, only where the caller names it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from congruency.datasets.images import LabelledImages

__all__ = ["Cache"]

_FORMAT = 1


@dataclass(frozen=True)
class Cache:
    """A file that holds one decoded set and what it was decoded from.

    Attributes:
        path: the file.
        made_of: the source and the settings; a file made of anything else is refused, not overwritten.
    """

    path: Path
    made_of: dict[str, Any]

    def load(self) -> LabelledImages | None:
        """The set, or None where no file is there yet."""
        if not self.path.exists():
            return None
        try:
            content = torch.load(self.path, weights_only=True, map_location="cpu")
            made = [content["format"], content["made_of"]]
            loaded = LabelledImages(content["images"], content["labels"], tuple(map(str, content["classes"])))
            fits = bool(made == [_FORMAT, self.made_of])
        except Exception as reason:  # torch.load raises of every kind for a file that is not its own
            raise ValueError(
                f"{self.path} is not a whole cache of images ({type(reason).__name__}); delete it or name another file"
            ) from reason
        if not fits:
            raise ValueError(
                f"{self.path} was made of {made[1]}, and {self.made_of} is wanted; delete it or name another file"
            )
        return loaded

    def save(self, loaded: LabelledImages) -> None:
        """Write aside, sync and rename, so that an interruption leaves no half file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": _FORMAT,
            "made_of": self.made_of,
            "images": loaded.images,
            "labels": loaded.labels,
            "classes": list(loaded.classes),
        }
        handle, aside = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.path)
        except BaseException:
            os.unlink(aside)
            raise


def fingerprint(source: Path) -> str:
    """Names and sizes of all the files of a source: what changes when files come, go or grow."""
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    listing = "\n".join(f"{path.relative_to(source.parent)} {path.stat().st_size}" for path in files)
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
