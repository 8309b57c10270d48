"""Value-based metrics: NSS and information gain at the fixations, CC, KL and SIM between maps.

Pixels are computed in the working precision and summed in float64, so float32 maps of any size score to about 1e-7.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from congruency.saliency.metrics.checks import Protocol, by_parts, check_protocol, unless_negative, working_pair

EPSILON = 2.0**-52
"""MATLAB's ``eps``, which the published code adds before dividing and taking logarithms."""

_NAN = float("nan")
_RUN = 256  # pixels that are summed in the working precision before float64 takes over


def nss(saliency: Tensor, fixations: Tensor, *, protocol: Protocol = "exact") -> Tensor:
    """Normalised scanpath saliency: the mean z-score of the map at the fixations.

    ``NSS = sum_p n_p z_p / sum_p n_p`` with ``z = (s - mean(s)) / std(s)`` over all pixels p of the image and n_p the
    fixations on pixel p. 0 is chance, 1 means one standard deviation above the map's mean. Unchanged by ``a s + b``
    for a > 0.

    Args:
        saliency: (B, H, W), any real dtype; need not be normalised.
        fixations: (B, H, W) counts; two on one pixel count twice. A density instead of counts is not detected and
            gives a lower value.
        protocol: ``"mit"`` counts each fixated pixel once and divides the variance by P - 1, as the MIT benchmark's
            code; ``"salicon"`` is the same as ``"exact"``.

    Returns:
        (B,). nan for an image without fixations or with a negative count; 0 for a constant map.
    """
    check_protocol(protocol)

    def score(saliency: Tensor, fixations: Tensor) -> Tensor:
        total = _total(fixations)
        if protocol == "mit":
            fixations = fixations.sign()
            total = torch.where(total.isnan(), total, fixations.sum(-1).double())
        s, drift, variance, constant = _centred(saliency)
        if protocol == "mit":
            variance = variance * (s.shape[-1] / (s.shape[-1] - 1))
        value = (_sum(s.mul_(fixations)) / total - drift) / variance.sqrt()
        return value.masked_fill(constant & ~total.isnan(), 0.0).to(saliency.dtype)

    return by_parts(score, *working_pair(saliency, fixations, "fixations"))


def cc(saliency: Tensor, density: Tensor) -> Tensor:
    """Pearson's correlation of two maps, pixel by pixel; the same in every protocol.

    ``CC = <s - mean(s), q - mean(q)> / (|s - mean(s)| |q - mean(q)|)``; no ddof appears, it cancels. In [-1, 1], and
    unchanged by ``a s + b`` for a > 0 of either map.

    The density, (B, H, W), is the fixations blurred (``congruency.saliency.data.density``). The value depends on the
    width of the blur, so state it; raw counts are accepted and give a much lower value. The result (B,) is nan where
    the density is constant (no fixations), 0 where the saliency is.
    """

    def score(saliency: Tensor, density: Tensor) -> Tensor:
        (s, left, first, flat), (q, right, second, bare) = _centred(saliency), _centred(density)
        covariance = _sum(s.mul_(q)) / s.shape[-1] - left * right
        value = (covariance / (first.sqrt() * second.sqrt())).clamp(-1.0, 1.0)
        return value.masked_fill(flat, 0.0).masked_fill(bare, _NAN).to(saliency.dtype)

    return by_parts(score, *working_pair(saliency, density, "density"))


