import os
import pickle
import time

import numpy as np
import pytest
import torch
from image_layouts import (
    cifar_files,
    folder_files,
    idx_bytes,
    png,
    tiny_files,
    write_archive,
    write_folder,
    write_mnist,
)

from congruency.datasets import catalogue, find, load

ENDINGS = ["", ".tar", ".tar.gz", ".tar.xz", ".zip"]


def stored(path, files, ending):
    return write_archive(path.with_name(path.name + ending), files) if ending else write_folder(path, files)


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist(tmp_path, zipped):
    write_mnist(tmp_path / "mnist", zipped)
    train = load("mnist", data=tmp_path)
    assert train.images.shape == (5, 1, 4, 4)
    assert train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert train.labels.tolist() == [0, 1, 2, 0, 1]
    assert train.classes == tuple("0123456789")
    assert len(load("mnist", "test", data=tmp_path)) == 3
    assert load("mnist", "all", data=tmp_path).labels.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert load(tmp_path / "mnist").classes == ("0", "1", "2")


def test_fashion_mnist_has_class_names_and_both_spellings(tmp_path):
    write_mnist(tmp_path / "FashionMNIST" / "raw")
    for path in (tmp_path / "FashionMNIST" / "raw").iterdir():
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert load("fashion_mnist", data=tmp_path).classes[:2] == ("T-shirt/top", "Trouser")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte", idx_bytes(np.zeros((5, 4, 4)))[:-1], "promises .5, 4, 4., 80 bytes, and 79 follow"),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros(5)), "fewer than its header of 16"),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros(50)), "begins with 00000801, not with 00000803"),
        ("train-images-idx3-ubyte", b"PK" + bytes(100), "begins with 504b0000"),
        ("train-images-idx3-ubyte.gz", b"no gzip at all", "train-images-idx3-ubyte.gz is not a complete idx file"),
        ("train-labels-idx1-ubyte", idx_bytes(np.zeros(4)), "holds 5 images and .* 4 labels"),
        ("train-labels-idx1-ubyte", idx_bytes(np.full(5, 11)), "train-labels-idx1-ubyte: label 11 of image 0"),
    ],
)
def test_damaged_idx(tmp_path, name, data, message):
    write_mnist(tmp_path / "mnist", zipped=False)
    if name.endswith(".gz"):
        (tmp_path / "mnist" / name.removesuffix(".gz")).unlink()
    (tmp_path / "mnist" / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        load("mnist", data=tmp_path)


def test_a_missing_idx_file(tmp_path):
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="lacks t10k-labels-idx1-ubyte"):
        load("mnist", "test", data=tmp_path)


@pytest.mark.parametrize("ending", ["", ".tar.gz"])
def test_cifar10(tmp_path, ending):
    stored(tmp_path / "cifar-10-python", cifar_files(), ending)
    train = load(tmp_path / f"cifar-10-python{ending}")
    assert train.images.shape == (10, 3, 32, 32)
    assert train.images[3].flatten()[:5].tolist() == [21, 22, 23, 24, 25]
    assert int(train.images[0, 1, 0, 0]) == 1024 % 256
    assert train.labels.tolist() == [i % 3 for i in range(10)]
    assert train.classes == ("plane", "car", "bird")
    test = load(tmp_path / f"cifar-10-python{ending}", "test")
    assert test.labels.tolist() == [100 % 3, 101 % 3]


def test_cifar100_by_name_and_official_file_name(tmp_path):
    write_archive(tmp_path / "cifar-100-python.tar.gz", cifar_files(hundred=True))
    train = load("cifar100", data=tmp_path)
    assert train.classes == ("apple", "bear", "bee")
    assert train.labels.tolist() == [0, 1]
    assert load("cifar100", "test", data=tmp_path).labels.tolist() == [1, 2]


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_pickle_cannot_execute_code(tmp_path):
    files = cifar_files()
    files["cifar-10-batches-py/data_batch_2"] = pickle.dumps({b"data": Evil(tmp_path / "owned")}, protocol=2)
    write_folder(tmp_path / "c", files)
    with pytest.raises(ValueError, match=r"data_batch_2 cannot be read .*mkdir, which no CIFAR batch needs"):
        load(tmp_path / "c")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02garbage", "cannot be read as a CIFAR batch"),
        (pickle.dumps([1, 2], protocol=2), "it holds a list"),
        (pickle.dumps({b"labels": [0]}, protocol=2), "lacks 'data'"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, protocol=2), "2 images but 1 labels"),
        (pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [0]}, protocol=2), "not of bytes"),
    ],
)
def test_damaged_cifar(tmp_path, content, message):
    write_folder(tmp_path / "c", cifar_files() | {"cifar-10-batches-py/data_batch_1": content})
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "c")


