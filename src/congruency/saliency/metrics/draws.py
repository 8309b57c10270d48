"""Random numbers that depend on a seed and an image's fixations alone: not on batches, ranks or devices."""

from __future__ import annotations

import torch
from torch import Tensor

from congruency.saliency.metrics.checks import by_parts

__all__ = ["image_keys", "uniform_draws"]


def _signed(word: int) -> int:
    """64 bits as torch's int64 writes them."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


_STEP, _FIRST, _SECOND = (_signed(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def image_keys(fixations: Tensor) -> Tensor:
    """(..., P) counts -> (...) int64: a number for each image, ``sum_p n_p mixed(p)`` modulo 2^64.

    Images fixated at the same pixels equally often have the same key, whatever is beside them in their batch.
    """
    words = _mixed(torch.arange(fixations.shape[-1], device=fixations.device) * _STEP)
    return by_parts(lambda counts: (counts.long() * words).sum(-1), fixations)


def uniform_draws(keys: Tensor, seed: int, count: int, start: int = 0) -> Tensor:
    """(N,) keys -> (N, count) float64 in [0, 1): the numbers ``start`` to ``start + count`` of each key's stream.

    SplitMix64 (Steele, Lea and Flood 2014) as a function of the place in the stream: integers only, so every device
    gives the same numbers, and any part of a stream can be had without what comes before.
    """
    streams = _mixed(keys ^ _mixed(torch.full_like(keys, _signed(seed))))
    places = torch.arange(start + 1, start + count + 1, device=keys.device) * _STEP
    return _shifted(_mixed(streams.unsqueeze(-1) + places), 11).double() * 2.0**-53


def _mixed(words: Tensor) -> Tensor:
    """The finaliser of SplitMix64; int64 products keep their lowest 64 bits."""
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in: torch's own shift copies the sign."""
    return torch.bitwise_and(words >> bits, 2 ** (64 - bits) - 1)
