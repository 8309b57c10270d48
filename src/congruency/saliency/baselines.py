"""Reference scores: image-independent maps as floors, and human performance (:mod:`congruency.saliency.ceiling`)."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from congruency.files import write_together
from congruency.saliency.ceiling import MIN_VIEWERS, human_ceiling
from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import SaliencyData
from congruency.saliency.metrics import Protocol
from congruency.saliency.scorer import DENSITY_METRICS, METRICS, PAPER_METRICS, mean_scores, score

CENTRE = "centre Gaussian"
"""The floor in :func:`reference_scores` that a model must exceed to show that it uses the image."""

CEILING = "human ceiling"
LOWER_IS_BETTER = ("KL",)

_BANDWIDTHS = tuple(0.01 * 2 ** (k / 2) for k in range(10))  # relative to the width: 1 % to 23 %
_UNIFORM = (1e-6, 1e-3, 1e-2, 0.03, 0.1)  # shares of a uniform map
_FOLDS = 10
_RIDGE = 1e-6  # added to the variance, in squared widths, so that collinear fixations have a Gaussian too


def centre_gaussian(data: SaliencyData, size: tuple[int, int]) -> Tensor:
    """Return a Gaussian with the mean and covariance of all fixations, relative to the image size; (height, width)."""
    relative = torch.cat(
        [(v.points + 0.5) / torch.tensor([v.width, v.height], dtype=torch.float64) for v in data.viewings]
    )
    if len(relative) == 0:
        raise ValueError(f"{data.name} has no fixations to fit a Gaussian to")
    spread = relative.T.cov(correction=0) if len(relative) == 1 else relative.T.cov()
    mean, inverse = relative.mean(0), torch.linalg.inv(spread + _RIDGE * torch.eye(2, dtype=torch.float64))
    height, width = size
    rows = (torch.arange(height, dtype=torch.float64) + 0.5) / height
    columns = (torch.arange(width, dtype=torch.float64) + 0.5) / width
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1) - mean
    return torch.exp(-0.5 * torch.einsum("hwi,ij,hwj->hw", grid, inverse, grid)).float()


@dataclass(frozen=True)
class FixationPrior:
    """An image-independent kernel density estimate of fixations, fitted by cross-validation.

    ``p = (1 - u) K_sigma * mean_i(c_i / |c_i|) + u / P``: the mean of the images' fixation counts c_i, blurred by a
    Gaussian and mixed with a uniform map over the P pixels. Bandwidth sigma and share u maximise the log-likelihood of
    the fixations on each fold of images under the estimate from the others.

    Attributes:
        folds: (F, height, width) estimates without the images of each fold.
        whole: (height, width) estimate from all images.
        fold_of: Fold of each image.
        bandwidth: Sigma, relative to the width.
        uniform: Share u.
        bits: Log-likelihood per fixation (a mean over images), in bits above a uniform map.
    """

    folds: Tensor
    whole: Tensor
    fold_of: tuple[int, ...]
    bandwidth: float
    uniform: float
    bits: float


def fixation_prior(data: SaliencyData, size: tuple[int, int] = (120, 160), *, folds: int = _FOLDS) -> FixationPrior:
    """Fit a :class:`FixationPrior` to a data set of at least two images with fixations."""
    seen = [i for i, v in enumerate(data.viewings) if len(v.points)]
    if len(seen) < 2:
        raise ValueError(f"{data.name} needs at least two images with fixations for a cross-validated map")
    folds = min(folds, len(seen))
    places = torch.zeros(len(data), dtype=torch.long)
    places[torch.tensor(seen)] = torch.arange(len(seen)) % folds
    sums = torch.zeros(folds, *size)
    for i in seen:
        v = data[i]
        counts = fixation_counts([v.points], size, frames=[(v.height, v.width)])[0]
        sums[places[i]] += counts / counts.sum()
    pixels = size[0] * size[1]
    found: tuple[float, float, float, Tensor, Tensor] | None = None
    for bandwidth in _BANDWIDTHS:
        smooth = density(sums, bandwidth * size[1])
        others, whole = _distribution(smooth.sum(0) - smooth), _distribution(smooth.sum(0))
        for share in _UNIFORM:
            mixed = (1 - share) * others + share / pixels
            bits = float((sums.double() * (mixed.double() * pixels).log2()).sum()) / len(seen)
            if found is None or bits > found[0]:
                found = bits, bandwidth, share, mixed, (1 - share) * whole + share / pixels
    assert found is not None
    bits, bandwidth, share, mixed, whole = found
    return FixationPrior(mixed, whole, tuple(places.tolist()), bandwidth, share, bits)


def _distribution(maps: Tensor) -> Tensor:
    maps = maps.clamp(min=0)  # rounding may give values below 0
    return maps / maps.sum((-2, -1), keepdim=True)


def reference_scores(
    test: SaliencyData,
    train: SaliencyData | None = None,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    size: tuple[int, int] = (240, 320),
    people: bool = True,
    sigma: float | None = None,
    protocol: Protocol = "exact",
    seed: int = 0,
    device: torch.device | str | None = None,
    baseline: Tensor | None = None,
    official: bool = False,
) -> dict[str, dict[str, float]]:
    """Return reference scores to compare a model's scores with, by name: floors, then the human ceiling.

    The floors do not depend on the image: a uniform map; a Gaussian around the mean fixation; the mean map, a kernel
    density estimate with fitted bandwidth (:func:`fixation_prior`). They are fitted to ``train``, or without it to the
    other images of ``test`` by cross-validation; with fewer than two images with fixations there is only the uniform
    map. The ceiling needs separate viewers and exact metrics, and excludes densities if they are ``official``. The
    other arguments are those of :func:`congruency.saliency.scorer.score`.
    """

    def scored(predict: Callable[[Sequence[int]], Tensor]) -> dict[str, float]:
        found = score(
            predict, test, metrics, sigma=sigma, protocol=protocol, seed=seed, device=device, baseline=baseline,
            official=official,
        )  # fmt: skip
        return mean_scores(found, test)

    def uniform(indices: Sequence[int]) -> Tensor:  # at the images' size: resizing would make it uneven by rounding
        return torch.ones(len(indices), test[indices[0]].height, test[indices[0]].width, device=device)

    references = {"uniform": scored(uniform)}
    if sum(len(v.points) > 0 for v in (train or test).viewings) < 2:
        pass  # nothing to cross-validate
    elif train is not None:
        maps = {CENTRE: centre_gaussian(train, size), "mean training map": fixation_prior(train, size).whole}
        references |= {name: scored(_constant(one.to(device))) for name, one in maps.items()}
    else:
        prior = fixation_prior(test, size)
        outside = [[i for i, place in enumerate(prior.fold_of) if place != fold] for fold in range(len(prior.folds))]
        centres = torch.stack([centre_gaussian(test.subset(others), size) for others in outside])
        for name, each in {CENTRE: centres, "mean map of the other images": prior.folds}.items():
            references[name] = scored(_by_fold(each.to(device), prior.fold_of))
    viewers = min((len(v.fixations) for v in test.viewings), default=0)
    known = [name for name in metrics if not (official and name in DENSITY_METRICS)]  # no official densities
    if people and protocol == "exact" and viewers >= MIN_VIEWERS and known:
        viewed = test if sigma is None else replace(test, pixels_per_degree=sigma)  # the same blur as the ground truth
        references[CEILING] = human_ceiling(viewed, known, device=device, baseline=baseline)
    return references


def kept_references(
    path: Path, test: SaliencyData, train: SaliencyData, *, device: torch.device | str | None = None
) -> dict[str, dict[str, float]]:
    """Return the :func:`reference_scores` of all metrics from a JSON file; compute and write it if it is missing."""
    if not path.is_file():
        content = json.dumps(reference_scores(test, train, METRICS, device=device), indent=2)
        write_together(path.parent, {path.name: content + "\n"})
    found: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _constant(bias: Tensor) -> Callable[[Sequence[int]], Tensor]:
    """Return a predictor that returns the same map for every image."""
    return lambda indices: bias.expand(len(indices), -1, -1)


def _by_fold(maps: Tensor, fold_of: Sequence[int]) -> Callable[[Sequence[int]], Tensor]:
    return lambda indices: maps[[fold_of[i] for i in indices]]


def below_centre(scores: Mapping[str, float], references: Mapping[str, Mapping[str, float]]) -> str:
    """Return a sentence on the metrics in which a model is worse than the centre bias; empty if there are none."""
    floor = references.get(CENTRE, {})
    worse = [
        f"{name} ({value:.4f}, {CENTRE} {floor[name]:.4f})"
        for name, value in scores.items()
        if name in floor and (value > floor[name] if name in LOWER_IS_BETTER else value < floor[name])
    ]
    return f"worse than the centre bias in {', '.join(worse)}: a map without the image does better" if worse else ""