def test_a_label_without_a_name(tmp_path):
    files = cifar_files() | {"cifar-10-batches-py/batches.meta": pickle.dumps({b"label_names": [b"plane"]}, protocol=2)}
    with pytest.raises(ValueError, match=r"train batches in .*c: label 1 of image 1 is not one of the 1 classes"):
        load(write_folder(tmp_path / "c", files))


def test_a_missing_cifar_batch(tmp_path):
    files = cifar_files()
    del files["cifar-10-batches-py/data_batch_4"]
    with pytest.raises(FileNotFoundError, match="lacks the file data_batch_4"):
        load(write_folder(tmp_path / "c", files))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("prefix", ["", "top/"])
def test_image_folders(tmp_path, ending, prefix):
    path = stored(tmp_path / "pets", folder_files(prefix), ending)
    train, test = load(path), load(path, "test")
    assert train.images.shape == (4, 3, 4, 4)
    assert train.images[:, :, 0, 0].tolist() == [[10, 5, 0], [20, 10, 0], [11, 5, 0], [21, 10, 0]]
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert train.classes == test.classes == ("cat", "dog")
    assert test.images[:, 0, 0, 0].tolist() == [30, 31]
    assert load(path, "all").images[:, 0, 0, 0].tolist() == [10, 20, 11, 21, 30, 31]
    assert load(path, per_class=1).images[:, 0, 0, 0].tolist() == [10, 11]
    assert load(path, size=8, channels=1).images.shape == (4, 1, 8, 8)


def test_validation_replaces_an_unlabelled_test_set(tmp_path):
    files = {name.replace("test/", "val/"): data for name, data in folder_files().items()}
    write_folder(tmp_path / "i", files | {"test/1.png": png(1), "readme.txt": b""})
    assert load(tmp_path / "i", "test").images[:, 0, 0, 0].tolist() == [30, 31]


def test_a_plain_folder_of_classes_is_one_set(tmp_path):
    files = {name.removeprefix("train/"): data for name, data in folder_files().items() if name.startswith("train")}
    plain = write_folder(tmp_path / "plain", files)
    assert load(plain, "all").labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="has no train/ and test/ folders of classes; read it as one set"):
        load(plain)
    assert load(write_folder(tmp_path / "train", files), "train").labels.tolist() == [0, 0, 1, 1]


def test_an_empty_class_folder_is_named(tmp_path):
    write_folder(tmp_path / "p", folder_files())
    for split in ("train", "test"):
        (tmp_path / "p" / split / "emu").mkdir()
    with pytest.raises(ValueError, match=r"class folder .*train/emu holds no image"):
        load(tmp_path / "p")


def test_splits_with_other_classes_are_refused(tmp_path):
    write_folder(tmp_path / "p", folder_files() | {"train/emu/1.png": png(1)})
    with pytest.raises(ValueError, match=r"test lacks the class 'emu' .*3 and 2 classes"):
        load(tmp_path / "p")


def test_a_missing_split_and_an_empty_folder(tmp_path):
    files = {name: data for name, data in folder_files().items() if name.startswith("train")}
    with pytest.raises(ValueError, match="no folder for the split 'test'"):
        load(write_folder(tmp_path / "p", files), "test")
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="holds no class folders with images"):
        load(tmp_path / "none", "all")


@pytest.mark.parametrize("data", [b"", b"not an image", png(3)[:40], png(3, side=64)[:-30]])
@pytest.mark.parametrize("ending", ["", ".zip"])
def test_a_corrupt_image_is_named(tmp_path, data, ending):
    path = stored(tmp_path / "p", folder_files() | {"train/dog/11.png": data}, ending)
    with pytest.raises(ValueError, match=r"train/dog/11.png.* cannot be decoded as an image"):
        load(path)


def test_images_of_several_shapes_need_a_size(tmp_path):
    write_folder(tmp_path / "p", folder_files() | {"train/dog/11.png": png(1, side=6)})
    with pytest.raises(ValueError, match=r"11.png is 6x6 and .*10.png is 4x4; give a size"):
        load(tmp_path / "p")
    assert load(tmp_path / "p", size=5).images.shape == (4, 3, 5, 5)


