"""The two passes over a model's parameters that a correction needs, and the choice of who runs them.

``CONGRUENCY_KERNELS`` forces the choice: ``torch`` for plain torch operations everywhere, ``fused`` for the fused
kernels (an error where they cannot run), ``auto`` (the default) for the fused ones where they can run.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from congruency.cone import solve_dual
from congruency.kernels import rows

__all__ = ["compiled", "device_sweep", "dual_solver", "host_sweep"]


@functools.cache
def host_sweep() -> type[Any]:
    """The class that makes both passes in the CPU's memory: compiled where it was built, else plain torch."""
    return _chosen("congruency.kernels.native", "Sweep", rows.HostSweep)


@functools.cache
def compiled() -> Any | None:
    """The module of compiled functions for the CPU, None where plain torch does their work."""
    plain = host_sweep() is rows.HostSweep
    return None if plain else importlib.import_module("congruency.kernels.native")


@functools.cache
def device_sweep(device_type: str) -> type[Any]:
    """The class that makes both passes on an accelerator: Triton's on CUDA, else plain torch."""
    if device_type != "cuda" or torch.version.hip is not None:  # the kernels have only run on NVIDIA GPUs
        return rows.DeviceSweep
    return _chosen("congruency.kernels.triton", "Sweep", rows.DeviceSweep)


def dual_solver(device_type: str, rows: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """What solves b small problems at once, (b, n, n), (b, n) and margins (n,) or (b, n): one kernel where it can."""
    module = importlib.import_module(device_sweep(device_type).__module__)
    if hasattr(module, "solve_dual") and rows <= module.MOST_ROWS:
        fused: Callable[[Tensor, Tensor, Tensor], Tensor] = module.solve_dual
        return fused
    return solve_dual


def _chosen(module: str, name: str, plain: type[Any]) -> type[Any]:
    choice = os.environ.get("CONGRUENCY_KERNELS", "auto")
    if choice not in ("auto", "torch", "fused"):
        raise ValueError(f"CONGRUENCY_KERNELS must be auto, torch or fused, got {choice!r}")
    if choice == "torch":
        return plain
    try:
        chosen: type[Any] = getattr(importlib.import_module(module), name)
    except ImportError as reason:
        if choice == "fused":
            raise RuntimeError(f"CONGRUENCY_KERNELS=fused, but {module} cannot be used here: {reason}") from reason
        return plain
    return chosen
