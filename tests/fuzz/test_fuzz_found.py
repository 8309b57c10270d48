"""What fuzzing has found, one small case each, and proof that the watch over the targets can fail."""

from __future__ import annotations

import builtins
import csv
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz_harness import MARK, Target, attempt, exploits, run, watched
from PIL import Image
from scipy.io import savemat
from torch import nn

import congruency
from congruency import datasets
from congruency.datasets import cifar
from congruency.report.page import Page, render
from congruency.report.tables import Table
from congruency.saliency.data import DataError, folder, osie, read_image, salicon
from congruency.saliency.data.images import read_map
from congruency.saliency.data.matlab import load_mat
from congruency.training.record import read_record


def test_the_watch_sees_a_file_written_outside(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with watched(inside):
        (inside / "here.txt").write_text("allowed")
    with pytest.raises(AssertionError, match="for writing"), watched(inside):
        (tmp_path / "evil.txt").write_text("not allowed")
    with pytest.raises(AssertionError, match=r"os\.mkdir"), watched(inside):
        (tmp_path / "evil").mkdir()


def test_the_watch_sees_a_process_started(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="subprocess"), watched(tmp_path):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(AssertionError, match=r"os\.system"), watched(tmp_path):
        os.system("true")


def test_the_watch_sees_code_of_a_pickle_run(tmp_path: Path) -> None:
    try:
        with pytest.raises(AssertionError, match="executed"), watched(tmp_path):
            pickle.loads(pickle.dumps(exploits()[0]))
    finally:
        delattr(builtins, MARK)


def test_an_error_must_name_the_file(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("something somewhere is wrong")

    assert isinstance(attempt(fail, tmp_path, named=("somewhere",)), ValueError)
    with pytest.raises(AssertionError, match="names none of"):
        attempt(fail, tmp_path, named=("a.mat",))


def test_a_target_that_leaves_something_outside_fails() -> None:
    def careless(_: object, inside: Path) -> str:
        (inside.parent / "evil.txt").write_text("changed")
        return "done"

    with pytest.raises(AssertionError, match="outside of the folder has changed"):
        run(Target("careless", "", careless, 1), 1)


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e300, 1e-300])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_constraints_whose_squares_are_out_of_range_hold(size: float, count: int) -> None:
    rows = torch.tensor([[0.0, 1.0]], dtype=torch.float64).repeat(count, 1) * size
    for scale in (1.0, 1e200, 1e-200):
        x = congruency.project(torch.tensor([1.0, -1.0], dtype=torch.float64) * scale, rows)
        assert torch.allclose(x / scale, torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-12)


def _stepped() -> tuple[congruency.DCL, nn.Linear]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dcl = congruency.DCL(optimizer, window=5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return dcl, model


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("version", torch.zeros(2)),
        ("settings", [1]),
        ("counts", {"steps": 1}),
        ("counts", {"steps": 10**400, "corrected": 0, "nonfinite": 0}),
        ("sources", None),
        ("sources", []),
        ("sources", [{}]),
        ("sources", [{"step": "1", "parameters": 2, "slots": {}}]),
        ("sources", [{"step": -1, "parameters": 2, "slots": {}}]),
        ("sources", [{"step": 1, "parameters": torch.zeros(0), "slots": {}}]),
        ("sources", [{"step": 1, "parameters": 2, "slots": {"9": []}}]),
        ("sources", [{"step": 1, "parameters": 2, "slots": {"0": None}}]),
        ("sources", [{"step": 1, "parameters": 2, "slots": {"0": [7]}}]),
    ],
)
def test_an_invalid_part_of_a_state_is_refused(part: str, value: object) -> None:
    dcl, _ = _stepped()
    with pytest.raises(ValueError, match="state"):
        dcl.load_state_dict({**dcl.state_dict(), part: value})
    assert dcl.state_dict()["counts"]["steps"] == 1


def test_a_state_loads_where_a_parameter_is_frozen_now() -> None:
    saved = _stepped()[0].state_dict()
    dcl, model = _stepped()
    dcl.reset()
    model.zero_grad()
    model.bias.requires_grad_(False)
    dcl.load_state_dict(saved)
    assert dcl.state_dict()["sources"][0]["slots"].keys() == {"0", "1"}