def test_too_large_data_are_refused_before_decoding(tmp_path, monkeypatch):
    monkeypatch.setattr("congruency.datasets.images.MAX_BYTES", 100)
    with pytest.raises(ValueError, match=r"4 images of .* would take more than 100 bytes"):
        load(write_folder(tmp_path / "p", folder_files()))
    monkeypatch.setattr("congruency.datasets.images._MAX_PIXELS", 10)
    with pytest.raises(ValueError, match="4x4 pixels are more than 10"):
        load(tmp_path / "p")


def test_images_of_every_mode_are_converted(tmp_path):
    files = folder_files() | {"train/dog/11.png": png(9, mode="L"), "train/cat/10.png": png(1, mode="P")}
    loaded = load(write_folder(tmp_path / "p", files))
    assert loaded.images[2, :, 0, 0].tolist() == [9, 9, 9]
    assert load(tmp_path / "p", channels=1).images[2, :, 0, 0].tolist() == [9]


@pytest.mark.parametrize("ending", ["", ".zip"])
def test_tiny_imagenet(tmp_path, ending):
    path = stored(tmp_path / "tiny-imagenet-200", tiny_files(), ending)
    train, test = load(path), load("tiny_imagenet", "test", data=tmp_path)
    assert train.classes == test.classes == ("goldfish", "crane")
    assert train.images[:, 0, 0, 0].tolist() == [10, 11, 20, 21]
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert test.images[:, 0, 0, 0].tolist() == [50, 60]
    assert test.labels.tolist() == [1, 0]
    assert load(path, "all").labels.tolist() == [0, 0, 1, 1, 1, 0]


def test_ambiguous_class_names_are_not_used(tmp_path):
    files = tiny_files("") | {"wnids.txt": b"n02\nn03\n", "train/n03/images/a.JPEG": png(1)}
    assert load(write_folder(tmp_path / "t", files)).classes == ("n02", "n03")
    del files["words.txt"]
    assert load(write_folder(tmp_path / "u", files)).classes == ("n02", "n03")


@pytest.mark.parametrize(
    ("change", "split", "error", "message"),
    [
        ({"train/n01/images/n01_0.JPEG": None, "train/n01/images/n01_1.JPEG": None}, "train", ValueError, "n01/images"),
        ({"val/images/val_1.JPEG": None}, "test", FileNotFoundError, "val_1.JPEG is missing"),
        ({"val/val_annotations.txt": None}, "test", FileNotFoundError, "val_annotations.txt is missing"),
        ({"val/val_annotations.txt": b"val_1.JPEG\tn09\n"}, "test", ValueError, "line 1 of .* names 'n09'"),
        ({"val/val_annotations.txt": b"val_1.JPEG\n"}, "test", ValueError, "line 1 of .* names ''"),
        ({"wnids.txt": b"\n"}, "train", ValueError, "names no classes"),
    ],
)
def test_damaged_tiny_imagenet(tmp_path, change, split, error, message):
    files = {name: data for name, data in (tiny_files("") | change).items() if data is not None}
    with pytest.raises(error, match=message):
        load(write_folder(tmp_path / "t", files), split)


def test_digits_are_always_the_same():
    train, test = load("digits"), load("digits", "test")
    assert (len(train), len(test)) == (1437, 360)
    assert train.images.shape[1:] == (1, 8, 8)
    assert int(train.images.max()) == 255
    assert len(load("digits", "all")) == 1797
    assert load("digits", size=16, channels=3, per_class=2).images.shape == (20, 3, 16, 16)
    assert torch.equal(train.images, load("digits").images)
    assert test.labels[:10].tolist() == [1, 2, 5, 7, 8, 0, 4, 5, 8, 0]


def test_only_the_named_cache_is_written_and_read(tmp_path):
    path = write_folder(tmp_path / "p", folder_files())
    cache = tmp_path / "new" / "pets.pt"
    before = sorted(tmp_path.rglob("*"))
    loaded = load(path)
    assert sorted(tmp_path.rglob("*")) == before
    assert torch.equal(load(path, cache=cache).images, loaded.images)
    assert list(cache.parent.iterdir()) == [cache]
    name = path / "train" / "cat" / "10.png"
    name.write_bytes(bytes(name.stat().st_size))  # of the same size: only a second decoding would notice
    again = load(path, cache=cache)
    assert torch.equal(again.images, loaded.images)
    assert again.classes == loaded.classes


