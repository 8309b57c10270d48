"""Streams: rotations, permutations and incremental classes, against answers known without them."""

import hashlib
import math
from dataclasses import replace

import pytest
import torch
from small_streams import digits, even_digits, thirds

from congruency.continual import STREAMS, incremental, permutations, rotations
from congruency.continual.streams import permuted_pixels, rotated_pixels
from congruency.datasets import LabelledImages

SAME_CLASSES = (rotations, permutations)


def random_images(*shape):
    return torch.randint(1, 256, shape, dtype=torch.uint8)  # no black, which stands for what is outside


def content(stream):
    """Every number that a learner sees."""
    return [part for task in range(len(stream)) for part in (*stream.training(task), *stream.testing(task))]


def checksum(stream):
    whole = hashlib.sha256()
    for part in content(stream):
        whole.update(part.numpy().astype(part.numpy().dtype.newbyteorder("<")).tobytes())
    return whole.hexdigest()[:16]


@pytest.mark.parametrize("quarters", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("side", [1, 2, 5, 8, 28])
@pytest.mark.parametrize("channels", [1, 3])
def test_quarter_rotations_are_exact(channels, side, quarters):
    images = random_images(2, channels, side, side)
    turned = permuted_pixels(images, rotated_pixels((channels, side, side), 90.0 * quarters))
    assert turned.dtype == torch.uint8
    assert torch.equal(turned, torch.rot90(images, quarters, (2, 3)))


def nearest(image, degrees):
    """Pixel by pixel: rotate each centre back and take the pixel it falls into."""
    height, width = image.shape
    turned = torch.zeros_like(image)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    for i in range(height):
        for j in range(width):
            right, up = j + 0.5 - width / 2, height / 2 - i - 0.5
            from_right, from_up = c * right + s * up, -s * right + c * up  # the inverse, clockwise
            y, x = math.floor(height / 2 - from_up), math.floor(from_right + width / 2)
            if 0 <= y < height and 0 <= x < width:
                turned[i, j] = image[y, x]
    return turned


@pytest.mark.parametrize("degrees", [0.0, 7.3, 33.0, 45.1, 100.7, 163.2])
@pytest.mark.parametrize("shape", [(8, 8), (7, 7), (5, 9)])
def test_rotation_uses_the_nearest_pixel_or_black(shape, degrees):
    image = random_images(1, 1, *shape)
    turned = permuted_pixels(image, rotated_pixels((1, *shape), degrees))
    assert torch.equal(turned[0, 0], nearest(image[0, 0], degrees))
    assert set(turned.flatten().tolist()) <= {0, *image.flatten().tolist()}
    assert (turned == 0).any() == (degrees > 10)  # a larger turn brings in corners from outside


def test_one_angle_in_each_equal_bin():
    tasks, degrees = 12, 90.0
    seen = set()
    for seed in range(20):
        stream = rotations(*digits(), tasks=tasks, samples=1, seed=seed, degrees=degrees)
        angles = [float(task.name.removesuffix(" degrees")) for task in stream.tasks]
        width = degrees / tasks
        for k, (angle, task) in enumerate(zip(angles, stream.tasks, strict=True)):
            assert k * width - 0.05 <= angle <= (k + 1) * width + 0.05
            drawn = (angle - k * width) / width
            seen.add(min(3, int(4 * drawn)))
            apart = [
                (rotated_pixels(stream.shape, angle + by) != task.pixels).sum() for by in (-0.05, 0.0, 0.05)
            ]  # the name is rounded
            assert min(apart) <= 2
    assert seen == {0, 1, 2, 3}  # from everywhere in the bin


def test_rotations_cover_180_degrees_by_default():
    stream = rotations(*digits(), samples=1)
    angles = [float(task.name.removesuffix(" degrees")) for task in stream.tasks]
    assert len(stream) == 20
    assert angles == sorted(angles)
    assert 0 <= angles[0] <= 9.05
    assert 170.95 <= angles[-1] <= 180


def test_permutations_are_permutations_and_differ():
    stream = permutations(*digits(), tasks=5, samples=10)
    everything = torch.arange(64)
    for task in stream.tasks:
        assert torch.equal(task.pixels.sort().values, everything)
        assert not torch.equal(task.pixels, everything)  # also the first task is shuffled
    assert len({tuple(task.pixels.tolist()) for task in stream.tasks}) == 5


@pytest.mark.parametrize("make", SAME_CLASSES)
def test_every_task_has_random_images_with_permuted_pixels(make):
    train, test = digits()
    stream = make(train, test, tasks=3, samples=50, seed=4)
    drawn = set()
    for k, task in enumerate(stream.tasks):
        images, labels = stream.training(k)
        assert len(set(task.train.tolist())) == 50  # no image twice
        assert torch.equal(labels, train.labels[task.train])
        flat = train.images[task.train].flatten(1)
        for j, place in enumerate(task.pixels.tolist()):
            wanted = flat[:, place] if place >= 0 else torch.zeros(50, dtype=torch.uint8)
            assert torch.equal(images.flatten(1)[:, j], wanted)
        images, labels = stream.testing(k)
        assert torch.equal(labels, test.labels)  # all of them
        assert torch.equal(images, permuted_pixels(test.images, task.pixels))
        assert stream.mask(k) is None
        drawn.add(tuple(task.train.tolist()))
    assert len(drawn) == 3


@pytest.mark.parametrize("make", SAME_CLASSES)
def test_too_many_samples_take_all(make):
    train, test = digits()
    few = train.subset(range(7))
    stream = make(few, test, tasks=2, samples=50)
    assert [sorted(task.train.tolist()) for task in stream.tasks] == [list(range(7))] * 2


@pytest.mark.parametrize("name", STREAMS)
def test_samples_are_a_prefix(name):
    """Fewer samples per task are the first of the many: a shorter stream is the beginning of the longer."""
    long, short = (STREAMS[name](*digits(), tasks=2, samples=n, seed=3) for n in (90, 20))
    for a, b in zip(long.tasks, short.tasks, strict=True):
        assert torch.equal(a.train[:20], b.train)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_depend_on_the_seed(name):
    first, again, other = (STREAMS[name](*digits(), tasks=5, samples=40, seed=seed) for seed in (7, 7, 8))
    assert first.seed == 7
    assert all(torch.equal(a, b) for a, b in zip(content(first), content(again), strict=True))
    for k in range(5):
        assert not torch.equal(first.tasks[k].train, other.tasks[k].train)
    if name == "incremental":
        assert [task.classes for task in first.tasks] != [task.classes for task in other.tasks]
    else:
        assert not any(torch.equal(a.pixels, b.pixels) for a, b in zip(first.tasks, other.tasks, strict=True))


PINNED = {
    "rotations": "af7df224a907e2cc",
    "permutations": "00b2be859f6dd077",
    "incremental": "c0245cea9255f02b",
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_the_same_on_every_machine(name):
    assert checksum(STREAMS[name](*digits(), tasks=5, samples=100, seed=1)) == PINNED[name]


def test_batches_come_in_order():
    stream = rotations(*digits(), tasks=2, samples=25)
    images, labels = stream.training(1)
    parts = list(stream.batches(1, 10))
    assert [len(part) for part, _ in parts] == [10, 10, 5]
    assert torch.equal(torch.cat([part for part, _ in parts]), images)
    assert torch.equal(torch.cat([part for _, part in parts]), labels)


def test_shape_and_classes_are_those_of_the_images():
    stream = rotations(*digits(), tasks=2, samples=5)
    assert len(stream) == 2
    assert stream.shape == (1, 8, 8)
    assert stream.classes == 10


def test_incremental_uses_every_class_once():
    train, test = digits()
    stream = incremental(train, test, tasks=5, samples=10_000, seed=2)
    assert sorted(label for task in stream.tasks for label in task.classes) == list(range(10))
    for k, task in enumerate(stream.tasks):
        assert len(task.classes) == 2
        assert task.pixels is None
        for images, places, of_task in (
            (train, task.train, stream.training(k)),
            (test, task.test, stream.testing(k)),
        ):
            all_of_them = [i for i, label in enumerate(images.labels.tolist()) if label in task.classes]
            assert sorted(places.tolist()) == all_of_them
            assert torch.equal(of_task[0], images.images[places])
            assert torch.equal(of_task[1], images.labels[places])
        assert task.train.tolist() != sorted(task.train.tolist())  # shuffled
        assert task.name == ", ".join(map(str, task.classes))


def test_incremental_respects_the_number_of_samples():
    stream = thirds(samples=70)
    assert [len(task.train) for task in stream.tasks] == [70] * 3
    assert [len(task.test) for task in stream.tasks] == [3 * 28] * 3  # all there are
    assert all(set(stream.training(k)[1].tolist()) == set(stream.tasks[k].classes) for k in range(3))


def test_incremental_mask_keeps_the_classes_of_a_task():
    stream = incremental(*digits(), tasks=5, samples=10)
    for k, task in enumerate(stream.tasks):
        mask = stream.mask(k)
        assert [i for i, value in enumerate(mask.tolist()) if value == 0.0] == list(task.classes)
        assert [i for i, value in enumerate(mask.tolist()) if value == -math.inf] == sorted(
            set(range(10)) - set(task.classes)
        )


def test_class_incremental_tasks_are_told_apart_by_nothing():
    """The same samples as task-incremental ones, but learned and tested among all classes."""
    given, not_given = (incremental(*digits(), tasks=5, samples=10, scenario=kind) for kind in ("task", "class"))
    assert (given.scenario, not_given.scenario) == ("task", "class")
    assert rotations(*digits(), tasks=2, samples=10).scenario == "domain"
    for k in range(5):
        assert torch.equal(given.tasks[k].train, not_given.tasks[k].train)
        assert torch.equal(given.tasks[k].test, not_given.tasks[k].test)
        assert given.mask(k) is not None
        assert not_given.mask(k) is None
    with pytest.raises(ValueError, match="scenario 'task' or 'class', not 'domain'"):
        incremental(*digits(), tasks=5, scenario="domain")


def test_classes_in_their_order():
    for seed in (0, 1):
        stream = incremental(*digits(), tasks=5, samples=10, seed=seed, shuffle=False)
        assert [task.classes for task in stream.tasks] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]


@pytest.mark.parametrize("make", SAME_CLASSES)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": 0}, "a stream needs at least one task, got 0"),
        ({"samples": 0}, "a task needs at least one sample, got samples=0"),
    ],
)
def test_no_tasks_or_samples_are_refused(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(*digits(), **settings)


@pytest.mark.parametrize("make", SAME_CLASSES)
def test_an_empty_set_is_refused(make):
    train, test = digits()
    with pytest.raises(ValueError, match="the training set is empty"):
        make(train.subset([]), test)
    with pytest.raises(ValueError, match="the test set is empty"):
        make(train, test.subset([]))


@pytest.mark.parametrize("tasks", [0, 3, 20])
def test_classes_that_cannot_be_split_evenly_are_refused(tasks):
    with pytest.raises(ValueError, match=f"10 classes cannot be split evenly into {tasks} tasks"):
        incremental(*digits(), tasks=tasks)


def test_incremental_without_samples_is_refused():
    with pytest.raises(ValueError, match="a task needs at least one sample, got samples=-1"):
        incremental(*digits(), tasks=5, samples=-1)


@pytest.mark.parametrize("kind", ["training", "test"])
def test_a_task_without_samples_is_refused(kind):
    parts = list(even_digits())
    where = 0 if kind == "training" else 1
    parts[where] = parts[where].subset(parts[where].labels != 6)
    with pytest.raises(ValueError, match=rf"a task of classes \(6,\) has no {kind} samples"):
        incremental(*parts, tasks=10)


def test_labels_out_of_range_never_become_a_stream():
    train, _ = digits()
    labels = train.labels.clone()
    labels[3] = 10
    with pytest.raises(ValueError, match="label 10 of image 3 is not one of the 10 classes; labels go from 0 to 9"):
        replace(train, labels=labels)
    with pytest.raises(ValueError, match="label -1 of image 0"):
        LabelledImages(train.images[:1], torch.tensor([-1]), train.classes)
