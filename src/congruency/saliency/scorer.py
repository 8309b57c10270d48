"""Score a predictor's maps on a data set against the fixations of all viewers, at the images' original sizes."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from congruency.saliency.data.images import official_density
from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.preprocessing import Preprocessing
from congruency.saliency.data.viewings import SaliencyData, Viewing
from congruency.saliency.metrics import Protocol, auc_borji, auc_judd, auc_shuffled, cc, information_gain, kl, nss, sim

PAPER_METRICS = ("NSS", "sAUC", "AUC", "CC")
"""The metrics of the paper's saliency tables; its AUC has uniform negatives (Borji's)."""

METRICS = (*PAPER_METRICS, "AUC-Judd", "KL", "SIM", "IG")
"""All metrics; IG is the information gain over the fixations of the other images, in bits per fixation."""

DENSITY_METRICS = ("CC", "KL", "SIM")
"""The metrics that compare a map with a density."""

MIT_IMAGES = 10
"""Number of other images that provide the negatives of the MIT benchmark's shuffled AUC."""


@dataclass(frozen=True)
class GroundTruth:
    """The ground truth of a batch of images with equal size; maps are (B, H, W)."""

    indices: tuple[int, ...]  # indices of the images in the data set
    fixations: Tensor  # fixation counts
    density: Tensor  # blurred counts, or the official maps
    others: Tensor  # counts of all other images' fixations, rescaled to this size
    negatives: Tensor  # negatives of the shuffled AUC, which depend on the protocol
    sigma: float
    images: int  # number of other images with fixations
    protocol: Protocol = "exact"
    seed: int = 0
    given: Tensor | None = None  # (h, w): baseline of the information gain that replaces the default

    @property
    def baseline(self) -> Tensor:
        """The baseline of the information gain: (H, W) if it was given, else (B, H, W).

        The default is the blurred fixations of the other images, plus a uniform density with the weight of one image:
        without this floor, a fixation where the other images have none would be worth up to 52 bits.
        """
        if self.given is not None:
            height, width = self.fixations.shape[-2:]
            return resized(self.given.unsqueeze(0), (height, width))[0]
        return with_uniform(density(self.others, self.sigma), self.images)


def with_uniform(maps: Tensor, count: int) -> Tensor:
    """Mix (..., H, W) densities of ``count`` images (or viewers) with a uniform one of weight 1; each sums to 1."""
    total = maps.sum((-2, -1), keepdim=True)
    shares = maps / total.masked_fill(total == 0, 1.0)
    return (count * shares + 1 / (maps.shape[-2] * maps.shape[-1])) / (count + 1)


def ground_truths(
    data: SaliencyData,
    *,
    sigma: float | None = None,
    device: torch.device | str | None = None,
    batch: int = 25,
    protocol: Protocol = "exact",
    seed: int = 0,
    baseline: Tensor | None = None,
    official: bool = False,
) -> Iterator[GroundTruth]:
    """Iterate over the ground truth of a data set in batches of images with equal size.

    The negatives of the shuffled AUC are the fixations of all other images. For ``"salicon"`` they are the number of
    other images with a fixation on each pixel; for ``"mit"`` the fixations of (up to) ten other images with fixations,
    drawn per image from the seed and its index. See :func:`score` for the other arguments.
    """
    given = None if baseline is None else _checked(baseline).to(device)
    points = [v.points for v in data.viewings]
    frames = [(v.height, v.width) for v in data.viewings]
    seen = [i for i, some in enumerate(points) if len(some) > 0]
    for frame in dict.fromkeys(frames):
        members = [i for i, other in enumerate(frames) if other == frame]
        scaled = [
            some if size == frame else Preprocessing(frame).points(some, size)
            for some, size in zip(points, frames, strict=True)
        ]
        everyone = fixation_counts([_joined(scaled, seen)], frame, device=device)[0]
        marked = _images_on_pixels(scaled, frame, device, batch) if protocol == "salicon" else None
        width = data[members[0]].sigma if sigma is None else sigma
        for start in range(0, len(members), batch):
            indices = members[start : start + batch]
            counts = fixation_counts([points[i] for i in indices], frame, device=device)
            others = negatives = everyone - counts
            if marked is not None:
                negatives = marked - counts.sign()
            elif protocol == "mit":
                chosen = [_joined(scaled, _some_others(i, seen, seed)) for i in indices]
                negatives = fixation_counts(chosen, frame, device=device)
            truth = _official([data[i] for i in indices]).to(counts.device) if official else density(counts, width)
            yield GroundTruth(
                tuple(indices), counts, truth, others, negatives, width, max(0, len(seen) - 1),
                protocol, seed, given,
            )  # fmt: skip


def _official(viewings: Sequence[Viewing]) -> Tensor:
    """Return the official density of each image, all zero for an image without fixations."""
    return torch.stack([official_density(v) if len(v.points) else torch.zeros(v.height, v.width) for v in viewings])


def _checked(baseline: Tensor) -> Tensor:
    """Check that a baseline of the information gain is (h, w) and positive, and return it."""
    if baseline.ndim != 2 or not (torch.isfinite(baseline) & (baseline > 0)).all():
        raise ValueError(
            "the baseline of the information gain must be one map, positive at every pixel: a zero would be worth up "
            "to 52 bits; add a small constant (a picture's black is 0: store the values as .npy)"
        )
    return baseline


