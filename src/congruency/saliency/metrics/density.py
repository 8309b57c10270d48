"""Value-based metrics: NSS and information gain at the fixations, CC, KL and SIM between maps."""

import torch
from torch import Tensor

from congruency.saliency.metrics.checks import by_parts, unless_negative, working_pair

EPSILON = 2.0**-52
"""MATLAB's ``eps``, which the published code adds before dividing and taking logarithms."""

_NAN = float("nan")


def nss(saliency: Tensor, fixations: Tensor, *, ddof: int = 0) -> Tensor:
    """Normalised scanpath saliency: the mean z-score of the map at the fixations.

    ``NSS = sum_p n_p z_p / sum_p n_p`` with ``z = (s - mean(s)) / std(s)`` over all pixels p of the image and n_p the
    fixations on pixel p. 0 is chance, 1 means one standard deviation above the map's mean. Unchanged by ``a s + b``
    for a > 0.

    Args:
        saliency: (B, H, W), any real dtype; need not be normalised.
        fixations: (B, H, W) counts; two on one pixel count twice. The MIT benchmark counts each pixel once: pass
            ``fixations > 0`` for that. A density instead of counts is not detected and gives a lower value.
        ddof: The standard deviation divides by P - ddof: 0 as numpy and the SALICON toolkit, 1 as MATLAB.

    Returns:
        (B,). nan for an image without fixations or with a negative count; 0 for a constant map.
    """

    def score(saliency: Tensor, fixations: Tensor) -> Tensor:
        centred, constant = _centred(saliency)
        deviation = (_dot(centred, centred) / (saliency.shape[-1] - ddof)).sqrt()
        value = _dot(centred, fixations) / deviation
        return value.masked_fill(constant, 0.0) / _total(fixations)

    return by_parts(score, *working_pair(saliency, fixations, "fixations"))


def cc(saliency: Tensor, density: Tensor) -> Tensor:
    """Pearson's correlation of two maps, pixel by pixel.

    ``CC = <s - mean(s), q - mean(q)> / (|s - mean(s)| |q - mean(q)|)``; no ddof appears, it cancels. In [-1, 1], and
    unchanged by ``a s + b`` for a > 0 of either map.

    The density, (B, H, W), is the fixations blurred (``congruency.saliency.data.density``). The value depends on the
    width of the blur, so state it; raw counts are accepted and give a much lower value. The result (B,) is nan where
    the density is constant (no fixations), 0 where the saliency is.
    """

    def score(saliency: Tensor, density: Tensor) -> Tensor:
        (s, flat), (q, bare) = _centred(saliency), _centred(density)
        value = _dot(s, q) / (_dot(s, s).sqrt() * _dot(q, q).sqrt())
        return value.clamp(-1.0, 1.0).masked_fill(flat, 0.0).masked_fill(bare, _NAN)

    return by_parts(score, *working_pair(saliency, density, "density"))


