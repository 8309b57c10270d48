import itertools
import os
from dataclasses import replace

import pytest
import torch

from congruency.classification.augmentation import AUGMENTATIONS, Augmentation
from congruency.classification.batches import IGNORED, Batches, Plan, generator
from congruency.datasets import LabelledImages, load
from congruency.training.task import TrainingData

RAW = Augmentation((0.0,), (1 / 255,))  # unchanged values, which identify each image


def numbered(count, side=2):
    """Image i has the value i in every pixel and the label i % 3."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(count, 1, side, side).contiguous()
    return LabelledImages(images, torch.arange(count) % 3, ("a", "b", "c"))


def identities(batches):
    return [images[:, 0, 0, 0].round().long().tolist() for images, _ in batches]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(("count", "size"), [(10, 4), (12, 4), (3, 8), (100, 7)])
def test_each_sample_once_per_epoch(device, count, size):
    batches = Batches(numbered(count), size, RAW, device=device)
    for epoch in range(3):
        seen = identities(batches.train_batches(epoch))
        assert len(seen) == len(batches)
        assert sorted(flat(seen)) == list(range(count))
        assert all(len(batch) == size for batch in seen[:-1])
    for images, labels in batches.train_batches(0):
        assert torch.equal(images[:, 0, 0, 0].round().long() % 3, labels)


def test_the_last_batch_can_be_dropped():
    batches = Batches(numbered(10), 4, RAW, drop_last=True)
    assert [len(batch) for batch in identities(batches.train_batches(0))] == [4, 4]
    assert len(batches) == 2


@pytest.mark.parametrize("crop", ["padded", "resized"])
@pytest.mark.parametrize(("count", "size", "world", "drop"), [(50, 8, 1, False), (50, 8, 2, False), (51, 8, 4, True)])
def test_chunked_augmentation_equals_one_batch_at_a_time(monkeypatch, crop, count, size, world, drop):
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8)
    data = LabelledImages(images, torch.arange(count) % 3, ("a", "b", "c"))
    augmentation = Augmentation((0.5,) * 3, (0.25,) * 3, crop=crop, padding=2, flip=True)

    def made(chunk, start=0):
        monkeypatch.setattr(Batches, "_chunk_size", lambda self: chunk)
        share = {"rank": world - 1, "world_size": world, "drop_last": drop}
        return list(Batches(data, size, augmentation, seed=3, **share).train_batches(1, start))

    alone = made(1)
    for chunk in (2, 3, 100):
        assert equal(made(chunk), alone)
        assert equal(made(chunk, start=2), alone[2:])


def test_the_chunk_size_on_a_gpu_is_bounded_by_memory():
    batches = Batches(numbered(50, side=32), 8, replace(RAW, size=64))
    assert batches._chunk == 1  # a core's cache is small
    batches.device = torch.device("cuda")
    assert batches._chunk_size() == (1 << 27) // (4 * 64 * 64 * 8)


def test_orders():
    def order(seed, epoch, kind="shuffled"):
        return flat(identities(Batches(numbered(50), 8, RAW, seed=seed, order=kind).train_batches(epoch)))

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(0, 0, "repeated") == order(0, 5, "repeated") != order(1, 0, "repeated")
    assert order(3, 2, "given") == list(range(50))


@pytest.mark.parametrize("name", ["cifar10", "tiny_imagenet"])
def test_resuming_within_an_epoch_is_exact(device, name):
    images = torch.randint(0, 256, (50, 3, 16, 16), dtype=torch.uint8)
    data = LabelledImages(images, torch.arange(50) % 2, ("a", "b"))

    def made():
        return Batches(data, 8, AUGMENTATIONS[name], seed=3, device=device)

    for epoch in (0, 4):
        whole = list(made().train_batches(epoch))
        for start in range(len(whole) + 1):
            torch.manual_seed(start)  # whatever happened before
            assert equal(list(made().train_batches(epoch, start)), whole[start:])


def test_the_global_random_state_is_unchanged():
    batches = Batches(numbered(20), 4, Augmentation((0.0,), (1.0,), crop="padded", flip=True))
    before = torch.get_rng_state()
    list(batches.train_batches(0))
    list(batches.evaluation_batches())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("count", [40, 43])
def test_processes_divide_the_batches_of_one(world, count):
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8)
    data = LabelledImages(images, torch.arange(count) % 2, ("a", "b"))
    whole = list(Batches(data, 8, AUGMENTATIONS["cifar10"]).train_batches(2))
    ranks = [Batches(data, 8, AUGMENTATIONS["cifar10"], rank=r, world_size=world) for r in range(world)]
    shares = [list(rank.train_batches(2)) for rank in ranks]
    assert len({len(share) for share in shares}) == 1
    assert all(len(rank) == len(shares[0]) for rank in ranks)
    for batch, parts in zip(whole, zip(*shares, strict=True), strict=False):
        assert len({len(labels) for _, labels in parts}) == 1
        for part in (0, 1):
            together = torch.stack([share[part] for share in parts], 1).flatten(0, 1)
            assert torch.equal(together, batch[part][: len(together)])
            assert len(batch[part]) - len(together) < world


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("count", [6, 7, 13])
def test_evaluation_sees_everything_once(world, count):
    shares = [
        list(Batches(numbered(count), 6, RAW, rank=r, world_size=world).evaluation_batches()) for r in range(world)
    ]
    assert len({len(share) for share in shares}) == 1
    seen = []
    for images, labels in flat(shares):
        assert len(labels)
        real = labels != IGNORED
        seen += images[real][:, 0, 0, 0].round().long().tolist()
        assert torch.equal(images[real][:, 0, 0, 0].round().long() % 3, labels[real])
    assert sorted(seen) == list(range(count))


def test_batches_fulfil_the_training_data_protocol():
    assert isinstance(Batches(numbered(4), 2, RAW), TrainingData)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "no samples"),
        ({"batch_size": 0}, "batch_size must be positive"),
        ({"batch_size": 5, "world_size": 2}, "divisible by the 2 processes, got 5"),
        ({"rank": 1}, "rank must be from 0 to 0"),
        ({"order": "random"}, "order must be one of shuffled, repeated, given"),
        ({"count": 3, "drop_last": True}, "3 samples are fewer than one batch of 4"),
    ],
)
def test_invalid_plans_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Plan(**({"count": 10, "batch_size": 4} | settings))


def test_generators_of_similar_numbers_are_unrelated():
    drawn = torch.stack(
        [torch.randn(2000, generator=generator("order", seed, epoch)) for seed in range(4) for epoch in range(4)]
    )
    between = torch.corrcoef(drawn) - torch.eye(16)
    assert between.abs().max() < 0.12
    assert generator("a", 1).initial_seed() != generator("b", 1).initial_seed()


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10"])
def test_the_sets_are_normalised(name):
    data = os.environ.get("CONGRUENCY_DATA")
    if name != "digits" and not data:
        pytest.skip("CONGRUENCY_DATA is not set: the real sets are not here")
    loaded = load(name, data=data, per_class=500 if name == "cifar10" else None)
    images, _ = next(Batches(loaded, len(loaded), AUGMENTATIONS[name]).evaluation_batches())
    assert images.mean((0, 2, 3)).abs().max() < 0.03
    assert (images.std((0, 2, 3)) - 1).abs().max() < 0.03
