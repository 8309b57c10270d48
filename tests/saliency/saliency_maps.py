"""Random saliency maps and fixations, and slow reference implementations of the metrics."""

import numpy as np
import torch


def problem(images=3, height=12, width=17, fixations=9, seed=0, levels=None, dtype=torch.float32):
    """Saliency and fixation counts; with ``levels`` the saliency is quantised, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.rand(images, height, width, generator=generator, dtype=torch.float64)
    if levels:
        saliency = (saliency * levels).floor() / levels
    counts = torch.zeros(images, height * width)
    places = torch.randint(height * width, (images, fixations), generator=generator)
    counts.scatter_add_(1, places, torch.ones(images, fixations))
    return saliency.to(dtype), counts.view(images, height, width).to(dtype)


def pairs_auc(positive, negative):
    """The area over all pairs of positives and negatives; ties count half."""
    won = (positive[:, None] > negative[None, :]).mean()
    return won + (positive[:, None] == negative[None, :]).mean() / 2


def repeated(saliency, counts):
    """The value at each fixation, repeated for several on one pixel."""
    return np.repeat(saliency.ravel(), counts.ravel().astype(int))


def area(heights, places):
    """The trapezoidal area."""
    heights, places = np.array(heights), np.array(places)
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(places)).sum())


def judd_by_thresholds(saliency, fixated):
    """Area under lines through the curve's points at the values of the fixated pixels, one threshold at a time."""
    values = np.sort(saliency[fixated])[::-1]
    true, false = [0.0], [0.0]
    for i, threshold in enumerate(values, start=1):
        reached = (saliency >= threshold).sum()
        true.append(i / len(values))
        false.append((reached - i) / (saliency.size - len(values)))
    return area([*true, 1.0], [*false, 1.0])


def stepped_auc(positive, negative, thresholds):
    """Area under lines through the curve's points at given thresholds, one at a time."""
    thresholds = sorted(thresholds, reverse=True)
    true = [0.0, *((positive >= t).mean() for t in thresholds), 1.0]
    false = [0.0, *((negative >= t).mean() for t in thresholds), 1.0]
    return area(true, false)


def salicons_shuffled(saliency, fixations, negatives, step=0.01):
    """SALICON's shuffled AUC of one image: every negative off the image's own fixations, one threshold at a time."""
    saliency = (saliency - saliency.min()) / (saliency.max() - saliency.min())
    positive = repeated(saliency, fixations)
    negative = repeated(saliency, np.where(fixations > 0, 0, negatives))
    return stepped_auc(positive, negative, np.arange(0, max(positive.max(), negative.max()), step))


def centre_biased(images, height=60, width=80, fixations=30, seed=0):
    """Fixation counts with a pure centre bias, and a saliency map of only that bias."""
    generator = torch.Generator().manual_seed(seed)
    middle, spread = torch.tensor([height, width]) / 2, torch.tensor([height, width]) / 8
    places = (middle + spread * torch.randn(images, fixations, 2, generator=generator)).floor().long()
    places = places.clamp(torch.zeros(2, dtype=torch.long), torch.tensor([height, width]) - 1)
    counts = torch.zeros(images, height * width)
    counts.scatter_add_(1, places[..., 0] * width + places[..., 1], torch.ones(images, fixations))
    rows, columns = (
        (torch.arange(height) + 0.5 - middle[0]) / spread[0],
        (torch.arange(width) + 0.5 - middle[1]) / spread[1],
    )
    bias = torch.exp(-0.5 * (rows[:, None] ** 2 + columns**2))
    return bias.expand(images, -1, -1), counts.view(images, height, width)
