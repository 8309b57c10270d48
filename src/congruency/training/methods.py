"""The methods by name: what corrects the gradients of a run, if anything."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from congruency.corrector import Corrector
from congruency.dcl import DCL
from congruency.modules import head
from congruency.training.config import Method, TrainingConfig
from congruency.training.memory import EpochMemory

__all__ = ["Method", "attach", "check_length", "head_twin", "parameters_of"]


def check_length(config: TrainingConfig, steps: int) -> None:
    """Warn, before training starts, about a window or references that the run is too short for."""
    method = config.method
    if method.name != "dcl":
        return
    if method.window is not None and method.window > steps:
        warnings.warn(
            f"the window of {method.window} steps is longer than the run of {steps}: references are never renewed, as "
            "with window=None; choose a shorter window or more epochs",
            stacklevel=3,
        )
    if method.offset + method.references >= steps:
        warnings.warn(
            f"the run has {steps} steps, and the first {method.offset + method.references} only record references: "
            "nothing is ever corrected; choose fewer references, a smaller offset or more epochs",
            stacklevel=3,
        )


def head_twin(method: Method, model: nn.Module) -> nn.Module | None:
    """A copy of the last layer for GEM's gradients, made while the network is whole; None where none is needed."""
    if method.name != "gem" or method.scope == "all":
        return None
    layer = head(model)
    if isinstance(layer, nn.ModuleList):
        raise ValueError("gem with scope 'head' needs one last layer, this network has several; use scope 'all'")
    return copy.deepcopy(layer)


def parameters_of(model: nn.Module, scope: str) -> list[Tensor]:
    """The parameters that train, of the last layer or of all."""
    module = head(model) if scope == "head" else model
    chosen: list[Tensor] = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not chosen:
        raise ValueError(f"no parameter of scope {scope!r} trains; unfreeze some, or choose the other scope")
    return chosen


def attach(
    method: Method,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Any, Any], Tensor],
    *,
    twin: nn.Module | None,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[Corrector | None, EpochMemory | None]:
    """Have ``optimizer.step()`` correct gradients by a method; its corrector, and GEM's memory."""
    if method.name == "baseline":
        return None, None
    params = parameters_of(model, method.scope)
    if method.name == "dcl":
        return _dcl(method, optimizer, params), None
    layer = head(model) if method.scope == "head" else None
    memory = EpochMemory(model, layer, loss, twin=twin, size=method.memory, margin=method.strength, autocast=autocast)
    return Corrector(optimizer, params, constraints=[memory], trigger=method.occasion), memory


def _dcl(method: Method, optimizer: torch.optim.Optimizer, params: list[Tensor]) -> DCL:
    return DCL(
        optimizer,
        params,
        references=method.references,
        window=method.window,
        offset=method.offset,
        mode=method.mode,
        margin=method.strength,
        trigger=method.occasion,
        accumulate=method.accumulate,
    )
