"""States of networks and optimizers as whole tensors, so that a checkpoint fits any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from congruency.distributed import full, is_sharded, like

__all__ = ["load_model", "load_optimizer", "model_state", "optimizer_state"]


def model_state(model: nn.Module) -> dict[str, Any]:
    """Parameters and buffers, gathered where they are sharded (a collective call then)."""
    state: dict[str, Any] = _mapped(model.state_dict(), _whole)
    return state


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state, gathered where it is sharded (a collective call then)."""
    state: dict[str, Any] = _mapped(optimizer.state_dict(), _whole)
    return state


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Put whole tensors back, cut to this process's shards where it has those."""
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


def _whole(tensor: Tensor) -> Tensor:
    return full(tensor).cpu() if is_sharded(tensor) else tensor


def _laid_out(value: Any, model: Any) -> Any:
    fits = isinstance(value, Tensor) and isinstance(model, Tensor) and value.shape == model.shape
    return like(value, model) if fits else value


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value.detach())
    if isinstance(value, dict):
        return {key: _mapped(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, function) for item in value)
    return value
