"""Atomic writes of files and of groups of files: a reader finds the old or the new content, never a part of it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path``, synced to disk, when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as folder:
        aside = Path(folder) / path.name
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)


def write_together(folder: Path, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write files, given as name -> content, into `folder` (created if missing); return their paths.

    All are written to temporary files first and renamed at the end, so an interruption or a full disk leaves the old
    files in place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return write_apart({folder / name: content for name, content in contents.items()})


def write_apart(contents: Mapping[Path, str | bytes]) -> list[Path]:
    """Like :func:`write_together`, for files in different folders: path -> content."""
    with contextlib.ExitStack() as stack:
        temporary: dict[Path, Path] = {}
        for path, content in contents.items():
            if path.parent not in temporary:
                path.parent.mkdir(parents=True, exist_ok=True)
                made = stack.enter_context(tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent))
                temporary[path.parent] = Path(made)
            data = content.encode("utf-8") if isinstance(content, str) else content
            (temporary[path.parent] / path.name).write_bytes(data)
        for path in contents:
            os.replace(temporary[path.parent] / path.name, path)
    return list(contents)