def test_a_cache_of_another_source_is_refused_and_kept(tmp_path):
    path = write_folder(tmp_path / "p", folder_files())
    cache = tmp_path / "pets.pt"
    load(path, cache=cache)
    kept = cache.read_bytes()
    with pytest.raises(ValueError, match="delete it or name another file"):
        load(path, "test", cache=cache)
    (path / "train" / "cat" / "12.png").write_bytes(png(12))
    with pytest.raises(ValueError, match="was made from"):
        load(path, cache=cache)
    assert cache.read_bytes() == kept
    cache.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(ValueError, match=r"pets.pt is not a complete image cache"):
        load(path, cache=cache)
    torch.save({"weights": torch.zeros(2)}, cache)
    with pytest.raises(ValueError, match="is not a complete image cache"):
        load(path, cache=cache)


def test_a_name_needs_a_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("CONGRUENCY_DATA", raising=False)
    with pytest.raises(ValueError, match=r"give data, the folder that holds it \(.*--data\), or set CONGRUENCY_DATA"):
        load("cifar10")
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10 is not in .*put it there as one of cifar10"):
        load("cifar10", data=tmp_path)
    monkeypatch.setenv("CONGRUENCY_DATA", str(tmp_path))
    write_folder(tmp_path / "mnist", {})
    write_mnist(tmp_path / "mnist")
    assert find("mnist") == tmp_path / "mnist"


def test_an_unknown_name_gets_suggestions(tmp_path):
    with pytest.raises(FileNotFoundError, match="did you mean 'cifar10'"):
        load("cifr10")
    with pytest.raises(ValueError, match="split must be one of train, test, all"):
        load("digits", "valid")
    with pytest.raises(ValueError, match="size must be a positive"):
        load("digits", size=0)
    with pytest.raises(ValueError, match="channels must be 1"):
        load("digits", channels=4)


def test_a_folder_with_a_single_archive_opens_it(tmp_path):
    (tmp_path / "cifar10").mkdir()
    write_archive(tmp_path / "cifar10" / "any.tar.xz", folder_files())
    (tmp_path / "cifar10" / "NOTES.md").write_text("notes")
    assert find("cifar10", tmp_path).name == "any.tar.xz"


def test_a_catalogue_decodes_nothing(tmp_path):
    files = catalogue(write_folder(tmp_path / "p", folder_files() | {"train/dog/11.png": b"broken"}))
    assert files.names[:2] == ("train/cat/10.png", "train/cat/20.png")
    assert files.subset([0, 1]).decoded().images[:, 0, 0, 0].tolist() == [10, 20]
    with pytest.raises(ValueError, match=r"digits .* is not read from files"):
        catalogue("digits")
    with pytest.raises(ValueError, match="holds arrays"):
        catalogue(write_mnist(tmp_path / "mnist"))


REAL = os.environ.get("CONGRUENCY_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="CONGRUENCY_DATA is not set: the real sets are not here")


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "test", "classes"),
    [
        ("cifar10", 50000, 10000, 10),
        ("cifar100", (49999, 50000), (9999, 10000), 100),
        ("tiny_imagenet", (16000, 100000), (4000, 10000), 200),
    ],
)
def test_real_image_sets(name, train, test, classes):
    path = find(name, REAL)
    if path.is_dir():
        pytest.skip(f"{path} is extracted; the counts are known for archives")
    from congruency.datasets import folders
    from congruency.datasets.tree import open_tree

    tree = open_tree(path)
    started = time.perf_counter()
    for split, count in (("train", train), ("test", test)):
        files = folders.catalogue(tree, split)
        assert len(files) in (count if isinstance(count, tuple) else (count,))
        assert len(files.classes) == classes
        some = files.per_class(1).decoded()
        assert some.images.shape[1:] == ((3, 64, 64) if classes == 200 else (3, 32, 32))
        assert some.labels.tolist() == list(range(classes)) or split == "test"
        assert 60 < some.images.float().mean() < 190
    assert time.perf_counter() - started < 60


@needs_data
def test_real_mnist():
    train, test = load("mnist", data=REAL), load("mnist", "test", data=REAL)
    assert (len(train), len(test)) == (60000, 10000)
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert train.images.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