def test_inconsistent_memories_are_refused() -> None:
    model = nn.Linear(2, 2)
    gem = congruency.GEM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    for task in range(2):
        gem.observe(torch.ones(3, 2), torch.tensor([0, 1, 0]), task)
    state = gem.state_dict()
    episodes = state["sources"][0]["episodes"]
    for wrong in (
        {"inputs": torch.ones(3, 5, 5)},
        {"targets": torch.ones(3)},
        {"targets": torch.tensor([0])},
        {"mask": 3},
    ):
        damaged = [{"current": 1, "episodes": [episodes[0], {**episodes[1], **wrong}]}]
        with pytest.raises(ValueError, match="state"):
            gem.load_state_dict({**state, "sources": damaged})


@pytest.mark.parametrize("wrong", [{"weights": 3}, {"weights": [1, 2]}, {"reference": torch.zeros(2)}])
def test_an_invalid_meter_state_is_reported(wrong: dict[str, object]) -> None:
    meter = congruency.CongruencyMeter([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))])
    with pytest.raises(ValueError, match="the state"):
        meter.load_state_dict({**meter.state_dict(), **wrong})
    with pytest.raises(ValueError, match="must be a dict"):
        meter.load_state_dict([])  # type: ignore[arg-type]


def _cifar(place: Path, first: bytes) -> Path:
    batch = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [0]}, 2)
    for number in range(1, 6):
        (place / f"data_batch_{number}").write_bytes(first if number == 1 else batch)
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a"]}))
    return place


def test_a_pickle_cannot_ask_for_gigabytes(tmp_path: Path) -> None:
    """pickle in C makes room for every place in its memo up to the highest named: here 32 GB."""
    place = _cifar(tmp_path, b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b".")
    with pytest.raises(ValueError, match="data_batch_1"):
        datasets.load(place)


def test_a_pickle_cannot_make_numpy_take_bytes_for_objects(tmp_path: Path) -> None:
    array = np.zeros(1, [("a", "O")])
    with pytest.raises(ValueError, match="not of bytes"):
        datasets.load(_cifar(tmp_path, pickle.dumps({"data": array, "labels": [0]}, 2)))


def test_attributes_set_by_a_pickle_do_not_persist(tmp_path: Path) -> None:
    raw = b"\x80\x02c_codecs\nencode\n}X\x06\x00\x00\x00markedK\x01sb."
    with pytest.raises(ValueError, match="data_batch_1"):
        datasets.load(_cifar(tmp_path, raw))
    find = cifar._Unpickler(io.BytesIO(b"")).find_class
    assert not hasattr(find("_codecs", "encode"), "marked")


def test_a_label_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    raw = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [10**30]}, 2)
    with pytest.raises(ValueError, match="data_batch_1"):
        datasets.load(_cifar(tmp_path, raw))


def test_a_zip_with_an_unnamed_file_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        entry = zipfile.ZipInfo("x")
        entry.filename = "\0evil"
        archive.writestr(entry, b"1")
    with pytest.raises(ValueError, match=r"set\.zip"):
        datasets.load(tmp_path / "set.zip", "all")


@pytest.mark.parametrize(("place", "value"), [(6, 84), (46, 0xF4)])
def test_a_zip_of_an_unknown_version_or_with_undecodable_names_is_refused(
    place: int, value: int, tmp_path: Path
) -> None:
    """Counted from the entry in the central directory: the version needed, and the first byte of the name."""
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("\u00e9.png", b"")  # so that names are said to be UTF-8
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + place] = value
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"set\.zip"):
        datasets.load(path, "all")


def test_a_file_that_is_no_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cache.pt"
    wrong = {"format": torch.zeros(2), "made_of": {}, "images": torch.zeros(2), "labels": [], "classes": []}
    torch.save(wrong, path)
    with pytest.raises(ValueError, match=r"cache\.pt"):
        datasets.Cache(path, {}).load()


def test_an_image_of_too_many_pixels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.ppm"
    path.write_bytes(b"P6 60000 60000 255\n" + bytes(100))
    with pytest.raises(DataError, match="bomb"):
        read_image(path)


def test_a_corrupt_png_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(buffer, "PNG")
    raw = bytearray(buffer.getvalue())
    raw[raw.index(b"IDAT") + 400] ^= 255
    path = tmp_path / "a.png"
    path.write_bytes(bytes(raw))
    for read in (read_image, read_map):
        with pytest.raises(DataError, match=r"a\.png"):
            read(path)


