import gzip
import io
import pickle
import stat
import tarfile
import zipfile

import pytest
from image_layouts import write_archive, write_folder

from congruency.datasets import tree as trees
from congruency.datasets.tree import open_tree

FILES = {"top/a.txt": b"a", "top/in/b.txt": b"bb" * 600, "top/.hidden": b"h", "__MACOSX/top/a.txt": b"m"}
NAMES = ("top/a.txt", "top/in/b.txt")


@pytest.mark.parametrize("ending", ["", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip"])
def test_folders_and_archives_give_the_same_files(tmp_path, ending):
    path = tmp_path / f"set{ending}"
    tree = open_tree(write_archive(path, FILES) if ending else write_folder(path, FILES))
    assert tree.names == NAMES
    assert [tree.read(name) for name in NAMES] == [b"a", b"bb" * 600]
    assert tree.size("top/in/b.txt") == 1200


@pytest.mark.parametrize("name", ["../out.txt", "/etc/out.txt", "a/../../out.txt", "..\\out.txt"])
@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".zip"])
def test_a_name_that_points_outside_is_refused(tmp_path, name, ending):
    with pytest.raises(ValueError, match="points outside of it"):
        open_tree(write_archive(tmp_path / f"evil{ending}", {"a": b"", name: b"x"}))
    assert [path.name for path in tmp_path.iterdir()] == [f"evil{ending}"]


def test_links_are_not_followed_in_archives(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            member = tarfile.TarInfo(f"link{kind!r}")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    assert open_tree(tmp_path / "a.tar").names == ()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    assert open_tree(tmp_path / "a.zip").names == ()


def test_a_folder_that_links_to_itself_ends(tmp_path):
    write_folder(tmp_path, {"a.txt": b"a"})
    (tmp_path / "loop").symlink_to(tmp_path)
    assert "a.txt" in open_tree(tmp_path).names


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "MAX_UNPACKED", 1 << 20)
    monkeypatch.setattr(trees, "_BLOCK", 1 << 16)
    with pytest.raises(ValueError, match="unpacks to more than 1048576 bytes"):
        open_tree(write_archive(tmp_path / "bomb.tar.gz", {"zeros": bytes(2 << 20)}))
    monkeypatch.setattr(trees, "MAX_MEMBER", 1 << 20)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(2 << 20))
    with pytest.raises(ValueError, match="claims 2097152 bytes"):
        open_tree(path).read("zeros")
    with pytest.raises(ValueError, match="larger than 1048576"):
        open_tree(write_folder(tmp_path / "f", {"zeros": bytes(2 << 20)})).read("zeros")


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.bz2", ".zip"])
def test_a_truncated_archive_is_named(tmp_path, ending):
    data = io.BytesIO()
    data.write(bytes(range(256)) * 40)
    path = write_archive(tmp_path / f"cut{ending}", {"a.bin": data.getvalue(), "b.bin": data.getvalue()})
    for keep in (0.5, 0.0):
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
        with pytest.raises(ValueError, match=f"cut{ending} is not a complete, readable archive .*download it again"):
            open_tree(path).read("a.bin")


def test_damage_inside_a_zip_is_named(tmp_path):
    path = write_archive(tmp_path / "a.zip", {"a.bin": b"payload" * 50})
    path.write_bytes(path.read_bytes().replace(b"payloadpayload", b"payloadPAYLOAD", 1))
    with pytest.raises(ValueError, match=r"a.bin in .*a.zip cannot be read"):
        open_tree(path).read("a.bin")


def test_missing_and_unsupported_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; give a folder or an archive"):
        open_tree(tmp_path / "none.tar")
    (tmp_path / "a.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match="neither a folder nor a supported archive"):
        open_tree(tmp_path / "a.gz")


@pytest.mark.parametrize("ending", ["", ".tar", ".tar.xz", ".zip"])
def test_a_tree_can_be_pickled(tmp_path, ending):
    path = tmp_path / f"set{ending}"
    tree = open_tree(write_archive(path, FILES) if ending else write_folder(path, FILES))
    again = pickle.loads(pickle.dumps(tree))
    assert again.names == tree.names
    assert again.read("top/a.txt") == b"a"
