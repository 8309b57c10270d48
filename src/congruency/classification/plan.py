"""Which samples make up which batch: a function of a seed, the epoch and the position, and of nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["Order", "Plan", "generator"]

Order = Literal["shuffled", "repeated", "given"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The order of samples, cut into batches, and this process's share of each.

    Nothing has to be saved to go on in the middle of an epoch: the same epoch and position give the same batch. With
    several processes a batch is the same one, divided: their shares together are what one process would take.

    Attributes:
        count: samples in the set.
        batch_size: of all processes together.
        seed: of the order and of the augmentation.
        order: ``"shuffled"`` anew every epoch, ``"repeated"`` (one random order for all epochs), or ``"given"``: as
            they stand in the set.
        order_seed: of the order alone, where runs of several seeds share one; None for ``seed``.
        rank: the number of this process.
        world_size: how many processes train together.
        drop_last: leave out a last batch that is not full. One that is kept is cut to a multiple of the processes.
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
            raise ValueError("there are no samples to make batches of")
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
                f"{self.count} samples make no batch of {self.batch_size}; take a smaller batch_size, or keep the last"
            )

    def __len__(self) -> int:
        """Batches in an epoch, the same number for every process."""
        full, rest = divmod(self.count, self.batch_size)
        return full + (not self.drop_last and rest >= self.world_size)

    def samples(self, epoch: int) -> Tensor:
        """The order of an epoch: (count,), the place in the set of each position."""
        if self.order == "given":
            return torch.arange(self.count)
        seed = self.seed if self.order_seed is None else self.order_seed
        drawn = generator("order", seed, 0 if self.order == "repeated" else epoch)
        return torch.randperm(self.count, generator=drawn)

    def positions(self, batch: int, count: int = 1) -> slice:
        """This process's share of ``count`` batches from one on, as positions in the order of the epoch."""
        start = batch * self.batch_size
        end = min(start + count * self.batch_size, self.count)
        end -= (end - start) % self.world_size
        return slice(start + self.rank, end, self.world_size)

    def generator(self, purpose: str, epoch: int, *more: int) -> torch.Generator:
        """Random numbers for one purpose in one epoch, independent of those for any other."""
        return generator(purpose, self.seed, epoch, *more)

    def evaluation(self) -> list[slice]:
        """This process's share when the set is gone through once in its own order; nothing is left out."""
        starts = range(0, self.count, self.batch_size)
        ends = [min(start + self.batch_size, self.count) for start in starts]
        return [slice(start + self.rank, end, self.world_size) for start, end in zip(starts, ends, strict=True)]


def generator(purpose: str, *numbers: int) -> torch.Generator:
    """A generator whose seed is mixed from a purpose and numbers, so that near numbers give unrelated streams."""
    mixed = hashlib.blake2b(repr((purpose, numbers)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed, "little") >> 1)
