"""The compiled part of the CPU backend: see native.c. Tensors are passed by the addresses of their elements."""

from collections.abc import Sequence

import torch
from torch import Tensor

from congruency.backends.base import ParameterSlice

def setup(
    library: str, tensor: type[Tensor], parameter: type[Tensor], float32: torch.dtype, float64: torch.dtype, /
) -> None: ...
def vectors(most: int, /) -> int: ...
def prepare(
    slices: Sequence[ParameterSlice], size: int, blocks: int, threads: int, dense: bool, /
) -> object | None: ...
def point(job: object, gradients: tuple[int, ...], /) -> None: ...
def gram(job: object, wide: bool, known: int, sums: int, /) -> None: ...
def apply(job: object, coefficients: int, applied: int, /) -> None: ...
def element(
    job: object, update: bool, strict: bool, mask_decay: bool, write: bool,
    signs: int, decay: int, scale: int, sums: int, /,
) -> None: ...  # fmt: skip
def settle(agreement: int, sizes: int, scales: int, finite: int, means: int, slices: int, most: float, /) -> None: ...
def solve(
    sums: int, combination: int, signs: int, margins: int, stride: int, floors: int, previous: int, means: int,
    only_violated: bool, factor: float, blocks: int, n: int,
    norm2: int, products: int, gram: int, multipliers: int, coefficients: int, flags: int, /,
) -> None: ...  # fmt: skip
def solve_dual(gram: int, products: int, floor: int, multipliers: int, count: int, n: int, /) -> None: ...