def test_arrays_with_false_headers_or_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.npy"
    np.save(path, np.zeros((2, 3)))
    path.write_bytes(path.read_bytes().replace(b"(2, 3)", b"(99999999999, 9)"))
    with pytest.raises(DataError, match=r"map\.npy"):
        read_map(path)
    for array in (np.zeros(3), np.array([{}], dtype=object)):
        np.save(path, array, allow_pickle=True)
        with pytest.raises(DataError, match=r"map\.npy"):
            read_map(path)


@pytest.mark.parametrize("name", ["../evil.jpg", "/etc/passwd", ".."])
def test_fixations_cannot_name_an_image_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "stimuli").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "evil.jpg")
    entry = {"img": name, "subjects": [{"fix_x": np.ones(2), "fix_y": np.ones(2)}]}
    savemat(tmp_path / "fixations.mat", {"fixations": [entry]})
    with pytest.raises(DataError, match=r"fixations\.mat"):
        osie(tmp_path)


def test_types_in_a_mat_file_that_crash_scipy_are_refused(tmp_path: Path) -> None:
    """SciPy looks up the type of an element in a table without asking whether it is in there."""
    path = tmp_path / "a.mat"
    savemat(path, {"x": np.arange(6.0).reshape(2, 3)})
    whole = path.read_bytes()
    assert load_mat(path)["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    place = whole.index(struct.pack("<II", 9, 48))  # the tag of the numbers
    for kind in (0, 8, 10, 99, 65535):
        path.write_bytes(whole[:place] + struct.pack("<I", kind) + whole[place + 4 :])
        with pytest.raises(DataError, match=r"a\.mat"):
            load_mat(path)
    savemat(path, {"x": np.zeros((0, 0))})  # of no numbers, whose type still is looked up
    empty = path.read_bytes()
    place = empty.rindex(struct.pack("<II", 9, 0))
    path.write_bytes(empty[:place] + bytes(8) + empty[place + 8 :])
    with pytest.raises(DataError, match=r"a\.mat"):
        load_mat(path)
    for cut in (130, 150, len(whole) - 8):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"a\.mat"):
            load_mat(path)


def test_every_kind_of_matlab_array_is_accepted(tmp_path: Path) -> None:
    cell = np.array([np.arange(3), "two", {"three": 3.0}], dtype=object)
    content = {"n": np.arange(4, dtype=np.int16), "c": 1 + 2j, "s": {"a": 1, "b": {"c": "text"}}, "o": cell, "e": []}
    for compressed in (False, True):
        savemat(tmp_path / "a.mat", content, do_compression=compressed)
        found = load_mat(tmp_path / "a.mat")
        assert found["n"].tolist() == [0, 1, 2, 3]
        assert found["c"] == 1 + 2j
        assert found["s"].b.c == "text"
        assert found["o"][2].three == 3


def test_a_csv_cell_that_is_too_long_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    long = "x" * (csv.field_size_limit() + 1)
    (tmp_path / "fixations.csv").write_text(f"image,x,y\n{long},1,2\n")
    with pytest.raises(DataError, match=r"fixations\.csv"):
        folder(tmp_path)


def test_json_that_is_deep_or_has_huge_numbers_is_refused(tmp_path: Path) -> None:
    for part in ("images", "annotations"):
        (tmp_path / part).mkdir()
    path = tmp_path / "annotations" / "fixations_train.json"
    annotations = [{"image_id": 1, "fixations": [[10**400, 1]]}]
    huge = json.dumps({"info": {"date_created": "2017"}, "images": [], "annotations": annotations})
    for text in ("[" * 100_000, huge):
        path.write_text(text)
        with pytest.raises(DataError, match="fixations_train"):
            salicon(tmp_path)


@pytest.mark.parametrize("line", ["[" * 50_000, "7", "[]", '{"step": 1}', "9" * 5000, "\x80"])
def test_a_damaged_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "record.jsonl"
    path.write_bytes(b'{"kind": "run"}\n' + line.encode("latin1") + b"\n")
    with pytest.raises(ValueError, match=r"line 2 of .*record\.jsonl"):
        read_record(path)


def test_half_a_surrogate_pair_can_be_written() -> None:
    html = render(Page("\ud800", "l", "c", Table("", ["a"], [["\udfff"]]), []))
    assert html.encode("utf-8")