def kl(saliency: Tensor, density: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """Kullback-Leibler divergence of the saliency from the density, in nats; 0 is best, lower is better.

    ``KL = sum_p q_p log(epsilon + q_p / (p_p + epsilon))`` with both maps divided by their sums, as the MIT benchmark
    computes it; the same in every protocol. A saliency of 0 at a fixated pixel costs ``q log(q / epsilon)``, so maps
    that are thresholded or quantised to 256 levels score badly. ``epsilon=0`` is the exact divergence, infinite there.

    Both are (B, H, W) and not negative: convert logits to probabilities first. The result (B,) is nan where the density
    sums to 0 or either map has a negative value; an all-zero saliency counts as uniform.
    """

    def score(saliency: Tensor, density: Tensor) -> Tensor:
        # With S and Q the maps before division, q / (p + epsilon) = (Q / (S + epsilon sum S)) (sum S / sum Q).
        offset, total, mass = *_normaliser(saliency), _mass(density)
        scale = total / mass
        ratio = torch.add(saliency, _column(offset + epsilon * total, saliency))
        ratio = torch.div(density, ratio, out=ratio).add_(_column(epsilon / scale, saliency))
        if epsilon == 0:
            ratio.masked_fill_(density == 0, 1.0)  # 0 log 0 is 0
        return (_sum(ratio.log_().mul_(density)) / mass + scale.log()).to(saliency.dtype)

    return by_parts(score, *working_pair(saliency, density, "density"))


def sim(saliency: Tensor, density: Tensor, *, protocol: Protocol = "exact") -> Tensor:
    """Similarity, the intersection of two distributions: ``SIM = sum_p min(p_p, q_p)``, in [0, 1].

    Both maps are divided by their sums. ``protocol="mit"`` first subtracts each map's minimum, as the MIT benchmark's
    code; otherwise a constant added to a map changes the value.

    The value depends strongly on the blur of the density. Empty, negative (except for ``"mit"``) and all-zero maps are
    treated as in :func:`kl`.
    """
    check_protocol(protocol)

    def score(saliency: Tensor, density: Tensor) -> Tensor:
        if protocol == "mit":
            saliency, density = _from_zero(saliency), _from_zero(density)
        offset, total, mass = *_normaliser(saliency), _mass(density)
        scale = mass / total  # the saliency with the mass of the density
        scaled = torch.mul(saliency, _column(scale, saliency))
        if saliency.device.type != "cpu" or offset.any():
            scaled.add_(_column(offset * scale, saliency))
        return (_sum(torch.minimum(scaled, density, out=scaled)) / mass).to(saliency.dtype)

    return by_parts(score, *working_pair(saliency, density, "density"))


def information_gain(
    saliency: Tensor, fixations: Tensor, baseline: Tensor, *, protocol: Protocol = "exact", epsilon: float = EPSILON
) -> Tensor:
    """Information gain over a baseline, in bits per fixation.

    ``IG = sum_p n_p (log2(epsilon + p_p) - log2(epsilon + b_p)) / sum_p n_p``, saliency and baseline divided by their
    sums. 0 is no better than the baseline, which is usually the centre bias (the mean density of other images).
    ``protocol="mit"`` subtracts the minimum of both maps and counts each fixated pixel once, as the MIT benchmark.

    Maps are (B, H, W), a baseline also (H, W) for all images, and not negative. A zero at a fixation costs up to 52
    bits, of a baseline it gains as many: quantised maps and maps whose minimum was set to 0 need a floor first. The
    result (B,) is nan for an image without fixations or where a map (except for ``"mit"``) or a count is negative; an
    all-zero map counts as uniform.
    """
    check_protocol(protocol)

    def score(saliency: Tensor, fixations: Tensor, baseline: Tensor) -> Tensor:
        count = _total(fixations)
        if protocol == "mit":
            saliency, baseline, fixations = _from_zero(saliency), _from_zero(baseline), fixations.sign()
            count = torch.where(count.isnan(), count, fixations.sum(-1).double())
        offset, total = _normaliser(saliency)
        lower, below = _normaliser(baseline)
        ratio = torch.add(saliency, _column(offset + epsilon * total, saliency))
        ratio.div_(torch.add(baseline, _column(lower + epsilon * below, saliency)))
        if epsilon == 0:
            ratio.masked_fill_(fixations == 0, 1.0)
        return (_sum(ratio.log2_().mul_(fixations)) / count + (below / total).log2()).to(saliency.dtype)

    given, fixations = working_pair(saliency, fixations, "fixations")
    _, prior = working_pair(saliency, baseline, "baseline")
    return by_parts(score, given, fixations, prior.to(given.dtype))


def _sum(maps: Tensor) -> Tensor:
    """(N, P) -> (N,) float64: sums of runs of pixels, which float64 adds up.

    A float32 sum over all pixels has an error that grows with their number; ``sum(dtype=torch.float64)`` converts every
    pixel, which takes several times as long.
    """
    return _by_runs(maps, lambda runs: runs.sum(-1).double())


def _sum_of_squares(maps: Tensor) -> Tensor:
    return _by_runs(maps, lambda runs: torch.linalg.vector_norm(runs, dim=-1).double().square())


def _by_runs(maps: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """(N, P) -> (N,): ``reduce``, (..., R) -> (...), of runs of R pixels and of the rest, added up."""
    whole = maps.shape[-1] // _RUN * _RUN
    total = reduce(maps[:, :whole].unflatten(-1, (whole // _RUN, _RUN))).sum(-1)
    return total + reduce(maps[:, whole:]) if whole < maps.shape[-1] else total


def _column(values: Tensor, like: Tensor) -> Tensor:
    """(N,) -> (N, 1) in the precision of the maps."""
    return values.to(like.dtype).unsqueeze(-1)


def _total(fixations: Tensor) -> Tensor:
    """(N,): the number of fixations, nan if there are none or a count is negative."""
    total = fixations.sum(-1).double()  # of integers, so exact
    return unless_negative(total.masked_fill(total == 0, _NAN), fixations)


def _normaliser(maps: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) each: an offset and a total such that ``(maps + offset) / total`` are distributions.

    The offset is 0, or 1 for an all-zero map, which then is uniform. The total of a map with a negative value is nan.
    """
    total = _sum(maps)
    empty = total == 0
    total = total.masked_fill(empty, float(maps.shape[-1]))
    return empty.to(total.dtype), unless_negative(total, maps)


def _mass(density: Tensor) -> Tensor:
    """(N,): the sum of a density, nan if it is 0 or some value is negative."""
    mass = _sum(density)
    return unless_negative(mass.masked_fill(mass == 0, _NAN), density)


def _from_zero(maps: Tensor) -> Tensor:
    """The maps minus their minimum, as the MIT benchmark's code does before it divides by the sum."""
    return maps - maps.amin(-1, keepdim=True)


def _centred(maps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(N, P): the maps minus their rounded mean, each scaled by a positive number; then (N,) each: the mean that
    rounding has left, the variance, and whether the map is constant.

    For a map far from 0 the mean is known only after rounding, so it is computed again; the scale keeps the squares of
    very small and very large maps within range. On the CPU, where checking is free, both are left out when not needed.
    A map is constant if its range is 0: by rounding, its variance need not be.
    """
    low, high, pixels = maps.amin(-1, keepdim=True), maps.amax(-1, keepdim=True), maps.shape[-1]
    mean, spread, on_device = _sum(maps) / pixels, high - low, maps.device.type != "cpu"
    rounded = _column(mean, maps)
    centred, drift = maps - rounded, mean - rounded.squeeze(-1)
    if on_device or not ((spread > 1e-9) & (spread < 1e9) & (low.abs() <= spread)).all():
        drift = _sum(centred.div_(spread)) / pixels
    return centred, drift, _sum_of_squares(centred) / pixels - drift**2, (low == high).squeeze(-1)
