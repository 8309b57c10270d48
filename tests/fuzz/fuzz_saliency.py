"""Saliency sets from strangers: .mat, JSON, CSV, maps and images that are broken or not what they say."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_datasets import broken_image
from fuzz_harness import attempt, target
from fuzz_mutations import damaged, mutated
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from congruency.saliency.data import DataError, SaliencyData, folder, mit1003, open_data, osie, read_image, salicon
from congruency.saliency.data.images import image_header, read_map


@cache
def _jpeg(width: int = 8, height: int = 6) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 80, 70)).save(buffer, "JPEG")
    return buffer.getvalue()


def _outcome(found: Any) -> str:
    if isinstance(found, Exception):
        return "refused"
    assert isinstance(found, SaliencyData)
    for each in found.viewings:
        points = each.points
        assert points.dtype == torch.float64
        assert points.shape == (len(points), 2)
        assert torch.isfinite(points).all(), "a point that is no number was kept"
    found.summary()
    return "read"


_NUMBERS = st.one_of(
    st.floats(-3, 20), st.floats(), st.just(1e308), st.integers(-(2**40), 2**40), st.text(max_size=3), st.none(),
    st.lists(st.floats(-1, 9), max_size=3), st.complex_numbers(),
)  # fmt: skip
_IMAGE_NAMES = st.one_of(
    st.just("a.jpg"), st.sampled_from(["../evil.txt", "/etc/passwd", "..", "", "a.jpg\x00", "a\\b.jpg", "b.jpg"]),
    st.text(max_size=4), st.integers(), st.lists(st.integers(), max_size=2),
)  # fmt: skip


def _save(path: Path, content: dict[str, Any], data: st.DataObject) -> bool:
    """Write a .mat file, damaged or not; False for what MATLAB's format cannot hold."""
    buffer = io.BytesIO()
    try:
        savemat(buffer, content, do_compression=data.draw(st.booleans()))
    except Exception:
        return False
    raw = buffer.getvalue()
    path.write_bytes(damaged(data, raw) if data.draw(st.integers(0, 2)) == 0 else raw)
    return True


def _array(values: list[Any]) -> Any:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.array([v if v is not None else "" for v in values], dtype=object)


def _coordinates(data: st.DataObject) -> Any:
    if data.draw(st.booleans()):
        return np.array(data.draw(st.lists(st.floats(-3, 20), max_size=4)))
    return _array(data.draw(st.lists(_NUMBERS, max_size=4)))


@target(
    "OSIE's fixations.mat, damaged or of other content: points within the frame, or an error that names the file", 80
)
def osie_mat(data: st.DataObject, folder: Path) -> str:
    (folder / "stimuli").mkdir()
    (folder / "stimuli" / "a.jpg").write_bytes(_jpeg())
    entries = []
    for _ in range(data.draw(st.integers(1, 2))):
        x = _coordinates(data)
        y = np.zeros(np.shape(x)) if data.draw(st.booleans()) else _coordinates(data)
        viewers = [{"fix_x": x, "fix_y": y}] * data.draw(st.integers(0, 2))
        entry = {"img": data.draw(_IMAGE_NAMES), "subjects": viewers}
        if data.draw(st.integers(0, 5)) == 0:
            entry = mutated(data, entry)
        entries.append(entry)
    name = "fixations" if data.draw(st.integers(0, 9)) else "other"
    if not _save(folder / "fixations.mat", {name: entries}, data):
        return "not a .mat file"
    return _outcome(attempt(lambda: osie(folder), folder, named=("fixations.mat", "stimuli"), errors=DataError))


@target("SALICON's .mat of one image: the same", 60)
def salicon_mat(data: st.DataObject, folder: Path) -> str:
    for part in ("images/train", "fixations/train"):
        (folder / part).mkdir(parents=True)
    (folder / "images/train/a.jpg").write_bytes(_jpeg())
    shape = data.draw(st.sampled_from([(2, 2), (1, 2), (0, 2), (3, 1), (2, 3), (0,), (5,)]))
    values: Any = np.zeros(shape)
    if values.size and data.draw(st.booleans()):
        values.flat[0] = data.draw(st.floats())
    if data.draw(st.integers(0, 4)) == 0:
        values = _array(data.draw(st.lists(_NUMBERS, max_size=4)))
    gaze: Any = [{"fixations": values}] * data.draw(st.integers(0, 3))
    content = {"gaze": mutated(data, gaze) if data.draw(st.integers(0, 4)) == 0 else gaze}
    if not _save(folder / "fixations/train/a.mat", content, data):
        return "not a .mat file"
    return _outcome(attempt(lambda: salicon(folder), folder, named=("a.mat", "a.jpg"), errors=DataError))


