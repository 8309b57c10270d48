"""Training batches from a set that lives on the device as bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from congruency.classification.augmentation import Augmentation, Draws, augment, draw
from congruency.classification.plan import Order, Plan
from congruency.datasets import LabelledImages

__all__ = ["IGNORED", "Batches"]

IGNORED = -100
"""The label of a row that only fills up a batch; :func:`torch.nn.functional.cross_entropy` passes over it too."""

_TOGETHER = 1 << 27  # bytes of batches that are made at once on a GPU


class Batches:
    """A set in memory as augmented batches: what ``congruency.training`` calls training data.

    Images are kept as uint8 on ``device``; gathering, cropping, flipping and normalising happen there. A batch depends
    on the seed, the epoch and its number alone (see :class:`Plan`), never on what was drawn before, so a resumed run
    sees what it would have seen, and several processes share the batches of one.

        batches = Batches(load("cifar10"), 128, AUGMENTATIONS["cifar10"], seed=1, device="cuda")
        for images, labels in batches.train_batches(epoch=0): ...

    Args:
        data: the set.
        batch_size: of all processes together.
        augmentation: of training batches; evaluation takes only its normalisation and size.
        seed, order, order_seed, rank, world_size, drop_last: see :class:`Plan`.
        device: where the set is kept and the batches are made.
    """

    def __init__(
        self,
        data: LabelledImages,
        batch_size: int,
        augmentation: Augmentation,
        *,
        seed: int = 0,
        order: Order = "shuffled",
        order_seed: int | None = None,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        self.plan = Plan(
            count=len(data),
            batch_size=batch_size,
            seed=seed,
            order=order,
            order_seed=order_seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
        )
        self.classes = data.classes
        self.augmentation = augmentation
        self.device = torch.device(device)
        self._images = data.images.to(self.device)
        self._labels = data.labels.to(self.device)
        self._together = self._batches_together()

    def __len__(self) -> int:
        """Training batches in an epoch."""
        return len(self.plan)

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number ``start`` on: float32 (B, C, S, S) and int64 (B,)."""
        samples = self.plan.samples(epoch).to(self.device)
        draws = self._draws(epoch)
        share = self.plan.batch_size // self.plan.world_size
        for first in range(start, len(self), self._together):
            where = self.plan.positions(first, min(self._together, len(self) - first))
            chosen = samples[where]
            images = augment(self._images[chosen], self.augmentation, draws[where])
            yield from zip(images.split(share), self._labels[chosen].split(share), strict=True)

    def evaluation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image once, in the order of the set and without chance; equally many batches for every process.

        A process whose share of the last batch is empty gets one image with the label :data:`IGNORED`.
        """
        augmentation = self.augmentation.evaluation()
        for where in self.plan.evaluation():
            images, labels = self._images[where], self._labels[where]
            if not len(labels):
                images, labels = self._images[:1], torch.full_like(self._labels[:1], IGNORED)
            yield augment(images, augmentation, _nothing_random(images)), labels

    def _batches_together(self) -> int:
        """Batches made at once: on a GPU many, for starting its kernels takes longer than what they do to one batch."""
        if self.device.type == "cpu":
            return 1
        channels, height, width = self._images.shape[1:]
        size = self.augmentation.size
        pixels = channels * (height * width if size is None else size * size)
        return max(1, _TOGETHER // (4 * pixels * self.plan.batch_size // self.plan.world_size))

    def _draws(self, epoch: int) -> Draws:
        height, width = self._images.shape[2:]
        generator = self.plan.generator("augmentation", epoch)
        return draw(self.augmentation, self.plan.count, height, width, generator).to(self.device)


def _nothing_random(images: Tensor) -> Draws:
    height, width = images.shape[2:]
    boxes = torch.tensor([0, 0, height, width], device=images.device).expand(len(images), 4)
    return Draws(boxes, torch.zeros(len(images), dtype=torch.bool, device=images.device))
