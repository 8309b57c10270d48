"""Writing a report so that a reader finds the old files or the new ones, never half of one."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_together(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write every `name: text` into `folder`, made where it is missing, and return the paths in the same order.

    All texts are first written aside and only then renamed into place, so an interruption or a full disk leaves what
    was there before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as aside:
        for name, text in texts.items():
            (Path(aside) / name).write_text(text, encoding="utf-8")
        for name in texts:
            os.replace(Path(aside) / name, folder / name)
    return [folder / name for name in texts]


def write_files(folder: Path, contents: Mapping[str, str | bytes]) -> list[Path]:
    """The same for pictures beside the texts: every `name: text or bytes`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as aside:
        for name, content in contents.items():
            (Path(aside) / name).write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        for name in contents:
            os.replace(Path(aside) / name, folder / name)
    return [folder / name for name in contents]