@target("MIT1003's maps of fixation points, corrupt or of other sizes: the same", 60)
def mit1003_files(data: st.DataObject, folder: Path) -> str:
    for part in ("ALLSTIMULI", "ALLFIXATIONMAPS"):
        (folder / part).mkdir(parents=True)
    (folder / "ALLSTIMULI/a.jpg").write_bytes(_jpeg())
    raw, _ = broken_image(data)
    (folder / "ALLFIXATIONMAPS/a_fixPts.jpg").write_bytes(raw)
    return _outcome(attempt(lambda: mit1003(folder), folder, named=("a_fixPts.jpg",), errors=DataError))


def _json(value: Any) -> str:
    return json.dumps(value, default=lambda other: str(type(other)))


def _damaged_text(data: st.DataObject, text: str) -> bytes:
    how = data.draw(st.sampled_from(["whole", "whole", "damage", "deep", "long number", "nan"]))
    if how == "damage":
        return damaged(data, text.encode())
    if how == "deep":
        return b"[" * 100_000
    if how == "long number":
        return text.replace("1", "9" * 5000, 1).encode()
    return (text.replace("1", "NaN", 1) if how == "nan" else text).encode()


@target("SALICON's JSON, broken, deep, with nan and numbers of 5000 digits: the same", 80)
def salicon_json(data: st.DataObject, folder: Path) -> str:
    for part in ("images", "annotations"):
        (folder / part).mkdir()
    (folder / "images/a.jpg").write_bytes(_jpeg())
    content: Any = {
        "info": {"date_created": "2017-01-01"},
        "images": [{"id": 1, "file_name": "a.jpg", "height": 6, "width": 8}],
        "annotations": [{"image_id": 1, "fixations": [[1, 2], [3, 4]]}],
    }
    if data.draw(st.integers(0, 3)):
        content = mutated(data, content)
    path = folder / "annotations/fixations_train.json"
    path.write_bytes(_damaged_text(data, _json(content)))
    return _outcome(attempt(lambda: salicon(folder), folder, named=(path.name, "a.jpg", "images"), errors=DataError))


@target("fixations.csv and fixations.json of any folder: the same", 80)
def folder_fixations(data: st.DataObject, folder_: Path) -> str:
    (folder_ / "a.jpg").write_bytes(_jpeg())
    if data.draw(st.booleans()):
        cells = st.one_of(st.sampled_from(["a.jpg", "1", "2.5", "nan", "1e999", "", '"', "\x00", "x" * 200_000]))
        lines = data.draw(st.lists(st.lists(cells, max_size=5), max_size=4))
        text = "image,x,y,viewer\na.jpg,1,2,me\n" + "\n".join(",".join(line) for line in lines)
        name = "fixations.csv"
    else:
        content: Any = {"a.jpg": {"me": [[1, 2], [3, 4]]}, "a": [[1, 1]]}
        text, name = _json(mutated(data, content) if data.draw(st.integers(0, 3)) else content), "fixations.json"
    (folder_ / name).write_bytes(_damaged_text(data, text))
    call = folder if data.draw(st.booleans()) else open_data
    return _outcome(attempt(lambda: call(folder_), folder_, named=(name,), errors=DataError))


@target("images and maps of a saliency set, .npy too: pixels, or an error that names the file", 120)
def saliency_images(data: st.DataObject, folder: Path) -> str:
    raw, suffix = broken_image(data)
    if data.draw(st.integers(0, 2)) == 0:
        raw, suffix = _npy(data), ".npy"
    path = folder / f"broken{suffix}"
    path.write_bytes(raw)
    call = data.draw(st.sampled_from([image_header, read_image, read_map]))
    found = attempt(lambda: call(path), folder, named=("broken",), errors=DataError)
    if isinstance(found, Exception):
        return "refused"
    assert call is image_header or found.dim() == (2 if call is read_map else 3)
    return "read"


def _npy(data: st.DataObject) -> bytes:
    how = data.draw(st.sampled_from(["damage", "objects", "zip", "promise", "whole", "shape"]))
    buffer = io.BytesIO()
    if how == "objects":
        np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif how == "zip":
        np.savez(buffer, a=np.zeros(3))
    else:
        shape = data.draw(st.sampled_from([(2, 3), (3,), (), (1, 2, 3), (0, 0)])) if how == "shape" else (2, 3)
        np.save(buffer, np.zeros(shape, data.draw(st.sampled_from(["f4", "f8", "u1", "c8", "?"]))))
    raw = buffer.getvalue()
    if how == "promise":
        raw = raw.replace(b"(2, 3)", data.draw(st.sampled_from([b"(99999999999, 9)", b"(-1, 3)", b"(10**9,)"])), 1)
    return damaged(data, raw) if how == "damage" else raw
