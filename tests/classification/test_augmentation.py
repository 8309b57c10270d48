import pytest
import torch
from torch.nn import functional

import congruency._torchvision_compat  # noqa: F401
from congruency.classification.augmentation import AUGMENTATIONS, Augmentation, Draws, augment, draw

PLAIN = Augmentation((0.0, 0.0, 0.0), (1 / 255,) * 3)


transforms = pytest.importorskip("torchvision.transforms")


def noise(count=16, shape=(3, 9, 7)):
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8)


def drawn(augmentation, images, seed=0):
    return draw(augmentation, len(images), *images.shape[2:], torch.Generator().manual_seed(seed)).to(images.device)


def slow(image, augmentation, box, flip):
    """Reference implementation, one image at a time."""
    top, left, height, width = box.tolist()
    if augmentation.crop == "padded":
        image = functional.pad(image, (augmentation.padding,) * 4)
    part = image[:, top : top + height, left : left + width].float()
    part = part.flip(2) if flip else part
    side = augmentation.size or (image.shape[1] if augmentation.crop == "resized" else None)
    if side is not None:
        part = functional.interpolate(part[None], (side, side), mode="bilinear", align_corners=False)[0]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (augmentation.mean, augmentation.std))
    return (part / 255 - mean) / std


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (3, 9, 7)),
        ({"flip": True}, (3, 9, 7)),
        ({"crop": "padded", "flip": True}, (3, 9, 7)),
        ({"crop": "padded", "padding": 2}, (3, 5, 5)),
        ({"crop": "padded", "flip": True, "size": 20}, (3, 9, 9)),
        ({"crop": "resized", "flip": True}, (3, 16, 16)),
        ({"crop": "resized", "size": 24}, (3, 16, 12)),
        ({"crop": "resized", "size": 5, "flip": True}, (3, 16, 16)),
        ({"flip": True, "size": 18}, (3, 9, 9)),
    ],
)
def test_a_batch_equals_one_image_at_a_time(device, settings, shape):
    augmentation = Augmentation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), **settings)
    images = noise(32, shape).to(device)
    draws = drawn(augmentation, images)
    fast = augment(images, augmentation, draws).cpu()
    pairs = zip(images.cpu(), draws.boxes.cpu(), draws.flips.cpu(), strict=True)
    expected = torch.stack([slow(image, augmentation, box, flip) for image, box, flip in pairs])
    assert fast.dtype == torch.float32
    assert fast.is_contiguous()
    torch.testing.assert_close(fast, expected, atol=2e-4, rtol=1e-4)


def test_padded_crops_reach_every_corner_and_half_are_flipped():
    augmentation = Augmentation(PLAIN.mean, PLAIN.std, crop="padded", padding=4, flip=True)
    draws = drawn(augmentation, noise(20000, (3, 2, 2)))
    counts = (draws.boxes[:, 0] * 9 + draws.boxes[:, 1]).bincount(minlength=81)
    assert len(counts) == 81
    assert counts.min() > 20000 / 81 * 0.7
    assert counts.max() < 20000 / 81 * 1.3
    assert 0.48 < draws.flips.float().mean() < 0.52


def test_resized_crops_are_inside_and_have_the_requested_area_and_shape():
    augmentation = Augmentation(PLAIN.mean, PLAIN.std, crop="resized")
    height, width = 64, 96
    boxes = draw(augmentation, 20000, height, width, torch.Generator().manual_seed(1)).boxes
    top, left, tall, wide = boxes.unbind(1)
    assert (boxes >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    area = (tall * wide).double() / (height * width)
    ratio = wide.double() / tall.double()
    assert area.min() > 0.07
    assert ratio.min() > 0.68
    assert ratio.max() < 1.45
    assert (top == 0).any()
    assert (left + wide == width).any()


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 96)])
def test_resized_crops_are_distributed_as_in_torchvision(height, width):
    crop = transforms.RandomResizedCrop(8)
    image = torch.empty(3, height, width)
    theirs = torch.tensor([crop.get_params(image, crop.scale, crop.ratio) for _ in range(3000)]).double()
    augmentation = Augmentation(PLAIN.mean, PLAIN.std, crop="resized")
    ours = draw(augmentation, 30000, height, width, torch.Generator().manual_seed(1)).boxes.double()
    error = theirs.std(0) / 3000**0.5
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4.5 * error).all()
    assert (ours.std(0) / theirs.std(0) - 1).abs().max() < 0.06


def test_an_extreme_shape_gives_the_centre_box():
    augmentation = Augmentation(PLAIN.mean, PLAIN.std, crop="resized", scale=(1.0, 1.0), ratio=(1.0, 1.0001))
    assert draw(augmentation, 3, 10, 100, torch.Generator()).boxes.tolist() == [[0, 45, 10, 10]] * 3
    assert draw(augmentation, 1, 100, 10, torch.Generator()).boxes.tolist() == [[45, 0, 10, 10]]


def test_known_pixels():
    image = torch.arange(1, 5, dtype=torch.uint8).view(1, 1, 2, 2)
    augmentation = Augmentation((0.0,), (1 / 255,), crop="padded", padding=1, flip=True)
    draws = Draws(torch.tensor([[0, 0, 2, 2]]), torch.tensor([False]))
    assert augment(image, augmentation, draws).round().tolist() == [[[[0, 0], [0, 1]]]]
    flipped = Draws(torch.tensor([[1, 1, 2, 2]]), torch.tensor([True]))
    assert augment(image, augmentation, flipped).round().tolist() == [[[[2, 1], [4, 3]]]]


def test_the_same_seed_draws_the_same():
    augmentation = AUGMENTATIONS["cifar10"]
    one, same, other = (draw(augmentation, 50, 32, 32, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one.boxes, same.boxes)
    assert torch.equal(one.flips, same.flips)
    assert not torch.equal(one.boxes, other.boxes)


def test_evaluation_is_deterministic():
    for augmentation in AUGMENTATIONS.values():
        plain = augmentation.evaluation()
        assert (plain.crop, plain.flip) == ("none", False)
        assert (plain.mean, plain.std, plain.size) == (augmentation.mean, augmentation.std, augmentation.size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean": (0.5,)}, "one number per channel each"),
        ({"std": (1.0, 0.0, 1.0)}, "std must be positive"),
        ({"crop": "random"}, "crop must be 'none', 'padded' or 'resized'"),
        ({"size": 0}, "size must be a positive"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**({"mean": (0.5, 0.5, 0.5), "std": (1.0, 1.0, 1.0)} | settings))


def test_channels_must_agree():
    images = noise(2, (1, 4, 4))
    with pytest.raises(ValueError, match="1 channels cannot be normalised by 3 means"):
        augment(images, PLAIN, drawn(PLAIN, images))
