"""Blocks of one element: constraints as single vectors, and what becomes of the elements that are kept."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from congruency.backends import Basis
from congruency.constraints.base import ConstraintSource

__all__ = ["Masking", "as_tensor", "factors_of", "mixes", "one_by_one"]

_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Masking:
    """What is done beside the projection: nothing by default; see :class:`congruency.Cautious`."""

    strict: bool = False  # keep only what agrees with every constraint, not what is 0
    mask_decay: bool = False  # no weight decay where it opposes the update
    rescale: bool = False  # divide what is kept of a tensor by its share
    max_rescale: float | None = None

    @property
    def most_rescale(self) -> float:
        """The most that what is kept is multiplied by: a share counts as a thousandth at least."""
        return min(1 / _LEAST_SHARE, math.inf if self.max_rescale is None else self.max_rescale)


def _suffix_sign(combination: Tensor) -> float | None:
    """s where the combination is s times suffix sums (an upper triangle of ones), else None."""
    sign = float(combination[0, -1])
    return sign if torch.equal(combination, sign * torch.ones_like(combination).triu()) else None


def factors_of(combination: Tensor) -> list[float]:
    """What each vector of :func:`one_by_one` is multiplied by to be an accumulated gradient."""
    if torch.equal(combination, combination.diag().diag()):
        return [float(value) for value in combination.diag()]
    sign = _suffix_sign(combination)
    return [1.0 if sign is None else sign] * len(combination)


def mixes(basis: Basis, source: ConstraintSource) -> bool:
    """Whether :func:`one_by_one` has to compute new vectors."""
    combination = source.combination()
    diagonal = torch.equal(combination, combination.diag().diag())
    return not diagonal and not (basis.chained and _suffix_sign(combination) is not None)


def one_by_one(basis: Basis, source: ConstraintSource) -> list[Basis]:
    """Each accumulated gradient as one basis vector, up to its factor, for blocks of one element."""
    combination, parts = source.combination(), basis.tensors
    if len(combination) == 1 or torch.equal(combination, combination.diag().diag()):
        return [basis]
    if basis.chained and _suffix_sign(combination) is not None:
        return [Basis([parts[i], parts[-1]], chained=True) for i in range(len(combination))]
    vectors = [b - a for a, b in pairwise(parts)] if basis.chained else list(parts)
    if _suffix_sign(combination) is not None:
        combination = torch.ones_like(combination).triu()
    return [Basis(list(torch.einsum("ik,k...->i...", combination.to(vectors[0]), torch.stack(vectors))))]


def as_tensor(values: Sequence[float | Tensor], device: torch.device) -> Tensor:
    """(n,) in float64 on the device; nothing is copied to it while a CUDA graph is captured, if it has been before."""
    if not any(isinstance(value, Tensor) for value in values):
        return _constants(tuple(map(float, values)), device)
    parts = [value if isinstance(value, Tensor) else _constants((value,), device) for value in values]
    return torch.stack([part.to(device, torch.float64).reshape(()) for part in parts])


@functools.lru_cache(maxsize=8)
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).to(device)
