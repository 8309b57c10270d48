"""Corpora of bytes: the files of a folder, or Python's standard library, split into training and held-out text."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["STDLIB", "Corpus", "read_corpus"]

STDLIB = "stdlib"
"""The name of the default corpus."""

_ONE_IN = 10  # one in this many files is held out
_NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True, eq=False)
class Corpus:
    """Training and held-out text.

    Attributes:
        name: ``"stdlib"``, or the name of the folder or file.
        train, held_out: The bytes, uint8.
        files: Numbers of training and held-out files.
        digest: Hash of both texts; it does not depend on file names.
    """

    name: str
    train: Tensor
    held_out: Tensor
    files: tuple[int, int]
    digest: str

    def describe(self) -> dict[str, Any]:
        """Return the description for the run record."""
        return {
            "corpus": self.name,
            "corpus_files": list(self.files),
            "training_bytes": len(self.train),
            "held_out_bytes": len(self.held_out),
            "corpus_hash": self.digest,
        }


def read_corpus(source: str | Path = STDLIB) -> Corpus:
    """Read a corpus: ``"stdlib"`` (the sources of Python's standard library, without its tests), a folder, or a file.

    In a folder, all readable UTF-8 files at any depth are used, duplicates once. About one in ten is held out, chosen
    by a hash of its content, so that a file is always on the same side. Of a single file the last tenth is held out.

    Raises:
        FileNotFoundError: The folder or file does not exist.
        ValueError: It has no text, or too few files to split.

    Examples:
        >>> from congruency.language import read_corpus
        >>> corpus = read_corpus()
        >>> len(corpus.train) > 5 * len(corpus.held_out) > 0
        True
    """
    if source == STDLIB:
        folder = Path(sysconfig.get_path("stdlib"))
        found = (path for path in folder.rglob("*.py") if not _NOT_SOURCES & set(path.relative_to(folder).parts))
        return _divided(STDLIB, _texts(found), folder)
    place = Path(source).expanduser()
    if place.is_file():
        return _cut(place)
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder or file {place}; give one with text, or {STDLIB!r}")
    return _divided(place.name, _texts(path for path in place.rglob("*") if path.is_file()), place)


def _texts(paths: Iterator[Path]) -> dict[str, bytes]:
    """Return the contents of text files by hash; unreadable and non-text files are skipped."""
    found = {}
    for path in paths:
        try:
            content = path.read_bytes()
            content.decode()
        except (OSError, UnicodeDecodeError):
            continue
        if content and b"\0" not in content:
            found[hashlib.sha256(content).hexdigest()] = content
    return found


def _divided(name: str, texts: dict[str, bytes], folder: Path) -> Corpus:
    if not texts:
        raise ValueError(f"{folder} has no text files in UTF-8; give a folder that has some")
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    for key in sorted(texts):  # sorted by hash, so that names and folders do not matter
        sides[int(key, 16) % _ONE_IN == 0].append(texts[key])
    if not all(sides):
        raise ValueError(
            f"{folder} has too few text files ({len(texts)}) to hold out one in {_ONE_IN}, chosen by content; add "
            "files, or join them into one file, of which the last tenth is held out"
        )
    return _corpus(name, b"\0".join(sides[0]), b"\0".join(sides[1]), (len(sides[0]), len(sides[1])))


def _cut(path: Path) -> Corpus:
    content = next(iter(_texts(iter([path])).values()), b"")
    if not content:
        raise ValueError(f"{path} is empty or no text in UTF-8; give a file or a folder of text")
    end = len(content) - len(content) // _ONE_IN
    return _corpus(path.name, content[:end], content[end:], (1, 1))


def _corpus(name: str, train: bytes, held_out: bytes, files: tuple[int, int]) -> Corpus:
    digest = hashlib.sha256(hashlib.sha256(train).digest() + hashlib.sha256(held_out).digest()).hexdigest()[:16]
    train_text, held_out_text = (torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in (train, held_out))
    return Corpus(name, train_text, held_out_text, files, digest)
