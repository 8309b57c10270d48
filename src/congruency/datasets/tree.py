"""Read files by name from a folder or an archive, without extracting anything to disk."""

import bz2
import gzip
import lzma
import mmap
import os
import stat
import tarfile
import threading
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from io import BytesIO
from pathlib import Path, PurePosixPath

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz", ".zip")
MAX_UNPACKED = 8 << 30  # bytes; a compressed tar is unpacked in memory
MAX_MEMBER = 1 << 30  # bytes per file
_MAX_DEPTH = 8
_BLOCK = 1 << 22
_ARCHIVE_ERRORS = (
    OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error,
    NotImplementedError, UnicodeDecodeError,  # a zip of an unknown version or method, or with undecodable names
)  # fmt: skip


class Tree(ABC):
    """A read-only set of files under names like ``train/cat/1.jpg``.

    Attributes:
        source: the folder or archive.
        names: the files, sorted.
        folders: the folders, sorted; an archive need not list them.
    """

    source: Path
    names: tuple[str, ...]
    folders: tuple[str, ...]

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the bytes of one file; thread-safe."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of one file in bytes."""

    def describe(self, name: str) -> str:
        """Return the name of one file for error messages."""
        return f"{name} in {self.source}"


class FolderTree(Tree):
    """The files below a folder. Symbolic links are followed, since it is the user's own folder."""

    def __init__(self, source: Path) -> None:
        self.source = source
        names: list[str] = []
        folders: list[str] = []
        _scan(source, "", names, folders, _MAX_DEPTH)
        self.names, self.folders = tuple(sorted(names)), tuple(sorted(folders))

    def read(self, name: str) -> bytes:
        if self.size(name) > MAX_MEMBER:
            raise ValueError(f"{self.describe(name)} is larger than {MAX_MEMBER} bytes, too many for one file")
        return (self.source / name).read_bytes()

    def size(self, name: str) -> int:
        return (self.source / name).stat().st_size

    def describe(self, name: str) -> str:
        return str(self.source / name)


class TarTree(Tree):
    """The files of a tar archive; a compressed one is unpacked into memory once."""

    def __init__(self, source: Path) -> None:
        self.source = source
        try:
            self._buffer = _mapped(source) if source.name.endswith(".tar") else _unpacked(source)
            stream = BytesIO(self._buffer) if isinstance(self._buffer, bytes) else source.open("rb")
            with stream, tarfile.open(fileobj=stream, mode="r:") as archive:
                self._where, folders = _index(archive, source)
        except _ARCHIVE_ERRORS as reason:
            raise _unreadable(source, reason) from reason
        self.names, self.folders = tuple(sorted(self._where)), tuple(sorted(folders))

    def read(self, name: str) -> bytes:
        start, size = self._where[name]
        data = self._buffer[start : start + size]
        if len(data) < size:
            raise _unreadable(self.source, f"it ends inside {name}")
        return data

    def size(self, name: str) -> int:
        return self._where[name][1]

    def __reduce__(self) -> tuple[Callable[[Path], Tree], tuple[Path]]:
        return open_tree, (self.source,)  # other processes reopen the archive


class ZipTree(Tree):
    """The files of a zip archive."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._open()
        entries = {_safe(entry.filename, source): entry for entry in self._archive.infolist() if entry.filename}
        self.folders = tuple(sorted(name for name, entry in entries.items() if entry.is_dir()))
        files = {name: entry for name, entry in entries.items() if _wanted(name) and not entry.is_dir()}
        self._entries = {name: entry for name, entry in files.items() if not stat.S_ISLNK(entry.external_attr >> 16)}
        self.names = tuple(sorted(self._entries))

    def read(self, name: str) -> bytes:
        if self.size(name) > MAX_MEMBER:
            raise ValueError(f"{self.describe(name)} claims {self.size(name)} bytes, too many for one file")
        try:
            with self._lock:
                if os.getpid() != self._process:
                    self._open()
                return self._archive.read(self._entries[name])  # never more than its declared size
        except (*_ARCHIVE_ERRORS, RuntimeError) as reason:  # RuntimeError: a password is needed
            raise ValueError(f"{self.describe(name)} cannot be read ({reason}); download the archive again") from reason

    def size(self, name: str) -> int:
        return self._entries[name].file_size

    def _open(self) -> None:
        """Open the archive for this process: forked processes would share the file position."""
        self._process = os.getpid()
        try:
            self._archive = zipfile.ZipFile(self.source)
        except _ARCHIVE_ERRORS as reason:
            raise _unreadable(self.source, reason) from reason

    def __reduce__(self) -> tuple[Callable[[Path], Tree], tuple[Path]]:
        return open_tree, (self.source,)


def open_tree(source: Path) -> Tree:
    """Open a folder, a tar archive (plain, gz, bz2, xz) or a zip archive."""
    if source.is_dir():
        return FolderTree(source)
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; give a folder or an archive ({', '.join(ARCHIVES)})")
    if source.name.endswith(".zip"):
        return ZipTree(source)
    if source.name.endswith(ARCHIVES):
        return TarTree(source)
    raise ValueError(f"{source} is neither a folder nor a supported archive ({', '.join(ARCHIVES)})")


def _scan(folder: Path, prefix: str, names: list[str], folders: list[str], depth: int) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if not _wanted(name):
                continue
            if entry.is_dir():
                folders.append(name)
                if depth:
                    _scan(Path(entry.path), f"{name}/", names, folders, depth - 1)
            elif entry.is_file():
                names.append(name)


def _index(archive: tarfile.TarFile, source: Path) -> tuple[dict[str, tuple[int, int]], list[str]]:
    where: dict[str, tuple[int, int]] = {}
    folders: list[str] = []
    for member in archive:
        name = _safe(member.name, source)
        if member.isdir():
            folders.append(name)
        elif member.isreg() and not member.issparse() and _wanted(name):  # a link has no content of its own
            where[name] = (member.offset_data, member.size)
    return where, folders


def _mapped(source: Path) -> mmap.mmap:
    with source.open("rb") as file:
        if not source.stat().st_size:
            raise EOFError("it is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _unpacked(source: Path) -> bytes:
    ending = source.name.rsplit(".", 1)[-1]
    opened = gzip.open if ending in ("gz", "tgz") else bz2.open if ending == "bz2" else lzma.open
    blocks: list[bytes] = []
    unpacked = 0
    with opened(source, "rb") as stream:
        while block := stream.read(_BLOCK):
            unpacked += len(block)
            if unpacked > MAX_UNPACKED:
                raise ValueError(
                    f"{source} unpacks to more than {MAX_UNPACKED} bytes, too many to hold in memory; "
                    "unpack it and give the folder"
                )
            blocks.append(block)
    return b"".join(blocks)


def _safe(name: str, source: Path) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{source} holds a file named {name!r}, which points outside of it; do not trust this archive")
    return str(path)


def _wanted(name: str) -> bool:
    """Whether the file is neither hidden nor metadata that macOS adds to archives."""
    last = name.rsplit("/", 1)[-1]
    return not last.startswith(".") and not name.startswith("__MACOSX")


def _unreadable(source: Path, reason: object) -> ValueError:
    return ValueError(f"{source} is not a complete, readable archive ({reason}); download it again")
