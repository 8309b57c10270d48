"""Helpers that treat plain parameters and sharded ones (DTensor: FSDP2, tensor parallel) alike."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor

__all__ = [
    "PLAIN", "Groups", "full", "is_sharded", "like", "local", "reduce_sum", "reduction_groups", "splits_rows", "whole",
]  # fmt: skip

Groups: TypeAlias = "tuple[ProcessGroup, ...]"

PLAIN = {Tensor, torch.nn.Parameter}


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether ``tensor`` is a DTensor, without importing that module, which takes a second."""
    if type(tensor) in PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return the part of ``tensor`` that this process holds, sharing its memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def reduction_groups(tensor: Tensor) -> Groups:
    """Return the process groups over which sums of local elements must be reduced to sums over the whole tensor.

    One group per mesh dimension that ``tensor`` is sharded over; none for a plain or replicated tensor.
    """
    if not is_sharded(tensor):
        return ()
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(
            f"a tensor with placements {tensor.placements} holds unreduced partial sums; "
            "redistribute it to Shard or Replicate first"
        )
    mesh = tensor.device_mesh
    return tuple(mesh.get_group(i) for i, placement in enumerate(tensor.placements) if not placement.is_replicate())


def splits_rows(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a row of ``tensor`` (an index of its first dimension) may be spread over processes."""
    return is_sharded(tensor) and any(
        placement.is_shard() and not placement.is_shard(0) for placement in tensor.placements
    )


def reduce_sum(values: Tensor, groups: Groups) -> Tensor:
    """Sum ``values`` in place over ``groups``; every process ends with the same bits."""
    for group in groups:
        torch.distributed.all_reduce(values, group=group)
    return values


def full(tensor: Tensor) -> Tensor:
    """Return the whole tensor on every process (a collective call if it is sharded)."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def whole(state: Any) -> Any:
    """Return a state with its sharded tensors gathered on the host, one at a time (then a collective call)."""
    return pytree.tree_map_only(Tensor, lambda tensor: full(tensor).cpu() if is_sharded(tensor) else tensor, state)


def like(tensor: Tensor, model: Tensor) -> Tensor:
    """Return ``tensor`` with the layout of ``model``: a whole tensor is sharded locally, without communication."""
    if not is_sharded(model) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    whole = tensor.to(model.device)
    return distribute_tensor(whole, model.device_mesh, model.placements, src_data_rank=None)
