"""Atomic writes of files and of groups of files: a reader finds the old or the new content, never a part of it.

Also conversions of non-finite numbers, which JSON does not have.
"""

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

_PREFIX = ".writing-"


def finite(value: Any) -> Any:
    """Replace nan and infinities, which JSON lacks, by None, in nested lists and mappings too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def undefined(value: Any) -> Any:
    """Replace None by nan, the inverse of :func:`finite`."""
    if isinstance(value, Mapping):
        return {name: undefined(item) for name, item in value.items()}
    return [undefined(item) for item in value] if isinstance(value, list) else math.nan if value is None else value


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path``, safe from power failures, when the block ends without an error."""
    with _temporary(path.parent) as folder:
        aside = folder / path.name
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        if os.name == "posix":
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)  # makes the rename durable
            finally:
                os.close(handle)


@contextlib.contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    """Create a temporary folder in ``parent`` (created if missing), and remove those left by killed processes."""
    parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        with _locked(parent, wait=True):  # or another process might remove a new folder that is not yet locked
            for left in parent.glob(f"{_PREFIX}*"):
                with _locked(left) as abandoned:
                    if abandoned:
                        shutil.rmtree(left, ignore_errors=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent)))
            stack.enter_context(_locked(folder))
        yield folder


def lock(handle: int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder until it is closed or the process ends.

    Returns:
        True if it was locked, False if another process holds the lock, None if locks are not supported: on Windows, and
        on some file systems.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


@contextlib.contextmanager
def _locked(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Lock a folder until the block or the process ends; yield False if it is locked or locks are not supported."""
    handle = None
    with contextlib.suppress(OSError):  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle is not None and bool(lock(handle, wait=wait))
    finally:
        if handle is not None:
            os.close(handle)


def write_together(folder: Path, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write files, given as name -> content, into `folder` (created if missing); return their paths.

    All are written to temporary files first and renamed at the end, so an interruption or a full disk leaves the old
    files in place.
    """
    return write_apart({folder / name: content for name, content in contents.items()})


def write_apart(contents: Mapping[Path, str | bytes]) -> list[Path]:
    """Like :func:`write_together`, for files in different folders: path -> content."""
    with contextlib.ExitStack() as stack:
        temporary: dict[Path, Path] = {}
        for path, content in contents.items():
            if path.parent not in temporary:
                temporary[path.parent] = stack.enter_context(_temporary(path.parent))
            data = content.encode("utf-8") if isinstance(content, str) else content
            (temporary[path.parent] / path.name).write_bytes(data)
        for path in contents:
            os.replace(temporary[path.parent] / path.name, path)
    return list(contents)
