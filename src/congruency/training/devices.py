"""Devices, processes and precision with Lightning Fabric."""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from congruency._validate import installing
from congruency.training.config import TrainingConfig
from congruency.training.processes import process_count

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import Precision


def make_fabric(config: TrainingConfig) -> Fabric:
    """Create and launch Fabric for a configuration, with one process or those that ``torchrun`` started."""
    import congruency._torchvision_compat  # noqa: F401 (lightning imports torchvision, which may need its help)

    try:
        from lightning.fabric import Fabric
    except ModuleNotFoundError as reason:
        raise ImportError(f"training needs lightning: {installing('experiments')}") from reason
    cuda = torch.cuda.is_available()
    if config.accelerator == "cuda" and not cuda:
        raise ValueError("accelerator 'cuda' needs a GPU, and torch sees none; use 'cpu' or 'auto'")
    device: Literal["cuda", "cpu"] = "cuda" if cuda and config.accelerator != "cpu" else "cpu"
    processes = process_count()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if config.strategy == "fsdp" and processes == 1 and "LOCAL_RANK" not in os.environ:
        raise ValueError("strategy 'fsdp' is for several processes; start the command with torchrun")
    fabric = Fabric(
        accelerator=device,
        devices=local,
        num_nodes=max(1, processes // local),
        strategy=_strategy(config, processes),
        plugins=_precision(config, device),
    )
    fabric.launch()
    atexit.register(_leave_group)
    return fabric


def why_unusable(device: str) -> str | None:
    """Return why PyTorch cannot put a tensor on a device, or None if it can."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        return str(error).splitlines()[0]
    return None


def _leave_group() -> None:
    """Destroy the process group at exit, which joins gloo's threads; left running, they may abort the process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _strategy(config: TrainingConfig, processes: int) -> Any:
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    if config.strategy == "fsdp":
        return ModelParallelStrategy(_shard, data_parallel_size=processes, tensor_parallel_size=1)
    return "ddp" if processes > 1 else "auto"


def _precision(config: TrainingConfig, device: Literal["cuda", "cpu"]) -> Precision:
    from lightning.fabric.plugins import MixedPrecision, Precision

    if config.precision == "32":
        return Precision()
    if config.precision == "bf16":
        return MixedPrecision("bf16-mixed", device)
    return MixedPrecision("16-mixed", device, torch.amp.GradScaler(device))


def _shard(model: nn.Module, mesh: Any) -> nn.Module:
    """Apply FSDP2 to every child that shares no weights with others, then to the whole network."""
    from torch.distributed.fsdp import fully_shard

    data_parallel = mesh["data_parallel"]
    parts = _parts(model)
    owners = Counter(id(parameter) for part in parts for parameter in part.parameters())
    for part in parts:
        if all(owners[id(parameter)] == 1 for parameter in part.parameters()):
            fully_shard(part, mesh=data_parallel)
    fully_shard(model, mesh=data_parallel)
    return model


def _parts(model: nn.Module) -> list[nn.Module]:
    """Return the network's children with parameters, with the members of a ModuleList or ModuleDict."""
    parts: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            parts += _parts(child)
        elif next(child.parameters(), None) is not None:
            parts.append(child)
    return parts


def compiled(model: nn.Module, how: bool | str) -> nn.Module:
    """Compile the network with ``torch.compile`` unless ``how`` is False; Fabric wraps the result in DDP or FSDP.

    Shapes are static, so a smaller last batch is compiled separately; dynamic shapes would slow down all others.
    """
    if how is False:
        return model
    if sys.platform == "win32":
        raise RuntimeError("compile is not available on Windows; leave it off")
    mode = None if how is True else how
    return torch.compile(model, mode=mode, dynamic=False)  # type: ignore[return-value]
