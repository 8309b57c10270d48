import os
import subprocess
import sys

import pytest

from congruency.files import replacing, write_apart, write_together

WRITER = """
import sys
from pathlib import Path
from congruency.files import replacing

with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_files_are_written_in_a_new_folder(tmp_path):
    folder = tmp_path / "a" / "b"
    assert write_together(folder, {"x": "é", "y": "2"}) == [folder / "x", folder / "y"]
    assert (folder / "x").read_text("utf-8") == "é"
    assert sorted(path.name for path in folder.iterdir()) == ["x", "y"]


def test_a_failure_leaves_the_old_files(tmp_path):
    write_together(tmp_path, {"x": "old", "y": "old"})
    with pytest.raises(UnicodeEncodeError):
        write_together(tmp_path, {"x": "new", "y": "\ud800"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"x": "old", "y": "old"}


def test_files_of_several_folders_are_written_all_or_none(tmp_path):
    page, figures = tmp_path / "a" / "page", tmp_path / "b" / "figures"
    assert write_apart({page: "old", figures: b"old"}) == [page, figures]
    with pytest.raises(UnicodeEncodeError):
        write_apart({page: "new", figures: "\ud800"})
    for path in (page, figures):
        assert path.read_text() == "old"
        assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="locks of folders")
def test_the_next_write_removes_what_a_killed_process_left_but_not_what_a_living_one_writes(tmp_path):
    path = tmp_path / "x"
    write_together(tmp_path, {"x": "old"})
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        write_together(tmp_path, {"y": "1"})
        (aside,) = tmp_path.glob(".writing-*")
        assert (aside / "x").read_text() == "half"
    finally:
        writer.kill()
        writer.communicate()
    assert aside.exists()
    assert path.read_text() == "old"
    with replacing(tmp_path / "z") as file:
        file.write(b"1")
    assert sorted(left.name for left in tmp_path.iterdir()) == ["x", "y", "z"]


@pytest.mark.skipif(os.name != "posix", reason="folders are synced there")
def test_the_content_is_on_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    path, calls = tmp_path / "x", []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append(os.fstat(handle).st_ino), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("renamed"), replace(*paths)))
    with replacing(path) as file:
        file.write(b"1")
    assert calls == [path.stat().st_ino, "renamed", tmp_path.stat().st_ino]