def kl(saliency: Tensor, density: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """Kullback-Leibler divergence of the saliency from the density, in nats; 0 is best, lower is better.

    ``KL = sum_p q_p log(epsilon + q_p / (p_p + epsilon))`` with both maps divided by their sums, as the MIT benchmark
    computes it. A saliency of 0 at a fixated pixel costs ``q log(q / epsilon)``, so maps that are thresholded or
    quantised to 256 levels score badly. ``epsilon=0`` is the exact divergence, infinite there.

    Both are (B, H, W) and not negative: convert logits to probabilities first. The result (B,) is nan where the density
    sums to 0 or either map has a negative value; an all-zero saliency counts as uniform.
    """

    def score(saliency: Tensor, density: Tensor) -> Tensor:
        # With S and Q the maps before division, q / (p + epsilon) = (Q / (S + epsilon sum S)) (sum S / sum Q).
        offset, total, mass = *_normaliser(saliency), _mass(density)
        scale = total / mass
        ratio = torch.add(saliency, offset + epsilon * total)
        ratio = torch.div(density, ratio, out=ratio).add_(epsilon / scale)
        if epsilon == 0:
            ratio.masked_fill_(density == 0, 1.0)  # 0 log 0 is 0
        return _dot(density, ratio.log_()) / mass.squeeze(-1) + scale.log().squeeze(-1)

    return by_parts(score, *working_pair(saliency, density, "density"))


def sim(saliency: Tensor, density: Tensor) -> Tensor:
    """Similarity, the intersection of two distributions: ``SIM = sum_p min(p_p, q_p)``, in [0, 1].

    Both maps are divided by their sums. The MIT benchmark first subtracts each map's minimum; pass
    ``saliency - saliency.amin((-2, -1), keepdim=True)`` for that: a constant added to a map changes this value.

    The value depends strongly on the blur of the density. Empty, negative and all-zero maps are
    treated as in :func:`kl`.
    """

    def score(saliency: Tensor, density: Tensor) -> Tensor:
        offset, total, mass = *_normaliser(saliency), _mass(density)
        scale = mass / total  # the saliency with the mass of the density
        scaled = torch.mul(saliency, scale).add_(offset * scale)
        return torch.minimum(scaled, density, out=scaled).sum(-1) / mass.squeeze(-1)

    return by_parts(score, *working_pair(saliency, density, "density"))


def information_gain(saliency: Tensor, fixations: Tensor, baseline: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """Information gain over a baseline, in bits per fixation.

    ``IG = sum_p n_p (log2(epsilon + p_p) - log2(epsilon + b_p)) / sum_p n_p``, saliency and baseline divided by their
    sums. 0 is no better than the baseline, which is usually the centre bias (the mean density of other images).

    Maps are (B, H, W), a baseline also (H, W) for all images, and not negative. A zero at a fixation costs up to 52
    bits, which affects quantised maps and maps whose minimum was set to 0. The result (B,) is nan for an image without
    fixations or where a map or a count is negative; an all-zero map counts as uniform.
    """

    def score(saliency: Tensor, fixations: Tensor, baseline: Tensor) -> Tensor:
        offset, total = _normaliser(saliency)
        lower, below = _normaliser(baseline)
        ratio = torch.add(saliency, offset + epsilon * total)
        ratio.div_(torch.add(baseline, lower + epsilon * below))
        if epsilon == 0:
            ratio.masked_fill_(fixations == 0, 1.0)
        return _dot(ratio.log2_(), fixations) / _total(fixations) + (below / total).log2().squeeze(-1)

    given, fixations = working_pair(saliency, fixations, "fixations")
    _, prior = working_pair(saliency, baseline, "baseline")
    return by_parts(score, given, fixations, prior.to(given.dtype))


def _dot(left: Tensor, right: Tensor) -> Tensor:
    if left.device.type == "cpu":
        return torch.bmm(left.unsqueeze(-2), right.unsqueeze(-1)).flatten()  # twice as fast as vecdot on the CPU
    product: Tensor = torch.linalg.vecdot(left, right)
    return product


def _total(fixations: Tensor) -> Tensor:
    """(N,): the number of fixations, nan if there are none or a count is negative."""
    total = fixations.sum(-1)
    return unless_negative(total.masked_fill(total == 0, _NAN), fixations)


def _normaliser(maps: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 1) each: an offset and a total such that ``(maps + offset) / total`` are distributions.

    The offset is 0, or 1 for an all-zero map, which then is uniform. The total of a map with a negative value is nan.
    """
    total = maps.sum(-1, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, float(maps.shape[-1]))
    return empty.to(maps.dtype), total.masked_fill(maps.amin(-1, keepdim=True) < 0, _NAN)


def _mass(density: Tensor) -> Tensor:
    """(N, 1): the sum of a density, nan if it is 0 or some value is negative."""
    mass = density.sum(-1, keepdim=True)
    return mass.masked_fill((mass == 0) | (density.amin(-1, keepdim=True) < 0), _NAN)


def _centred(maps: Tensor) -> tuple[Tensor, Tensor]:
    """(N, P): the maps with mean 0, each scaled by a positive number, and (N,): whether they are constant.

    For a map far from 0 the rounding error of the mean matters, so the mean of the difference is subtracted too. The
    scale keeps the squares of very small and very large maps within range. On the CPU, where checking is free, both are
    skipped when not needed. A map is constant if its range is 0: by rounding, its variance need not be.
    """
    low, high = maps.amin(-1, keepdim=True), maps.amax(-1, keepdim=True)
    centred, spread = maps - maps.mean(-1, keepdim=True), high - low
    on_device = maps.device.type != "cpu"
    if on_device or (low.abs() > 10 * spread).any():
        centred.sub_(centred.mean(-1, keepdim=True))
    if on_device or not ((spread > 1e-9) & (spread < 1e9)).all():
        centred.div_(spread)
    return centred, (low == high).squeeze(-1)
