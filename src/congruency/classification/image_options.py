"""Command-line options for images, and reading the data sets that they name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from congruency.classification.augmentation import AUGMENTATIONS, Augmentation, Crop
from congruency.classification.models import normalisation
from congruency.classification.task import Images
from congruency.datasets import SETS, Catalogue, LabelledImages, Split, catalogue, load

_LARGE = {"imagenet"}  # sets that are always streamed
_SMALL = 64  # images up to this side length are cropped like CIFAR's
_SAMPLE = 2048  # number of images for mean and standard deviation


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Which images to read, and how to augment them."""

    source: str  # a name of congruency.datasets.SETS or a path
    folder: Path | None = None  # folder in which named data sets are found
    size: int | None = None  # side length of the network's input
    channels: int | None = None  # 1 or 3
    per_class: int | None = None  # number of training images per class; None for all
    holdout: float | None = None  # test on this share of the images, for a set without test images
    stream: bool = False  # decode files as they are needed
    crop: Crop | None = None  # crop of training images; None for the set's default
    cache: Path | None = None  # folder for the decoded images of sets in memory
    flip: bool | None = None  # mirror training images with probability 1/2; None for the set's default

    def __post_init__(self) -> None:
        if self.streamed and self.holdout is not None:
            raise ValueError("--holdout is for sets in memory; give a streamed set folders train/ and val/")
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise ValueError(f"--holdout is a share between 0 and 1, got {self.holdout:g}")

    @property
    def known(self) -> bool:
        return self.source in SETS

    @property
    def streamed(self) -> bool:
        return self.stream or self.source in _LARGE


def read_sets(options: ImageOptions) -> tuple[Images, Images]:
    """Read the training and the test images."""
    if options.streamed:
        return _files(options, "train", options.per_class), _files(options, "test", None)
    if options.holdout is not None:
        rest, test = _in_memory(options, "all", None).divide(1 - options.holdout)
        return rest if options.per_class is None else rest.per_class(options.per_class), test
    return _in_memory(options, "train", options.per_class), _in_memory(options, "test", None)


def _files(options: ImageOptions, split: Split, per_class: int | None) -> Catalogue:
    files = catalogue(options.source, split, data=options.folder)
    return files if per_class is None else files.per_class(per_class)


def _in_memory(options: ImageOptions, split: Split, per_class: int | None) -> LabelledImages:
    name = f"{Path(options.source).name}-{split}-{per_class or 'all'}.pt"
    cache = None if options.cache is None or options.source == "digits" else options.cache / name
    size = None if options.known else options.size  # known sets have one size and are resized on the device
    return load(options.source, split, size, options.channels, data=options.folder, per_class=per_class, cache=cache)


def augmentation(options: ImageOptions, train: Images, model: str, pretrained: bool) -> Augmentation:
    """Return the set's augmentation, or a default by image size, normalised as pretrained weights expect."""
    made = AUGMENTATIONS.get(options.source) or _suiting(train)
    made = replace(made, size=options.size or made.size)
    if pretrained:
        made = made.normalised_as(*normalisation(model))
    if isinstance(train, LabelledImages) and len(made.mean) != train.images.shape[1]:
        made = made.normalised_as(*_measured(train))
    if options.crop is not None:
        made = replace(made, crop=options.crop)
    return made if options.flip is None else replace(made, flip=options.flip)


def _suiting(train: Images) -> Augmentation:
    if not isinstance(train, LabelledImages):
        return AUGMENTATIONS["imagenet"]
    small = max(train.images.shape[2:]) <= _SMALL
    return Augmentation(*_measured(train), crop="padded" if small else "resized", flip=True)


def _measured(train: LabelledImages) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of the pixels (0..1) of evenly spaced images."""
    step = max(1, len(train) // _SAMPLE)
    pixels = train.images[::step].to(torch.float32) / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp(min=1e-3)
    return tuple(mean.tolist()), tuple(std.tolist())
