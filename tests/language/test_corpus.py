"""Corpora: what is read, how it is divided, and what is refused."""

import doctest
import os

import pytest
from language_toy import write_texts

from congruency.language import corpus as module
from congruency.language import read_corpus


def text(tensor):
    return bytes(tensor.tolist())


def test_files_are_divided_by_content_and_stay_on_their_side(tmp_path):
    folder = write_texts(tmp_path / "a")
    first = read_corpus(folder)
    train, held_out = (text(part).split(b"\0") for part in (first.train, first.held_out))
    assert not set(train) & set(held_out)
    assert {*train, *held_out} == {path.read_bytes() for path in folder.iterdir()}
    assert first.files == (len(train), len(held_out))
    assert 0 < len(held_out) < len(train)

    other = tmp_path / "b" / "deep"  # other names, other folders, one file twice, one more file
    other.mkdir(parents=True)
    for i, path in enumerate(sorted(folder.iterdir())):
        (other / f"renamed-{i}.md").write_bytes(path.read_bytes())
    (other.parent / "again.txt").write_bytes(path.read_bytes())
    same = read_corpus(other.parent)
    assert (same.digest, same.files) == (first.digest, first.files)
    (other / "new.txt").write_text("something else")
    larger = read_corpus(other.parent)
    assert larger.digest != first.digest
    assert set(train) <= set(text(larger.train).split(b"\0"))
    assert set(held_out) <= set(text(larger.held_out).split(b"\0"))


def test_what_is_no_text_is_skipped(tmp_path):
    folder = write_texts(tmp_path / "a")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    (folder / "zeros.bin").write_bytes(b"ab\0cd")
    (folder / "empty.txt").touch()
    (folder / "broken.txt").symlink_to(tmp_path / "nowhere")
    secret = folder / "secret.txt"
    secret.write_text("not for everyone")
    secret.chmod(0)
    expected = 40 + os.access(secret, os.R_OK)  # root reads it all the same
    assert sum(read_corpus(folder).files) == expected


def test_of_one_file_the_last_tenth_is_held_out(tmp_path):
    path = tmp_path / "input.txt"
    path.write_bytes(bytes(range(32, 127)) * 10)
    found = read_corpus(path)
    assert text(found.train) + text(found.held_out) == path.read_bytes()
    assert len(found.held_out) == 95
    assert found.name == "input.txt"


def test_the_standard_library():
    found = read_corpus()
    assert found.files[0] > 200
    assert len(found.train) > 3_000_000
    assert 0.03 < len(found.held_out) / len(found.train) < 0.3
    assert b"def " in text(found.train[:100_000])
    assert read_corpus("stdlib").digest == found.digest
    assert found.describe() == {
        "corpus": "stdlib", "corpus_files": list(found.files), "training_bytes": len(found.train),
        "held_out_bytes": len(found.held_out), "corpus_hash": found.digest,
    }  # fmt: skip


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder or file .*/nothing; give one with text"):
        read_corpus(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no text files in UTF-8"):
        read_corpus(tmp_path / "empty")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="is empty or no text in UTF-8"):
        read_corpus(tmp_path / "empty.txt")
    few = write_texts(tmp_path / "few", count=1)
    with pytest.raises(ValueError, match=r"too few text files \(1\) to hold out one in 10"):
        read_corpus(few)


def test_examples_run():
    assert doctest.testmod(module) == (0, 3)
