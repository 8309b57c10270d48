"""How far each sample agrees with what a network learns: cosines of last-layer gradients, on plain tensors.

The last layer is linear, ``z = V h`` with ``V = [W b]`` and ``h`` the features with a 1 behind them for the bias. Under
cross-entropy the gradient of sample i is an outer product (n samples, K classes, F features)::

    g_i = e_i h_i'          (K, F)      e_i = softmax(z_i) - q_i,   q_i the (smoothed) one-hot label
    <g_i, D> = e_i' D h_i               |g_i| = |e_i| |h_i|

so its cosine with any direction D comes from two small products, for all samples at once and with no backward pass.

Along the way come, ``D = V - V_start``, the congruency is (section 2 of the design, ``cos(g, -d)``)::

    nu_i = -e_i' D h_i / (|e_i| |h_i| |D|)

``D h_i`` is by how much the last layer's movement has changed the sample's outputs, so nu_i is a margin: the change of
the given label's output above that of the labels it competes with. It is below 0 where training has moved the outputs
toward other labels than the given one.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["along", "among_class", "errors", "extended", "losses"]

_CHUNK = 8192  # samples whose features are in float64 at a time
_ROUNDING = 1e-5  # of a sum's norm: below it a difference of squares in float64 has lost most of its digits
_LEAST = 1e-300  # a norm below it counts as 0


def errors(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """``softmax(z) - q``, the gradient of cross-entropy by the outputs: (n, K), (n,) -> float64 (n, K).

    Without smoothing the given label's entry is minus the sum of the others: ``p - 1`` would round to 0 for a label
    that is nearly certain, and leave its sample without a direction.
    """
    probabilities = logits.double().softmax(1)
    given = functional.one_hot(labels, logits.shape[1]).to(torch.bool)
    if smoothing:
        return probabilities - (1 - smoothing) * given - smoothing / logits.shape[1]
    others = probabilities.masked_fill(given, 0.0)
    return torch.where(given, -others.sum(1, keepdim=True), others)


def losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of every sample: float64 (n,)."""
    return functional.cross_entropy(logits.double(), labels, reduction="none", label_smoothing=smoothing)


def extended(weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[W b]``, the last layer as one matrix: (K, F) and (K,) -> (K, F + 1); W alone where there is no bias."""
    return weight if bias is None else torch.cat([weight, bias[:, None]], 1)


def along(error: Tensor, features: Tensor, way: Tensor) -> Tensor:
    """nu_i, the congruency with the way come; see the module.

    Args:
        error: (n, K), of :func:`errors`.
        features: (n, F), with a last column of ones where ``way`` has a bias.
        way: (K, F), the last layer now less the last layer at the start.

    Returns:
        float64 (n,); nan where a norm is 0.
    """
    _check(error, features, way)
    direction = way.double()
    parts = []
    for e, h in _chunks(error, features):
        parts.append(-(e * (h @ direction.T)).sum(1) / (_norms(e, h) * torch.linalg.vector_norm(direction)))
    return torch.cat(parts).clamp(-1.0, 1.0)


def among_class(error: Tensor, features: Tensor, labels: Tensor, *, unit: bool = False) -> Tensor:
    """Cosine of every sample's gradient with the mean gradient of the *other* samples that have its label.

    Late in training the largest gradients are those of wrong labels, and a class's mean is mostly theirs. With ``unit``
    it is the mean of the gradients' directions, ``g_j / |g_j|``, to which every sample adds alike.

    With ``S`` the sum of a class's gradients, that of the others is ``S - g_i``, whose product with g_i and whose norm
    need no more than ``<g_i, S>``: ``<g_i, S> - |g_i|^2`` and ``|S|^2 - 2 <g_i, S> + |g_i|^2``. A sample left in its
    own mean would agree with itself, the more so the larger its gradient.

    Args:
        error: (n, K), of :func:`errors`.
        features: (n, F), with a last column of ones where the layer has a bias.
        labels: (n,), as given.
        unit: take the mean of directions; a sample without a gradient has none.

    Returns:
        float64 (n,); nan where a norm is 0, and for the only sample of a class.
    """
    _check(error, features)
    found = torch.full((len(labels),), torch.nan, dtype=torch.float64, device=labels.device)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        if len(members) < 2:
            continue
        e, h = error[members].double(), features[members].double()
        e = e / e.abs().max().clamp(min=_LEAST)  # no cosine changes, and no square underflows with the whole class
        if unit:
            e = functional.normalize(e, dim=1, eps=_LEAST) / torch.linalg.vector_norm(h, dim=1, keepdim=True)
            e = e.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)  # features of 0 have no direction
        total = e.T @ h
        product = (e * (h @ total.T)).sum(1)
        own = _norms(e, h)
        whole = total.square().sum()
        others = (whole - 2 * product + own.square()).clamp(min=0.0).sqrt()
        nu = (product - own.square()) / (own * others)
        drowned = (others <= _ROUNDING * whole.sqrt()) & (own > 0)
        for i in drowned.nonzero().flatten().tolist():
            nu[i] = _with_the_others(e, h, i)
        found[members] = nu.clamp(-1.0, 1.0)
    return found


def _with_the_others(error: Tensor, features: Tensor, sample: int) -> Tensor:
    """The same cosine from the others' own sum: for a gradient so large that taking it away leaves only rounding."""
    kept = torch.arange(len(error), device=error.device) != sample
    others = error[kept].T @ features[kept]
    own = _norms(error[sample, None], features[sample, None])[0]
    nu: Tensor = (error[sample] @ others @ features[sample]) / (own * torch.linalg.vector_norm(others))
    return nu


def _norms(error: Tensor, features: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(error, dim=1) * torch.linalg.vector_norm(features, dim=1)
    return norms


def _chunks(error: Tensor, features: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for e, h in zip(error.split(_CHUNK), features.split(_CHUNK), strict=True):
        yield e.double(), h.double()


def _check(error: Tensor, features: Tensor, way: Tensor | None = None) -> None:
    if len(error) != len(features):
        raise ValueError(f"there are errors of {len(error)} samples and features of {len(features)}")
    if way is not None and tuple(way.shape) != (error.shape[1], features.shape[1]):
        raise ValueError(
            f"the way come must be ({error.shape[1]}, {features.shape[1]}), classes by features, got {tuple(way.shape)}"
        )
