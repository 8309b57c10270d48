"""Plain parameters and those sharded over processes (DTensor: FSDP2, tensor parallel), handled alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor, distribute_tensor
else:  # a torch built without distributed has no DTensor; nothing is ever an instance of this
    DTensor = type("DTensor", (), {})  # type: ignore[misc,assignment]

__all__ = ["Groups", "full", "is_sharded", "like", "local", "reduce_sum", "reduction_groups", "splits_rows", "whole"]

Groups: TypeAlias = "tuple[ProcessGroup, ...]"


def is_sharded(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a DTensor."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of ``tensor`` that this process holds, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def reduction_groups(tensor: Tensor) -> Groups:
    """The process groups over which a sum over local elements becomes a sum over the whole tensor.

    One group for each mesh dimension that ``tensor`` is sharded over; none for a plain or replicated tensor.
    """
    if not isinstance(tensor, DTensor):
        return ()
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(
            f"a tensor with placements {tensor.placements} holds unreduced partial sums; "
            "redistribute it to Shard or Replicate first"
        )
    mesh = tensor.device_mesh
    return tuple(mesh.get_group(i) for i, placement in enumerate(tensor.placements) if not placement.is_replicate())


def splits_rows(tensor: Tensor) -> bool:
    """Whether a row of ``tensor`` (an index of its first dimension) may be spread over processes."""
    return isinstance(tensor, DTensor) and any(
        placement.is_shard() and not placement.is_shard(0) for placement in tensor.placements
    )


def reduce_sum(values: Tensor, groups: Groups) -> Tensor:
    """Sum ``values`` in place over ``groups``; every process ends with the same bits."""
    for group in groups:
        torch.distributed.all_reduce(values, group=group)
    return values


def full(tensor: Tensor) -> Tensor:
    """The whole tensor on every process (a collective where it is sharded)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole(state: Any) -> Any:
    """A state with its sharded tensors gathered on the host, one at a time (then a collective call)."""
    return pytree.tree_map_only(DTensor, lambda tensor: tensor.full_tensor().cpu(), state)


def like(tensor: Tensor, model: Tensor) -> Tensor:
    """``tensor`` laid out as ``model`` is: a whole tensor is cut to this process's shard, without communication."""
    if not isinstance(model, DTensor) or isinstance(tensor, DTensor):
        return tensor
    whole = tensor.to(model.device)
    return distribute_tensor(whole, model.device_mesh, model.placements, src_data_rank=None)
