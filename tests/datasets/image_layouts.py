"""Small synthetic data sets in the official layouts, with known pixels."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image


def idx_bytes(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, zipped=True, train=5, test=3, side=4):
    """Image i of a split is filled with i, its label is i % 3."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        images = np.broadcast_to(np.arange(count)[:, None, None], (count, side, side))
        for name, array in (
            (f"{prefix}-images-idx3-ubyte", images),
            (f"{prefix}-labels-idx1-ubyte", np.arange(count) % 3),
        ):
            data = idx_bytes(array)
            (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(data) if zipped else data)
    return folder


def cifar_files(hundred=False, per_batch=2):
    """The files of one python version: pixel k of image n is (7 n + k) mod 256."""

    def batch(start, key):
        n = np.arange(start, start + per_batch)[:, None]
        data = ((7 * n + np.arange(3072)[None]) % 256).astype(np.uint8)
        return {
            b"data": data,
            key: [int(i) % 3 for i in range(start, start + per_batch)],
            b"filenames": [b"x"] * per_batch,
        }

    if hundred:
        content = {
            "cifar-100-python/train": batch(0, b"fine_labels"),
            "cifar-100-python/test": batch(100, b"fine_labels"),
            "cifar-100-python/meta": {b"fine_label_names": [b"apple", b"bear", b"bee"]},
        }
    else:
        content = {f"cifar-10-batches-py/data_batch_{i}": batch(per_batch * (i - 1), b"labels") for i in range(1, 6)}
        content["cifar-10-batches-py/test_batch"] = batch(100, b"labels")
        content["cifar-10-batches-py/batches.meta"] = {b"label_names": [b"plane", b"car", b"bird"]}
    return {name: pickle.dumps(value, protocol=2) for name, value in content.items()}


def png(value, side=4, mode="RGB"):
    """A square image of one colour."""
    stream = io.BytesIO()
    Image.new(mode, (side, side), (value, value // 2, 0) if mode == "RGB" else value).save(stream, "PNG")
    return stream.getvalue()


def folder_files(prefix="", side=4):
    """Two classes, two training images and one test image each; the names are the colours."""
    files = {}
    for split, values in (("train", (10, 20)), ("test", (30,))):
        for i, name in enumerate(("cat", "dog")):
            for value in values:
                files[f"{prefix}{split}/{name}/{value + i}.png"] = png(value + i, side)
    return files


def tiny_files(prefix="tiny-imagenet-200/"):
    files = {
        f"{prefix}wnids.txt": b"n02\nn01\n",
        f"{prefix}words.txt": b"n01\tgoldfish, Carassius\nn02\tcrane\nn03\tcrane\n",
        f"{prefix}val/val_annotations.txt": b"val_1.JPEG\tn01\t0\t0\t1\t1\nval_0.JPEG\tn02\t0\t0\t1\t1\n",
        f"{prefix}val/images/val_0.JPEG": png(50),
        f"{prefix}val/images/val_1.JPEG": png(60),
        f"{prefix}test/images/test_0.JPEG": png(70),
    }
    for wnid, value in (("n01", 10), ("n02", 20)):
        for k in range(2):
            files[f"{prefix}train/{wnid}/images/{wnid}_{k}.JPEG"] = png(value + k)
        files[f"{prefix}train/{wnid}/{wnid}_boxes.txt"] = b""
    return files


def write_folder(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_archive(path, files):
    """A tar of any compression, or a zip, by the ending."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    ending = path.name.rsplit(".", 1)[-1]
    with tarfile.open(path, "w" if ending == "tar" else f"w:{'gz' if ending == 'tgz' else ending}") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path
