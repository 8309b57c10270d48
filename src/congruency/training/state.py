"""Load checkpointed full tensors into networks and optimizers; save and restore random generators.

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

_RANK_STRIDE = 1_000_003  # large, so that other ranks' seeds do not collide with a user's


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load full tensors into a model, sharded as its own tensors are."""
    here = model.state_dict()
    model.load_state_dict({name: _laid_out(value, here.get(name)) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Like :func:`load_model` for an optimizer; tensors of a parameter's shape are sharded as the parameter is."""
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
    """Seed all generators; each rank gets its own seed."""
    seed = (seed + _RANK_STRIDE * rank) % 2**32  # numpy's limit
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of all generators in types that ``torch.load(weights_only=True)`` can read."""
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
    """Restore the generators from :func:`random_state`; the GPU's is unchanged if the state has none."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
