"""A page of pictures: where people looked, and what the networks of a study predict."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import torch

from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.prepared import Prepared
from congruency.saliency.models import load_model
from congruency.saliency.predict import example_page, saliency_of

__all__ = ["EXAMPLES", "EXAMPLES_CAPTION", "write_examples"]

EXAMPLES = "examples.jpg"
EXAMPLES_CAPTION = "Test images, where people looked, and what networks predict"
_NETWORKS = 5  # columns of the page


def write_examples(out: Path, networks: Mapping[str, Path], test_set: Prepared, count: int) -> Path:
    """Write a page of evenly spaced test images: where people looked, and the maps of the first few networks.

    ``networks`` are files of trained networks by the title of their column.
    """
    chosen = torch.linspace(0, len(test_set.data) - 1, min(count, len(test_set.data))).round().long().tolist()
    images = [test_set.images[i] for i in chosen]
    height, width = test_set.images.shape[-2:]
    viewings = [test_set.data[i] for i in chosen]
    counts = fixation_counts(
        [v.points for v in viewings], (height, width), frames=[(v.height, v.width) for v in viewings]
    )
    frame = viewings[0].width
    people = "15 people" if len(viewings[0].fixations) == 15 else "people"
    columns = {people: list(density(counts, test_set.data.sigma(frame) * width / frame))}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for title, path in islice(networks.items(), _NETWORKS):
        model = load_model(path, device)
        columns[title] = [saliency_of(model, image, max(height, width)).cpu() for image in images]
    return example_page(images, columns, out / EXAMPLES)
