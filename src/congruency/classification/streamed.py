"""Training batches from image files that are decoded on the fly, for data sets larger than memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from congruency.classification.augmentation import Augmentation, augment, draw, resized_boxes
from congruency.classification.batches import IGNORED, Plan, generator
from congruency.datasets import Catalogue
from congruency.datasets.images import open_image

_MARGIN = 256 / 224  # ratio of image to centre crop in evaluation, as usual for ImageNet


class StreamedBatches:
    """The interface of :class:`~congruency.classification.batches.Batches` over a :class:`Catalogue` of files.

    Worker processes decode the files and take random resized crops with Pillow's antialiasing filter; flips and
    normalisation happen on the device. Batches depend only on the seed, the epoch and their number, not on the number
    of workers (0: this process decodes). The augmentation needs a ``size``; ``plan`` are the other settings of
    :class:`Plan`.
    """

    def __init__(
        self,
        files: Catalogue,
        batch_size: int,
        augmentation: Augmentation,
        *,
        workers: int = 4,
        device: torch.device | str = "cpu",
        **plan: Any,
    ) -> None:
        if augmentation.size is None:
            raise ValueError("the augmentation needs a size, since image files differ in theirs; ImageNet's is 224")
        self.plan = Plan(count=len(files), batch_size=batch_size, **plan)
        self.augmentation = augmentation
        self.device = torch.device(device)
        self._files = files
        self._side = augmentation.size
        self._workers = min(workers, os.cpu_count() or 1)

    def __len__(self) -> int:
        """Return the number of training batches per epoch."""
        return len(self.plan)

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch from number ``start`` on: float32 (B, C, S, S) and int64 (B,)."""
        samples = self.plan.samples(epoch).tolist()
        places = [range(self.plan.count)[self.plan.positions(batch)] for batch in range(start, len(self))]
        keys = [[(samples[position], position) for position in positions] for positions in places]
        resized = self.augmentation.crop == "resized"
        dataset = _Files(self._files, self.augmentation, self.plan.seed, epoch if resized else None)
        flipping = replace(self.augmentation, crop="none") if resized else self.augmentation
        for batch, (images, labels) in enumerate(self._loaded(dataset, keys), start):
            drawn = self.plan.generator("flips", epoch, batch)
            draws = draw(flipping, self.plan.batch_size, self._side, self._side, drawn)
            where, first = self.plan.positions(batch), batch * self.plan.batch_size
            share = slice(where.start - first, where.stop - first, where.step)
            yield augment(images, flipping, draws[share].to(self.device)), labels

    def evaluation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the centre crop of every image once, in as many batches on every process."""
        shares = [range(self.plan.count)[where] for where in self.plan.evaluation()]
        keys = [[(i, i) for i in share] or [(0, -1)] for share in shares]
        plain = self.augmentation.evaluation()
        none = draw(plain, self.plan.batch_size, self._side, self._side, torch.Generator()).to(self.device)
        for images, labels in self._loaded(_Files(self._files, plain, self.plan.seed, None), keys):
            yield augment(images, plain, none[: len(images)]), labels

    def _loaded(self, dataset: _Files, keys: list[list[tuple[int, int]]]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            dataset,
            batch_sampler=keys,
            num_workers=self._workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # its own, so that the loader does not draw seeds from the global generator
        )
        for images, labels in _short_errors(loader):
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def _short_errors(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the loader's batches; errors for bad files are raised without the worker's traceback."""
    try:
        yield from loader
    except ValueError as reason:
        raise ValueError(str(reason).strip().splitlines()[-1].removeprefix("ValueError: ")) from None


class _Files(Dataset[tuple[Tensor, Tensor]]):
    """Decodes a file given its index in the data set and its position in the epoch, which seeds its random crop."""

    def __init__(self, files: Catalogue, augmentation: Augmentation, seed: int, epoch: int | None) -> None:
        assert augmentation.size is not None
        self._files, self._augmentation, self._seed, self._epoch = files, augmentation, seed, epoch
        self._side = augmentation.size

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        index, position = key
        image = open_image(self._files.tree, self._files.names[index], len(self._augmentation.mean))
        if self._epoch is None:
            box = _centre_box(image, self._side)
        else:
            drawn = generator("box", self._seed, self._epoch, position)
            top, left, tall, wide = resized_boxes(self._augmentation, 1, image.height, image.width, drawn)[0].tolist()
            image, box = image.crop((left, top, left + wide, top + tall)), None
        part = image.resize((self._side, self._side), Image.Resampling.BILINEAR, box=box)
        pixels = torch.from_numpy(numpy.array(part))
        pixels = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        return pixels.contiguous(), self._files.labels[index] if position >= 0 else torch.tensor(IGNORED)


def _centre_box(image: Image.Image, side: int) -> tuple[float, float, float, float]:
    """Return the centre crop: 224/256 of the largest square, or all of it if that is not larger than ``side``."""
    square = min(image.size)
    part = square / _MARGIN if square > side else square
    left, top = (image.width - part) / 2, (image.height - part) / 2
    return left, top, left + part, top + part
