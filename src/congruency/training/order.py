"""Whose order of samples a run goes by: its seed's, one for all runs, or one of its own."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Literal, get_args

from congruency.training.config import Method

__all__ = ["SampleOrder", "order_seed"]

SampleOrder = Literal["seed", "fixed", "independent"]
"""Which runs share their order of samples.

- ``"seed"``: those of one seed, whatever their method, so that their differences are paired.
- ``"fixed"``: all, whatever their seeds and methods: the paper's fixed permutations.
- ``"independent"``: none. Every method draws an order of its own for every seed: the paper's independent stochastic
  processes.

In each of them the epochs of a run differ from each other, and an epoch's order is a function of one seed alone, which
:func:`order_seed` gives.
"""


def order_seed(order: SampleOrder, seed: int, method: Method, fixed: int = 0) -> int:
    """The seed of a run's order of samples.

    Args:
        order: Whose order it is.
        seed: Of the run.
        method: Of the run.
        fixed: The seed of the one order of all runs, for ``"fixed"``: that which a run of this seed would have alone.
    """
    if order not in get_args(SampleOrder):
        raise ValueError(f"order must be one of {', '.join(get_args(SampleOrder))}, got {order!r}")
    if fixed < 0:
        raise ValueError(f"the seed of the order must not be negative, got {fixed}")
    if order == "seed":
        return seed
    if order == "fixed":
        return fixed
    mixed = hashlib.blake2b(repr((seed, sorted(asdict(method).items()))).encode(), digest_size=4).digest()
    return int.from_bytes(mixed, "little") >> 1
