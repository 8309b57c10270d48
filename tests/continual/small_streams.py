"""Streams of the embedded digits, small enough for tests."""

from __future__ import annotations

import functools

import torch

from congruency import datasets
from congruency.continual import LearnerConfig, Setting, Stream, incremental, mlp
from congruency.datasets import LabelledImages


@functools.cache
def digits() -> tuple[LabelledImages, LabelledImages]:
    """The digits to train on and to test on."""
    return datasets.load("digits", "train"), datasets.load("digits", "test")


@functools.cache
def even_digits(classes: int = 10, train: int = 100, test: int = 28) -> tuple[LabelledImages, LabelledImages]:
    """The first classes of the digits with equally many images each, so that all tasks have the same size."""
    parts = []
    for whole, count in zip(digits(), (train, test), strict=True):
        chosen = whole.subset(whole.labels < classes).per_class(count)
        parts.append(LabelledImages(chosen.images, chosen.labels, chosen.classes[:classes]))
    return parts[0], parts[1]


def thirds(samples: int = 300, seed: int = 0) -> Stream:
    """Three tasks of three digits each."""
    return incremental(*even_digits(9), tasks=3, samples=samples, seed=seed)


def setting(
    stream: Stream, hidden: tuple[int, ...] = (12, 9), dtype: torch.dtype = torch.float64, **kept: object
) -> Setting:
    """The perceptron for a stream, from the stream's own seed, as run_together builds it."""
    channels, height, width = stream.shape

    def make(share: float) -> torch.nn.Module:
        inner = [max(1, round(share * size)) for size in hidden]
        return mlp((channels * height * width, *inner, stream.classes), stream.seed).to(dtype)

    return Setting(make, len(stream), seed=stream.seed, **{"memory": 20, **kept})  # type: ignore[arg-type]


def weights(model: torch.nn.Module) -> torch.Tensor:
    """All parameters as one vector."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def plain(kind: str, **settings: object) -> LearnerConfig:
    """A learner named after its kind."""
    return LearnerConfig(kind, kind, **settings)  # type: ignore[arg-type]
