import pytest

from congruency.files import write_apart, write_together


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
