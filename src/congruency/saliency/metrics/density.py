"""Value-based metrics: NSS and information gain at the fixations, CC, KL and SIM between maps.

Pixels are computed in the working precision and summed in float64, so float32 maps of any size score to about 1e-7.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from congruency.saliency.metrics.checks import Protocol, by_parts, check_protocol, working_pair

EPSILON = 2.0**-52
"""MATLAB's ``eps``, which the published code adds before dividing and taking logarithms."""

_NAN = float("nan")
_RUN = 4096  # pixels per run summed in the working precision (pairwise, by torch); runs are summed in float64
_SQUARES = 256  # the same for sums of squares, which torch accumulates sequentially


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
        total = _mass(fixations)
        if protocol == "mit":
            fixations = fixations.sign()
            total = torch.where(total.isnan(), total, fixations.sum(-1).double())
        s, mean, variance, constant = _moments(saliency)
        if protocol == "mit":
            variance = variance * (s.shape[-1] / (s.shape[-1] - 1))
        value = (_sum(s * fixations) / total - mean) / variance.sqrt()
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
        (s, left, first, flat), (q, right, second, bare) = _moments(saliency), _moments(density)
        covariance = _sum(s * q) / s.shape[-1] - left * right
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
        mass, (offset, total) = _mass(density), _normaliser(saliency)
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
        mass, total = _sum(density), _sum(saliency)
        empty = total == 0
        scale = mass / total.masked_fill(empty, float(saliency.shape[-1]))  # the saliency with the mass of the density
        scaled = torch.mul(saliency, _column(scale, saliency))
        if saliency.device.type != "cpu" or empty.any():
            scaled.add_(_column(empty * scale, saliency)).masked_fill_(saliency < 0, -1.0)
        overlap = torch.minimum(scaled, density, out=scaled)  # negative somewhere if a map is, unless total < 0
        return (_sum(overlap) / mass).masked_fill_((overlap.amin(-1) < 0) | (total < 0), _NAN).to(saliency.dtype)

    return by_parts(score, *working_pair(saliency, density, "density"))


def information_gain(
    saliency: Tensor, fixations: Tensor, baseline: Tensor, *, protocol: Protocol = "exact", epsilon: float = EPSILON
) -> Tensor:
    """Information gain over a baseline, in bits per fixation.

    ``IG = sum_p n_p (log2(epsilon + p_p) - log2(epsilon + b_p)) / sum_p n_p``, saliency and baseline divided by their
    sums. 0 is no better than the baseline, which is usually the centre bias (the mean density of other images).
    ``protocol="mit"`` subtracts the minimum of both maps and counts each fixated pixel once, as the MIT benchmark.

    Maps are (B, H, W), a baseline also (H, W) for all images, and not negative. A zero at a fixation costs up to 52
    bits, or gains as much in the baseline: quantised maps and maps whose minimum was set to 0 need a floor first. The
    result (B,) is nan for an image without fixations or where a map (except for ``"mit"``) or a count is negative; an
    all-zero map counts as uniform.
    """
    check_protocol(protocol)

    def score(saliency: Tensor, fixations: Tensor, baseline: Tensor) -> Tensor:
        count = _mass(fixations)
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
    """Sum pixels, (N, P) -> (N,) float64: first runs of pixels, then the runs in float64.

    A float32 sum over all pixels has an error that grows with their number; ``sum(dtype=torch.float64)`` converts every
    pixel, which takes several times as long.
    """
    return _by_runs(maps, _RUN, lambda runs: runs.sum(-1))


def _sum_of_squares(maps: Tensor) -> Tensor:
    return _by_runs(maps, _SQUARES, lambda runs: torch.linalg.vector_norm(runs, dim=-1).double().square_())


def _by_runs(maps: Tensor, run: int, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``reduce``, (..., n) -> (...), to runs of pixels and sum the results: (N, P) -> (N,)."""
    rest = maps.shape[-1] % run
    if rest:
        return _by_runs(maps[:, :-rest], run, reduce) + reduce(maps[:, -rest:])
    return reduce(maps.view(len(maps), maps.shape[-1] // run, run)).sum(-1, dtype=torch.float64)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (N,) to (N, 1), in the precision of the maps."""
    return values.to(like.dtype).unsqueeze(-1)


def _normaliser(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return an offset and a total, (N,) each, such that ``(maps + offset) / total`` are distributions.

    The offset is False (0), or True (1) for an all-zero map, which becomes uniform. The total of a map with a negative
    value is nan.
    """
    low, total = maps.amin(-1), _sum(maps)
    empty = total == 0
    return empty, total.masked_fill_(empty, float(maps.shape[-1])).masked_fill_(low < 0, _NAN)


def _mass(maps: Tensor) -> Tensor:
    """Return the sum of a density or of counts, (N,); nan if it is 0 or a value is negative."""
    low, mass = maps.amin(-1), _sum(maps)
    return mass.masked_fill_((mass == 0) | (low < 0), _NAN)


def _from_zero(maps: Tensor) -> Tensor:
    """Subtract the maps' minimum, as the MIT benchmark's code does before dividing by the sum."""
    return maps - maps.amin(-1, keepdim=True)


def _moments(maps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return affinely rescaled maps ``a maps + b``, a > 0, (N, P), with mean, variance and whether constant, (N,) each.

    On the CPU, where checking is free, these are the maps themselves, or the maps minus their mean, if the variance is
    not small relative to the squared mean, so that their difference is accurate. Otherwise, and on other devices, a map
    is also divided by its range, since its squares may overflow or underflow; its mean is then computed again to
    account for rounding. A map is constant if its range is 0; its computed variance may differ from 0 by rounding.
    """
    pixels, on_device = maps.shape[-1], maps.device.type != "cpu"
    mean = _sum(maps) / pixels
    if not on_device:
        for attempt in range(2):
            square = mean**2
            variance = _sum_of_squares(maps) / pixels - square
            if bool(((variance > 0.25 * square) & (variance > 1e-18) & (variance < 1e18)).all()):
                return maps, mean, variance, torch.zeros_like(mean, dtype=torch.bool)
            if attempt == 0:
                maps = maps - _column(mean, maps)
                mean = _sum(maps) / pixels
    low, high = maps.amin(-1, keepdim=True), maps.amax(-1, keepdim=True)
    centred = (maps - _column(mean, maps)).div_(high - low)
    mean = _sum(centred) / pixels
    return centred, mean, _sum_of_squares(centred) / pixels - mean**2, (low == high).squeeze(-1)
