import numpy as np
import pytest
import torch
from PIL import Image

from congruency.datasets import LabelledImages
from congruency.datasets.images import decode_all, first_of_each
from congruency.datasets.tree import open_tree


def made(count=6, classes=3, shape=(1, 4, 4)):
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    return LabelledImages(images, torch.arange(count) % classes, tuple("abc"[:classes]))


def test_subset_takes_indices_and_masks_in_order():
    whole = made()
    part = whole.subset([4, 1])
    assert torch.equal(part.images, whole.images[[4, 1]])
    assert part.labels.tolist() == [1, 1]
    assert part.classes == whole.classes
    assert len(part) == 2
    assert whole.subset(whole.labels == 2).labels.tolist() == [2, 2]
    assert len(whole.subset([])) == 0


def test_per_class_keeps_the_first_of_each():
    labels = torch.tensor([2, 0, 2, 1, 0, 2, 0])
    assert first_of_each(labels, 1).tolist() == [0, 1, 3]
    assert first_of_each(labels, 2).tolist() == [0, 1, 2, 3, 4]
    assert first_of_each(labels, 9).tolist() == list(range(7))
    with pytest.raises(ValueError, match="must be positive"):
        first_of_each(labels, 0)


def test_divide_is_disjoint_stratified_and_repeatable():
    whole = LabelledImages(torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1), torch.arange(40) % 2, ("even", "odd"))
    one, other = whole.divide(0.75, seed=3)
    assert one.labels.bincount().tolist() == [15, 15]
    together = torch.cat([one.images, other.images]).flatten().sort().values
    assert torch.equal(together, whole.images.flatten())
    assert torch.equal(whole.divide(0.75, seed=3)[0].images, one.images)
    assert not torch.equal(whole.divide(0.75, seed=4)[0].images, one.images)
    with pytest.raises(ValueError, match="between 0 and 1"):
        whole.divide(1.0)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2).long(), "images must be uint8 of shape"),
        (torch.zeros(2, 4, 4).byte(), torch.zeros(2).long(), "images must be uint8 of shape"),
        (torch.zeros(2, 1, 4, 4).byte(), torch.zeros(3).long(), "one for each of the 2 images"),
        (torch.zeros(2, 1, 4, 4).byte(), torch.zeros(2), "labels must be int64"),
        (torch.zeros(3, 1, 4, 4).byte(), torch.tensor([0, 7, -1]), "label 7 of image 1 is not one of the 2 classes"),
    ],
)
def test_invalid_images_and_labels_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        LabelledImages(images, labels, ("a", "b"))


def test_grey_equals_pillow():
    colour = made(shape=(3, 5, 5))
    grey = colour.converted(None, 1)
    for image, ours in zip(colour.images, grey.images, strict=True):
        pillow = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L"))
        assert np.array_equal(ours[0].numpy(), pillow)


def test_grey_is_repeated_for_colour():
    grey = made()
    assert torch.equal(grey.converted(None, 3).images, grey.images.repeat(1, 3, 1, 1))
    assert grey.converted(4, 1) is grey
    with pytest.raises(ValueError, match="cannot be converted to 2"):
        made(shape=(3, 4, 4)).converted(None, 2)


@pytest.mark.parametrize(("shape", "size"), [((1, 28, 28), 32), ((3, 32, 32), 16), ((3, 24, 40), 12)])
def test_arrays_are_resized_as_image_files_are(tmp_path, shape, size):
    whole = made(2, shape=shape)
    for i, image in enumerate(whole.images):
        array = image[0].numpy() if shape[0] == 1 else image.permute(1, 2, 0).numpy()
        Image.fromarray(array).save(tmp_path / f"{i}.png")
    decoded = decode_all(open_tree(tmp_path), ["0.png", "1.png"], size, shape[0])
    ours = whole.converted(size, None).images
    assert (ours.int() - decoded.int()).abs().max() <= 1
