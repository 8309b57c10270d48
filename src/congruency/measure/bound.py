"""The lower bound on congruency under gradient descent (Theorem 1 of the paper)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from congruency._validate import check_choice

__all__ = ["BoundForm", "lower_bound"]

BoundForm = Literal["sharp", "expanded", "printed"]


def lower_bound(
    gradients: Tensor, step_size: float | Tensor, lipschitz: float | Tensor, *, form: BoundForm = "sharp"
) -> Tensor:
    r"""Return a lower bound on the congruency of gradient descent (Theorem 1 of the paper).

    Let ``x_{i+1} = x_i - eta g_i`` with ``g_i`` the gradient of f at ``x_i``, f's gradient L-Lipschitz, and
    ``S_i = g_0 + ... + g_{i-1}``. The congruency at iteration k is ``nu_k = cos(g_k, S_k)``. With all sums over
    i = 0..k-1, the three forms are the larger of -1 and

    - ``"sharp"``: ``((1 - L eta / 2) sum |g_i|^2 - (L eta / 2) |S_k|^2) / (|g_k| |S_k|)``, inequality ``eqn:proof_1``
      of the proof;
    - ``"expanded"``: ``((1 - L eta) sum |g_i|^2 - L eta sum |g_i| |S_i|) / (|g_k| |S_k|)``, the line after ``|S_k|^2``
      is expanded by Cauchy-Schwarz;
    - ``"printed"``: ``(1 - L eta) sum |g_i| / |g_k| - L eta sum |g_i| |S_i| / (|g_k| |S_k|)``, the theorem as printed.

    **The first two always hold**, for every step size ``eta >= 0``, convex f or not: they only use the quadratic upper
    bound, which needs no small step. ``sharp >= expanded`` everywhere. **The printed one does not hold.** It is the
    expanded one with ``sum |g_i|^2 / |S_k|`` replaced by ``sum |g_i|``, as if the former were never smaller. But two
    equal gradients g give ``|g|`` and ``2 |g|``, and the printed bound is then close to 2 for small ``L eta``, more
    than any cosine. Only at k = 1 do the two agree.

    Note that the theorem is about *full* gradients and a fixed step size. With minibatches, momentum, weight decay or
    Adam none of the forms is a bound.

    Args:
        gradients: ``g_0 .. g_K`` at successive iterates, shape (..., K + 1, p).
        step_size: eta, a number or a tensor that broadcasts with the batch dimensions.
        lipschitz: L, a number or a tensor that broadcasts with the batch dimensions. For a quadratic it is the largest
            eigenvalue of the Hessian; if L is too small the bound is invalid, if too large only loose.
        form: ``"sharp"``, ``"expanded"`` or ``"printed"``.

    Returns:
        The bound on ``nu_k`` for every k = 0..K, shape (..., K + 1), in the gradients' dtype; nan where nu_k is
        undefined: at k = 0, and where ``g_k`` or ``S_k`` is 0. The measured value to compare with is
        ``congruency(gradients[1:], gradients.cumsum(0)[:-1])`` for k = 1..K.

    Examples:
        >>> x, gradients = torch.tensor([4.0, 1.0]), []  # gradient descent on 1/2 |x|^2, for which L = 1
        >>> for _ in range(4):
        ...     gradients.append(x)
        ...     x = x - 0.1 * x
        >>> g = torch.stack(gradients)
        >>> bound = congruency.lower_bound(g, step_size=0.1, lipschitz=1.0)
        >>> bool((congruency.congruency(g[1:], g.cumsum(0)[:-1]) >= bound[1:] - 1e-6).all())
        True
    """
    _check(gradients, step_size, lipschitz, form)
    g = gradients.to(torch.float64)
    # no form changes if all gradients are scaled by one factor; with a largest entry of 1 no square overflows
    g = g / g.abs().amax((-2, -1), keepdim=True)
    eta, lip = (torch.as_tensor(value, dtype=torch.float64, device=g.device) for value in (step_size, lipschitz))
    curvature = (eta * lip).unsqueeze(-1)  # L eta, the only way the two enter

    accumulated = _past_sum(g, -2)
    lengths, reach = torch.linalg.vector_norm(g, dim=-1), torch.linalg.vector_norm(accumulated, dim=-1)
    scale = lengths * reach
    squares, crossed = _past_sum(lengths.square(), -1), _past_sum(lengths * reach, -1)
    if form == "sharp":
        bound = ((1 - curvature / 2) * squares - curvature / 2 * reach.square()) / scale
    elif form == "expanded":
        bound = ((1 - curvature) * squares - curvature * crossed) / scale
    else:
        bound = (1 - curvature) * _past_sum(lengths, -1) / lengths - curvature * crossed / scale
    return torch.where(scale > 0, bound.clamp(min=-1.0), torch.nan).to(gradients.dtype)


def _past_sum(terms: Tensor, dim: int) -> Tensor:
    """Return the sum of the terms before each one; 0 at the first."""
    past = terms.narrow(dim, 0, terms.shape[dim] - 1).cumsum(dim)
    return torch.cat([torch.zeros_like(terms.narrow(dim, 0, 1)), past], dim)


def _check(gradients: Tensor, step_size: float | Tensor, lipschitz: float | Tensor, form: str) -> None:
    check_choice("form", form, get_args(BoundForm))
    if not gradients.is_floating_point():
        raise TypeError(f"gradients must be a real floating-point tensor, got {gradients.dtype}")
    if gradients.ndim < 2 or 0 in gradients.shape[-2:]:
        raise ValueError(f"gradients must be g_0..g_k of shape (..., k + 1, p), got {tuple(gradients.shape)}")
    for name, value in (("step_size", step_size), ("lipschitz", lipschitz)):
        # the values of a tensor are not checked: it may be on an accelerator
        if not isinstance(value, Tensor) and not 0 <= value < torch.inf:
            raise ValueError(f"{name} must be finite and at least 0, got {value}")
