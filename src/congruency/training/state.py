"""Checkpointed state: whole tensors loaded into networks and optimizers, and the random generators.

The generators are those of python, numpy, torch and this process's GPU.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from congruency.distributed import like

_RANK_STRIDE = 1_000_003  # so that a rank's seed is not one that a user would choose


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load whole tensors, cut to this process's shards if it has any."""
    here = model.state_dict()
    model.load_state_dict({name: _laid_out(value, here.get(name)) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """As :func:`load_model`; a tensor of a parameter's shape is sharded as the parameter is."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    entries = {
        i: {name: _laid_out(value, params[int(i)]) for name, value in entry.items()}
        for i, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": entries})


def _laid_out(value: Any, model: Any) -> Any:
    fits = isinstance(value, Tensor) and isinstance(model, Tensor) and value.shape == model.shape
    return like(value, model) if fits else value


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed all generators; each rank above 0 gets a seed of its own."""
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
    """Restore :func:`random_state`; the GPU's generator is left alone if the state has none."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
