"""Checks and conversions of the metrics' inputs: shapes, precision, chunks that fit in memory."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

# Pixels per chunk: on the CPU what fits in a core's cache, on an accelerator about 1 GB of temporary memory.
_CPU_CHUNK = 2**18
_DEVICE_CHUNK = 2**25

Protocol = Literal["exact", "mit", "salicon"]
"""How a metric is computed: by its definition, or as in the code of the MIT benchmark or the SALICON challenge."""


def check_protocol(protocol: str) -> None:
    """Raise ValueError for an unknown protocol."""
    if protocol not in get_args(Protocol):
        raise ValueError(f"protocol must be 'exact', 'mit' or 'salicon', got {protocol!r}")


def by_parts(score: Callable[..., Tensor], *maps: Tensor) -> Tensor:
    """Apply ``score``, (N, P) each -> (N,), to maps (..., P) in chunks of images; the result is (...)."""
    shape, pixels = maps[0].shape[:-1], maps[0].shape[-1]
    flat = [x.reshape(-1, pixels) for x in maps]
    size = max(1, (_CPU_CHUNK if maps[0].device.type == "cpu" else _DEVICE_CHUNK) // pixels)
    if len(flat[0]) <= size:
        return score(*flat).reshape(shape)
    return torch.cat([score(*part) for part in zip(*(x.split(size) for x in flat), strict=True)]).reshape(shape)


def working(maps: Tensor, name: str) -> Tensor:
    """Convert maps to the working precision: float64 for float64, int32 and int64, otherwise float32; detached.

    To train, use ``congruency.saliency.losses``.
    """
    if not isinstance(maps, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(maps).__name__}; convert it with torch.as_tensor")
    if maps.is_complex():
        raise TypeError(f"{name} must be real, got {maps.dtype}")
    if maps.ndim < 2 or maps.numel() == 0:
        raise ValueError(f"{name} must be maps of shape (B, H, W) or (H, W), got {tuple(maps.shape)}")
    exact = maps.dtype in (torch.float64, torch.int32, torch.int64)
    return maps.detach().to(torch.float64 if exact else torch.float32)


def working_pair(saliency: Tensor, truth: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return saliency and ground truth as (..., P) in one precision; a truth without batch is used for all images."""
    counts = isinstance(truth, Tensor) and not truth.is_floating_point()  # integers are exact in any precision
    saliency, truth = working(saliency, "saliency"), working(truth, name)
    if truth.shape[-2:] != saliency.shape[-2:]:
        raise ValueError(
            f"saliency is {_size(saliency)} and {name} {_size(truth)} (height x width); "
            "resize the saliency to the size the fixations were recorded at"
        )
    if truth.ndim > 2 and truth.shape != saliency.shape:
        raise ValueError(
            f"saliency has shape {tuple(saliency.shape)} and {name} {tuple(truth.shape)}: give one for each image"
        )
    if truth.device != saliency.device:
        raise ValueError(f"saliency is on {saliency.device} and {name} on {truth.device}; put both on one device")
    dtype = saliency.dtype if counts else torch.promote_types(saliency.dtype, truth.dtype)
    return saliency.to(dtype).flatten(-2), truth.to(dtype).expand(saliency.shape).flatten(-2)


def unless_negative(scores: Tensor, *counts: Tensor) -> Tensor:
    """Return the scores (...), nan where a count (..., P) is negative; without synchronising with the device."""
    for some in counts:
        scores = scores.masked_fill(some.amin(-1) < 0, float("nan"))
    return scores


def _size(maps: Tensor) -> str:
    return f"{maps.shape[-2]} x {maps.shape[-1]}"
