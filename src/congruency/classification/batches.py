"""Training batches from a data set kept on the device, and the plan that assigns samples to batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from congruency.classification.augmentation import Augmentation, augment, draw
from congruency.datasets import LabelledImages
from congruency.seeds import hashed_seed

Order = Literal["shuffled", "repeated", "given"]

IGNORED = -100
"""The label of a padding sample; the default ``ignore_index`` of :func:`torch.nn.functional.cross_entropy`."""

_CHUNK_BYTES = 1 << 27  # size of the batches augmented at once on a GPU


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The order of the samples, their division into batches, and this process's share of each batch.

    Everything is a function of the seed, the epoch and the position, so resuming within an epoch needs no saved state.
    Batches do not depend on the number of processes; each process takes a share.

    Attributes:
        count: number of samples in the data set.
        batch_size: batch size over all processes.
        seed: seed of the order and of the augmentation.
        order: ``"shuffled"`` anew every epoch, ``"repeated"`` (one random order for all epochs), or ``"given"`` (the
            order of the data set).
        order_seed: seed of the order alone, to share one order between runs with different seeds; None for ``seed``.
        rank, world_size: rank of this process, and number of processes.
        drop_last: drop an incomplete last batch. Otherwise it is cut to a multiple of ``world_size``.
    """

    count: int
    batch_size: int
    seed: int = 0
    order: Order = "shuffled"
    order_seed: int | None = None
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("the data set is empty: there are no samples to make batches of")
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise ValueError(
                f"batch_size must be positive and divisible by the {self.world_size} processes, got {self.batch_size}"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be from 0 to {self.world_size - 1}, got {self.rank}")
        if self.order not in get_args(Order):
            raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {self.order!r}")
        if not len(self):
            raise ValueError(
                f"{self.count} samples are fewer than one batch of {self.batch_size}; "
                "choose a smaller batch_size, or drop_last=False"
            )

    def __len__(self) -> int:
        """Return the number of batches per epoch, the same for every process."""
        full, rest = divmod(self.count, self.batch_size)
        return full + (not self.drop_last and rest >= self.world_size)

    def samples(self, epoch: int) -> Tensor:
        """Return the order of an epoch, (count,): the data set index at each position."""
        if self.order == "given":
            return torch.arange(self.count)
        seed = self.seed if self.order_seed is None else self.order_seed
        drawn = generator("order", seed, 0 if self.order == "repeated" else epoch)
        return torch.randperm(self.count, generator=drawn)

    def positions(self, batch: int, count: int = 1) -> slice:
        """Return this process's share of ``count`` batches from number ``batch`` on, as positions in the epoch."""
        start = batch * self.batch_size
        end = min(start + count * self.batch_size, self.count)
        end -= (end - start) % self.world_size
        return slice(start + self.rank, end, self.world_size)

    def generator(self, purpose: str, epoch: int, *more: int) -> torch.Generator:
        """Return a random generator for one purpose in one epoch, independent of all others."""
        return generator(purpose, self.seed, epoch, *more)

    def evaluation(self) -> list[slice]:
        """Return this process's share of one pass over the data set in its given order; no sample is dropped."""
        starts = range(0, self.count, self.batch_size)
        ends = [min(start + self.batch_size, self.count) for start in starts]
        return [slice(start + self.rank, end, self.world_size) for start, end in zip(starts, ends, strict=True)]


def generator(purpose: str, *numbers: int) -> torch.Generator:
    """Return a generator seeded by a hash of a purpose and numbers, so that similar numbers give unrelated streams."""
    return torch.Generator().manual_seed(hashed_seed((purpose, numbers)))


class Batches:
    """Augmented batches of a data set in memory: training data for ``congruency.training``.

    Images are kept as uint8 on ``device``, where they are gathered, cropped, flipped and normalised. A batch depends
    only on the seed, the epoch and its number (see :class:`Plan`), so a resumed run sees the same batches as an
    uninterrupted one, and several processes share the batches of a single process.

        batches = Batches(load("cifar10"), 128, AUGMENTATIONS["cifar10"], seed=1, device="cuda")
        for images, labels in batches.train_batches(epoch=0): ...

    Args:
        data: the data set.
        batch_size: batch size over all processes.
        augmentation: augmentation of training batches; evaluation uses only its normalisation and size.
        device: device on which the images are kept and augmented.
        plan: the other settings of :class:`Plan`: seed, order, order_seed, rank, world_size, drop_last.
    """

    def __init__(
        self,
        data: LabelledImages,
        batch_size: int,
        augmentation: Augmentation,
        *,
        device: torch.device | str = "cpu",
        **plan: Any,
    ) -> None:
        self.plan = Plan(count=len(data), batch_size=batch_size, **plan)
        self.augmentation = augmentation
        self.device = torch.device(device)
        self._images = data.images.to(self.device)
        self._labels = data.labels.to(self.device)
        self._chunk = self._chunk_size()

    def __len__(self) -> int:
        """Return the number of training batches per epoch."""
        return len(self.plan)

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch from number ``start`` on: float32 (B, C, S, S) and int64 (B,)."""
        samples = self.plan.samples(epoch).to(self.device)
        height, width = self._images.shape[2:]
        drawn = self.plan.generator("augmentation", epoch)
        draws = draw(self.augmentation, self.plan.count, height, width, drawn).to(self.device)
        share = self.plan.batch_size // self.plan.world_size
        for first in range(start, len(self), self._chunk):
            where = self.plan.positions(first, min(self._chunk, len(self) - first))
            chosen = samples[where]
            images = augment(self._images[chosen], self.augmentation, draws[where])
            yield from zip(images.split(share), self._labels[chosen].split(share), strict=True)

    def evaluation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every image once, in order and without random augmentation, in as many batches on every process.

        A process whose share of the last batch is empty gets one image with the label :data:`IGNORED`.
        """
        plain, (height, width) = self.augmentation.evaluation(), self._images.shape[2:]
        none = draw(plain, self.plan.batch_size, height, width, torch.Generator()).to(self.device)
        for where in self.plan.evaluation():
            images, labels = self._images[where], self._labels[where]
            if not len(labels):
                images, labels = self._images[:1], torch.full_like(self._labels[:1], IGNORED)
            yield augment(images, plain, none[: len(images)]), labels

    def _chunk_size(self) -> int:
        """Return how many batches to augment at once: several on a GPU, since kernel launches dominate for one."""
        if self.device.type == "cpu":
            return 1
        channels, height, width = self._images.shape[1:]
        size = self.augmentation.size
        pixels = channels * (height * width if size is None else size * size)
        return max(1, _CHUNK_BYTES // (4 * pixels * self.plan.batch_size // self.plan.world_size))
