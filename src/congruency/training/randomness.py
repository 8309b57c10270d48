"""Seeds and random states: of python, numpy, torch and this process's GPU, together."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch

__all__ = ["random_state", "restore_random_state", "seed_everything"]

_RANK_STRIDE = 1_000_003  # so that a rank's seed is not a seed someone else would choose


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed all generators; ranks above 0 get seeds of their own."""
    seed = (seed + _RANK_STRIDE * rank) % 2**32  # numpy takes no more
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of all generators, in types that ``torch.load(weights_only=True)`` reads."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "numpy": [str(name), torch.from_numpy(numpy.asarray(keys).astype(numpy.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Go on from :func:`random_state`; a GPU's is left alone where the state is of a run without one."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