def _joined(points: Sequence[Tensor], indices: Sequence[int]) -> Tensor:
    """Concatenate the points of these images, (n, 2); n may be 0."""
    return torch.cat([torch.zeros(0, 2, dtype=torch.float64), *(points[i] for i in indices)])


def _images_on_pixels(
    points: Sequence[Tensor], frame: tuple[int, int], device: torch.device | str | None, batch: int
) -> Tensor:
    """Return the number of images with a fixation on each pixel, (H, W)."""
    total = torch.zeros(frame, device=device)
    for start in range(0, len(points), batch):
        total += fixation_counts(points[start : start + batch], frame, device=device).sign().sum(0)
    return total


def _some_others(index: int, seen: Sequence[int], seed: int) -> list[int]:
    """Return up to ten random other images with fixations."""
    drawn = random.Random(f"{seed} {index}").sample(seen, min(MIT_IMAGES + 1, len(seen)))
    return [i for i in drawn if i != index][:MIT_IMAGES]


def score_batch(saliency: Tensor, truth: GroundTruth, metrics: Sequence[str] = METRICS) -> dict[str, Tensor]:
    """Score (B, H, W) maps of the ground truth's size by its protocol; each metric is (B,)."""
    protocol, draws = truth.protocol, {"protocol": truth.protocol, "seed": truth.seed}
    functions: dict[str, Callable[[], Tensor]] = {
        "NSS": lambda: nss(saliency, truth.fixations, protocol=protocol),
        "sAUC": lambda: auc_shuffled(saliency, truth.fixations, truth.negatives, **draws),  # type: ignore[arg-type]
        "AUC": lambda: auc_borji(saliency, truth.fixations, **draws),  # type: ignore[arg-type]
        "CC": lambda: cc(saliency, truth.density),
        "AUC-Judd": lambda: auc_judd(saliency, truth.fixations, **draws),  # type: ignore[arg-type]
        "KL": lambda: kl(saliency, truth.density),
        "SIM": lambda: sim(saliency, truth.density, protocol=protocol),
        "IG": lambda: _gain(saliency, truth),
    }
    unknown = [name for name in metrics if name not in functions]
    if unknown:
        raise ValueError(f"there is no metric {unknown[0]!r}; choose among {', '.join(functions)}")
    return {name: functions[name]() for name in metrics}


def _gain(saliency: Tensor, truth: GroundTruth) -> Tensor:
    """Return the information gain (B,); for ``"mit"`` the default baseline keeps its minimum, the uniform floor."""
    if truth.protocol == "mit" and truth.given is None:
        from_zero = saliency - saliency.amin((-2, -1), keepdim=True)
        return information_gain(from_zero, truth.fixations.sign(), truth.baseline)
    return information_gain(saliency, truth.fixations, truth.baseline, protocol=truth.protocol)


def score(
    predict: Callable[[Sequence[int]], Tensor],
    data: SaliencyData,
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    sigma: float | None = None,
    device: torch.device | str | None = None,
    batch: int = 25,
    protocol: Protocol = "exact",
    seed: int = 0,
    baseline: Tensor | None = None,
    official: bool = False,
) -> dict[str, Tensor]:
    """Score every image, in the data set's order: metric -> (N,), nan for an image without fixations.

    ``predict`` takes image indices and returns (B, h, w) maps, which are resized to the images' size. ``sigma`` is the
    standard deviation of the density's blur in pixels (default: the data set's). ``protocol`` is passed to the metrics
    and also determines the shuffled negatives (:func:`ground_truths`); ``seed`` determines random draws. ``baseline``
    is a positive (h, w) map, such as the mean map of a training set, for the information gain of every image; the
    default is the density of the other images with a uniform floor (:attr:`GroundTruth.baseline`). With ``official``,
    CC, KL and SIM use the densities published with the data set.
    """
    values = {name: torch.full((len(data),), torch.nan, dtype=torch.float64, device=device) for name in metrics}
    official = official and any(name in DENSITY_METRICS for name in metrics)
    for truth in ground_truths(
        data, sigma=sigma, device=device, batch=batch, protocol=protocol, seed=seed, baseline=baseline,
        official=official,
    ):  # fmt: skip
        height, width = truth.fixations.shape[-2:]
        maps = resized(predict(truth.indices).to(truth.fixations.device), (height, width))
        places = torch.tensor(truth.indices, device=maps.device)
        for name, scores in score_batch(maps, truth, metrics).items():
            values[name].index_copy_(0, places, scores.double())
    return values


def mean_scores(values: dict[str, Tensor], data: SaliencyData) -> dict[str, float]:
    """Return the mean of each metric over the images with fixations; nan if a prediction has a nan."""
    seen = torch.tensor([len(v.points) > 0 for v in data.viewings])
    return {name: float(scores.cpu()[seen].mean()) for name, scores in values.items()}


def resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize (B, h, w) maps to (B, height, width): bilinear, with antialiasing."""
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    return functional.interpolate(
        maps.float().unsqueeze(1), size=size, mode="bilinear", align_corners=False, antialias=True
    ).squeeze(1)
