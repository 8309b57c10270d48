import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from congruency.classification.augmentation import AUGMENTATIONS, Augmentation
from congruency.classification.batches import IGNORED
from congruency.classification.streamed import StreamedBatches
from congruency.datasets import catalogue
from congruency.training.task import TrainingData

IMAGENET = Augmentation(
    *(AUGMENTATIONS["imagenet"].mean, AUGMENTATIONS["imagenet"].std), crop="resized", flip=True, size=8
)
RAW = Augmentation((0.0,) * 3, (1 / 255,) * 3, size=8)


def photo(seed, width, height):
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    stream = io.BytesIO()
    small.resize((width, height), Image.Resampling.BILINEAR).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Eleven images of different shapes in ImageNet's layout."""
    root = tmp_path_factory.mktemp("imagenet")
    for split, count in (("train", 11), ("val", 5)):
        for i in range(count):
            path = root / split / f"n0{i % 2}" / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(photo(i, 20 + i, 40 - 2 * i))
    return catalogue(root)


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(one, other, strict=True)
    )


def test_each_file_once_with_its_label(files):
    batches = StreamedBatches(files, 4, RAW, workers=0, order="given")
    assert isinstance(batches, TrainingData)
    together = list(batches.train_batches(0))
    assert [len(labels) for _, labels in together] == [4, 4, 3] == [4] * (len(batches) - 1) + [3]
    assert torch.equal(torch.cat([labels for _, labels in together]), files.labels)
    assert together[0][0].shape == (4, 3, 8, 8)


@pytest.mark.parametrize("augmentation", [IMAGENET, Augmentation(RAW.mean, RAW.std, "padded", flip=True, size=8)])
def test_resuming_within_an_epoch_is_exact_with_any_workers(files, augmentation):
    whole = list(StreamedBatches(files, 4, augmentation, workers=0, seed=2).train_batches(1))
    before = torch.get_rng_state()
    ahead = StreamedBatches(files, 4, augmentation, workers=2, seed=2)
    assert equal(list(ahead.train_batches(1)), whole)
    assert equal(list(ahead.train_batches(1, 2)), whole[2:])
    assert torch.equal(before, torch.get_rng_state())
    other = list(StreamedBatches(files, 4, augmentation, workers=0, seed=2).train_batches(2))
    assert not equal(other, whole)


def test_processes_divide_the_batches_of_one(files):
    whole = list(StreamedBatches(files, 4, IMAGENET, workers=0).train_batches(0))
    shares = [
        list(StreamedBatches(files, 4, IMAGENET, workers=0, rank=r, world_size=2).train_batches(0)) for r in (0, 1)
    ]
    for batch, one, other in zip(whole, *shares, strict=True):
        for part in (0, 1):
            together = torch.stack([one[part], other[part]], 1).flatten(0, 1)
            assert torch.equal(together, batch[part][: len(together)])


def test_evaluation_sees_every_centre_crop_once(files):
    shares = [
        list(StreamedBatches(files, 10, IMAGENET, workers=0, rank=r, world_size=2).evaluation_batches()) for r in (0, 1)
    ]
    assert [len(share) for share in shares] == [2, 2]
    labels = torch.cat([labels for share in shares for _, labels in share])
    assert (labels == IGNORED).sum() == 1
    assert (labels != IGNORED).sum() == len(files)


def test_the_centre_crop(tmp_path):
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[4:60, 36:92] = 200  # the middle 56 of the middle 64
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / split / "a" / "x.png")
    images, _ = next(StreamedBatches(catalogue(tmp_path), 1, RAW, workers=0).evaluation_batches())
    assert images[:, :, 1:-1, 1:-1].round().unique().tolist() == [200]
    assert 100 < images.min() < 200  # resized before cropping, so the border is a mixture


def test_a_size_is_needed(files):
    with pytest.raises(ValueError, match="the augmentation needs a size"):
        StreamedBatches(files, 4, AUGMENTATIONS["cifar10"])


def test_a_corrupt_file_in_a_worker_is_reported(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "a" / "x.png").write_bytes(b"broken")
    for workers in (0, 1):
        with pytest.raises(ValueError, match=r"x.png cannot be decoded") as error:
            list(StreamedBatches(catalogue(tmp_path), 1, RAW, workers=workers).train_batches(0))
        assert str(error.value).endswith("as an image (unknown format); replace or delete it")
        assert "Traceback" not in str(error.value)


def test_workers_can_share_a_zip(tmp_path):
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for split in ("train", "val"):
            for i in range(40):
                archive.writestr(f"{split}/a/{i:02}.png", photo(i, 24, 24))
    files = catalogue(path)
    alone = list(StreamedBatches(files, 4, IMAGENET, workers=0).train_batches(0))
    assert equal(list(StreamedBatches(files, 4, IMAGENET, workers=3).train_batches(0)), alone)
