"""Congruency of two vectors: the cosine between a gradient and an accumulated gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

__all__ = ["congruency"]


def congruency(gradient: Tensor | Sequence[Tensor], accumulated: Tensor | Sequence[Tensor]) -> Tensor:
    """Return the cosine between a gradient and an accumulated gradient (eq. 3 of the paper, ``eqn:cong_k``).

    ``nu = <g, a> / (|g| |a|)``, in [-1, 1]. If computed from weights instead of gradients, the accumulated gradient
    since a reference point r is ``a = r - w``, minus the displacement ``w - r``; mind the sign.

    Two tensors are vectors along their last dimension, with any batch dimensions in front: (..., p), (..., p) -> (...),
    broadcast. Two sequences of tensors, such as a model's gradients, are one vector each: -> ().

    Args:
        gradient: g, a tensor of shape (..., p) or a sequence of tensors.
        accumulated: a, a tensor of shape (..., p) or a sequence of tensors of the same shapes as the gradient's.

    Returns:
        nu, in the inputs' dtype and on their device; nan where a norm is 0 or not finite.

    Examples:
        >>> congruency.congruency(torch.tensor([1.0, 1.0]), torch.tensor([[2.0, 2.0], [-1.0, 1.0], [0.0, 0.0]]))
        tensor([1., 0., nan])
    """
    if isinstance(gradient, Tensor) and isinstance(accumulated, Tensor):
        _check_batches(gradient, accumulated)
        ours, theirs = [gradient], [accumulated]
    elif isinstance(gradient, Tensor) or isinstance(accumulated, Tensor):
        raise TypeError("gradient and accumulated must both be tensors, or both be sequences of tensors")
    else:
        _check_sequences(gradient, accumulated)
        ours, theirs = [g.flatten() for g in gradient], [a.flatten() for a in accumulated]
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in (*ours, *theirs)))
    if not dtype.is_floating_point:
        raise TypeError(f"gradient and accumulated must be real floating-point tensors, got {dtype}")
    return _cosine(ours, theirs).to(dtype)


def _cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    ours, theirs = _scaled(ours), _scaled(theirs)
    product = _sum([torch.einsum("...p,...p->...", g, a) for g, a in zip(ours, theirs, strict=True)])
    norms = [_sum([torch.einsum("...p,...p->...", x, x) for x in side]).sqrt() for side in (ours, theirs)]
    return (product / (norms[0] * norms[1])).clamp(-1.0, 1.0)


def _scaled(vector: Sequence[Tensor]) -> list[Tensor]:
    """Scale a vector in float64 to a largest entry of 1, so that no square over- or underflows; nan if it is 0."""
    device = vector[0].device
    largest = [torch.linalg.vector_norm(x.detach(), torch.inf, -1, True, dtype=torch.float64) for x in vector]
    scale = reduce(torch.maximum, (x.to(device) for x in largest))
    # no branch on a scale of 0: 0 / 0 gives the wanted nan without waiting for the device
    return [x.to(torch.float64) / scale.to(x.device) for x in vector]


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, (term.to(terms[0].device) for term in terms))


def _check_batches(gradient: Tensor, accumulated: Tensor) -> None:
    shapes = f"got {tuple(gradient.shape)} and {tuple(accumulated.shape)}"
    if gradient.ndim == 0 or accumulated.ndim == 0:
        raise ValueError(f"gradient and accumulated must have a last dimension to take the cosine over, {shapes}")
    if gradient.shape[-1] != accumulated.shape[-1]:
        raise ValueError(f"gradient and accumulated must agree in their last dimension, {shapes}")
    if gradient.shape[-1] == 0:
        raise ValueError(f"gradient and accumulated must have at least one element, {shapes}")
    if any(m != n and 1 not in (m, n) for m, n in zip(gradient.shape[::-1], accumulated.shape[::-1], strict=False)):
        raise ValueError(f"the batch dimensions of gradient and accumulated must broadcast, {shapes}")


def _check_sequences(gradient: Sequence[Tensor], accumulated: Sequence[Tensor]) -> None:
    if len(gradient) != len(accumulated):
        raise ValueError(f"gradient has {len(gradient)} tensors and accumulated {len(accumulated)}; give as many")
    if not gradient:
        raise ValueError("gradient and accumulated must hold at least one tensor, got none")
    for i, pair in enumerate(zip(gradient, accumulated, strict=True)):
        for name, tensor in zip(("gradient", "accumulated"), pair, strict=True):
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"{name}[{i}] must be a tensor, got {type(tensor).__name__}; "
                    "leave out of both sequences what has no gradient"
                )
        if pair[0].shape != pair[1].shape:
            raise ValueError(
                f"gradient[{i}] has shape {tuple(pair[0].shape)} and accumulated[{i}] {tuple(pair[1].shape)}; "
                "they must be the same"
            )
        if pair[0].numel() == 0:
            raise ValueError(f"gradient[{i}] and accumulated[{i}] have no elements; leave them out")
