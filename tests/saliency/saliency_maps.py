"""Random saliency maps and fixations, and the obvious slow scores they are compared with."""

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
    """Every positive against every negative: won, or half for a tie."""
    won = (positive[:, None] > negative[None, :]).mean()
    return won + (positive[:, None] == negative[None, :]).mean() / 2


def repeated(saliency, counts):
    """The value at each fixation, repeated for several on one pixel."""
    return np.repeat(saliency.ravel(), counts.ravel().astype(int))


def area(heights, places):
    """Under straight lines."""
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
