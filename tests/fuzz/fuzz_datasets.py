"""Image sets from strangers: idx files, CIFAR's pickles, archives, single images."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from fuzz_harness import attempt, exploits, target
from fuzz_mutations import damaged, mutated
from hypothesis import strategies as st
from PIL import Image

from congruency import datasets
from congruency.datasets import tree

_READ = (ValueError, FileNotFoundError)


def _outcome(found: Any) -> str:
    if isinstance(found, Exception):
        return "refused"
    assert isinstance(found, datasets.LabelledImages)
    assert found.images.dtype == torch.uint8
    assert found.labels.shape == (len(found),)
    return "read"


def _idx(kind: int, shape: tuple[int, ...], content: bytes) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + content


@target("idx files, plain or gzipped: the images, or an error that names the file", 120)
def idx_files(data: st.DataObject, folder: Path) -> str:
    n = data.draw(st.integers(0, 3))
    images, labels = _idx(8, (n, 2, 3), bytes(range(6)) * n), _idx(8, (n,), bytes(range(n)))
    which = data.draw(st.sampled_from(["images", "labels", "both", "header"]))
    if which == "header":
        lengths = st.sampled_from([0, 1, 2, 0x7FFFFFFF, 0xFFFFFFFF, 0x10000])
        shape = tuple(data.draw(st.lists(lengths, min_size=0, max_size=4)))
        images = _idx(data.draw(st.sampled_from([8, 9, 13, 255])), shape, data.draw(st.binary(max_size=20)))
    if which in ("images", "both"):
        images = damaged(data, images)
    if which in ("labels", "both"):
        labels = damaged(data, labels)
    for name, content in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
        if data.draw(st.booleans()):
            packed = gzip.compress(content, 1)
            (folder / f"{name}.gz").write_bytes(damaged(data, packed) if data.draw(st.booleans()) else packed)
        else:
            (folder / name).write_bytes(content)
    return _outcome(attempt(lambda: datasets.load(folder), folder, named=("train-",), errors=_READ))


def _batch(count: int) -> dict[str, Any]:
    return {"data": numpy.zeros((count, 3072), numpy.uint8), "labels": [0, 1] * (count // 2)}


_OPCODES = bytes(range(256))


@target(
    "CIFAR's pickles: arrays of bytes and lists, nothing else is built and no code runs, whatever they ask for", 150
)
def cifar_pickles(data: st.DataObject, folder: Path) -> str:
    protocol = data.draw(st.integers(0, 5))
    kind = data.draw(st.sampled_from(["exploit", "damage", "mutate", "opcodes", "memo", "dtype", "arrays"]))
    content: Any = _batch(2)
    if kind == "exploit":
        content["more"] = data.draw(st.sampled_from(exploits()))
    elif kind == "mutate":
        content = mutated(data, content)
    elif kind == "dtype":
        fields = (
            [("a", "O"), ("b", "u1")] if data.draw(st.booleans()) else data.draw(st.sampled_from(["O", "V8", "U3"]))
        )
        content["data"] = numpy.zeros(3, fields)
    elif kind == "arrays":
        shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
        content["data"] = numpy.zeros(shape, data.draw(st.sampled_from(["u1", "i8", "f4", "?"])))
    raw = pickle.dumps(content, protocol)
    if kind == "damage":
        raw = damaged(data, raw)
    elif kind == "memo":  # a place in the memo that would need gigabytes
        raw = b"\x80\x02]r" + struct.pack("<I", data.draw(st.sampled_from([2**31 - 1, 2**32 - 1, 10**8]))) + b"."
    elif kind == "opcodes":
        raw = b"\x80\x04" + data.draw(st.lists(st.sampled_from(list(_OPCODES)), max_size=40).map(bytes)) + b"."
    for number in range(1, 6):
        (folder / f"data_batch_{number}").write_bytes(raw if number == 1 else _whole_batch())
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a", "b"]}))
    found = attempt(lambda: datasets.load(folder), folder, named=("data_batch_1", folder.name), errors=_READ)
    assert kind not in ("exploit", "memo", "dtype") or isinstance(found, Exception)
    return _outcome(found)


@cache
def _whole_batch() -> bytes:
    return pickle.dumps(_batch(2), 2)


@cache
def _png(size: tuple[int, int] = (3, 2)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (1, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def _names(folder: Path) -> st.SearchStrategy[str]:
    around = folder.parent.parent
    hostile = [
        "../evil.txt", "../../evil.txt", f"{around}/evil.txt", "/etc/passwd", "a/../../../evil.txt", "..\\..\\evil.txt",
        "C:\\evil.txt", "./../evil.txt", "a/b/../../../evil.txt", "\x00evil", "a//b.png", "a/./b.png", "~/evil.txt",
        "$HOME/evil.txt", "a" * 300 + ".png", "\u202egnp.a", "a/\ud800.png", "CON", "a\n.png", " ", ".", "..", "",
    ]  # fmt: skip
    honest = ["train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/dog/1.png", "cat/1.png", "dog/2.png"]
    return st.one_of(st.sampled_from(hostile), st.sampled_from(honest), st.text(max_size=8))


@contextmanager
def _small_limits() -> Iterator[None]:
    """Limits of kilobytes, so that a bomb need not be a real one."""
    held = tree.MAX_UNPACKED, tree.MAX_MEMBER
    tree.MAX_UNPACKED, tree.MAX_MEMBER = 1 << 20, 1 << 18
    try:
        yield
    finally:
        tree.MAX_UNPACKED, tree.MAX_MEMBER = held


@target(
    "archives with ../ and absolute names, links, devices, bombs, damage: nothing extracted, images or an error", 150
)
def archives(data: st.DataObject, folder: Path) -> str:
    ending = data.draw(st.sampled_from([".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip"]))
    path = folder / f"set{ending}"
    members = data.draw(st.lists(_names(folder), max_size=5))
    if data.draw(st.booleans()):
        members += ["train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/dog/1.png"]
    (_write_zip if ending == ".zip" else _write_tar)(data, path, members)
    if data.draw(st.booleans()):
        path.write_bytes(damaged(data, path.read_bytes()))
    with _small_limits():
        found = attempt(lambda: datasets.load(path, "all"), folder, named=(path.name,), errors=_READ)
    assert sorted(each.name for each in folder.iterdir()) == [path.name], "something was extracted"
    return _outcome(found)


def _content(data: st.DataObject) -> bytes:
    kind = data.draw(st.sampled_from(["png", "png", "bytes", "bomb"]))
    return _png() if kind == "png" else bytes(3 << 19) if kind == "bomb" else data.draw(st.binary(max_size=30))


def _write_tar(data: st.DataObject, path: Path, members: list[str]) -> None:
    kinds = [tarfile.REGTYPE] * 4 + [
        tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
        tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE,
    ]  # fmt: skip
    mode = "w:" + path.name.rsplit(".", 1)[-1].replace("tar", "")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name in members:
            member = tarfile.TarInfo(name.encode("utf-8", "replace").decode())
            member.type = data.draw(st.sampled_from(kinds))
            content = _content(data) if member.type == tarfile.REGTYPE else b""
            member.size = len(content)
            if member.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = data.draw(st.sampled_from(["../evil.txt", "/etc/passwd", "train/cat/1.png"]))
            archive.addfile(member, io.BytesIO(content))


def _write_zip(data: st.DataObject, path: Path, members: list[str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in dict.fromkeys(members):
            entry = zipfile.ZipInfo("x")
            entry.filename = name.encode("utf-8", "replace").decode() or "x"
            entry.compress_type = data.draw(
                st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
            )
            if data.draw(st.integers(0, 4)) == 0:
                entry.external_attr = 0o120777 << 16  # a link
            archive.writestr(entry, _content(data))
    raw = path.read_bytes()
    if data.draw(st.integers(0, 4)) == 0:  # sizes in the central directory that are not true
        place = raw.rfind(b"PK\x01\x02")
        if place >= 0:
            claim = struct.pack("<I", data.draw(st.sampled_from([0, 1, 100, 2**31, 2**32 - 1])))
            at = place + data.draw(st.sampled_from([20, 24]))
            path.write_bytes(raw[:at] + claim + raw[at + 4 :])


_FORMATS = {"PNG": ".png", "JPEG": ".jpg", "BMP": ".bmp", "GIF": ".gif", "TIFF": ".tif", "WEBP": ".webp", "PPM": ".ppm"}


@cache
def _encoded(kind: str, mode: str, side: int) -> bytes:
    buffer = io.BytesIO()
    noise = numpy.random.default_rng(0).integers(0, 256, (side, side, 3), numpy.uint8)
    image = Image.fromarray(noise).convert(mode)
    image.save(buffer, kind)
    return buffer.getvalue()


def _bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises so many pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1 << 16))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def broken_image(data: st.DataObject) -> tuple[bytes, str]:
    """An image file that is damaged, empty, a bomb, or something else under its name; its bytes and its suffix."""
    kind = data.draw(st.sampled_from(list(_FORMATS)))
    suffix = data.draw(st.one_of(st.just(_FORMATS[kind]), st.sampled_from(list(_FORMATS.values()))))
    how = data.draw(st.sampled_from(["damage", "damage", "damage", "cut", "empty", "bomb", "bytes", "whole"]))
    mode = data.draw(st.sampled_from(["RGB", "L"]))
    raw = _encoded(kind, mode, data.draw(st.sampled_from([1, 5, 24])))
    if how == "damage":
        raw = damaged(data, raw)
    elif how == "cut":
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    elif how == "empty":
        raw = b""
    elif how == "bomb":
        sides = st.sampled_from([1, 10_000, 60_000, 2**31 - 1])
        raw = _bomb(data.draw(sides), 60_000)
    elif how == "bytes":
        raw = data.draw(st.binary(max_size=60))
    return raw, suffix


@target("corrupt images, bombs, wrong names: pixels, or an error that names the file", 150)
def images(data: st.DataObject, folder: Path) -> str:
    raw, suffix = broken_image(data)
    if suffix == ".gif":
        suffix = ".png"  # not one of the endings that are read here
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / f"whole{suffix}").write_bytes(_png())
    (folder / "a" / f"0broken{suffix}").write_bytes(raw)
    size = data.draw(st.sampled_from([None, 2, 7]))
    found = attempt(lambda: datasets.load(folder, "all", size=size), folder, named=("broken", "whole"), errors=_READ)
    return _outcome(found)
