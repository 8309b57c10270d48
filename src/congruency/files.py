"""Writing files so that a reader finds the old ones or the new ones, never half of one."""

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_together(folder: Path, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write every `name: text or bytes` into `folder`, made where it is missing; the paths in the same order.

    All are first written aside and only then renamed into place, so an interruption or a full disk leaves what was
    there before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return write_apart({folder / name: content for name, content in contents.items()})


def write_apart(contents: Mapping[Path, str | bytes]) -> list[Path]:
    """The same for files that go to different folders: each is written aside in its own, then all are renamed."""
    with contextlib.ExitStack() as stack:
        asides: dict[Path, Path] = {}
        for path, content in contents.items():
            if path.parent not in asides:
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = stack.enter_context(tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent))
                asides[path.parent] = Path(aside)
            (asides[path.parent] / path.name).write_bytes(
                content.encode("utf-8") if isinstance(content, str) else content
            )
        for path in contents:
            os.replace(asides[path.parent] / path.name, path)
    return list(contents)
