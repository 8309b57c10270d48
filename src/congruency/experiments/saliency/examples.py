"""A page of pictures: where people looked, and what the networks of a study say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from congruency.experiments.saliency.experiment import saved_model
from congruency.experiments.saliency.recipes import Recipe
from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.prepared import Prepared
from congruency.saliency.predict import example_page, saliency_of

__all__ = ["EXAMPLES", "write_examples"]

EXAMPLES = "examples.jpg"
_COLUMNS = 5  # networks on the page, those without a method first


def write_examples(out: str | Path, recipes: Sequence[Recipe], seed: int, test_set: Prepared, count: int) -> Path:
    """A page of test images, evenly spaced: where people looked, and what networks of a seed say."""
    chosen = torch.linspace(0, len(test_set.data) - 1, min(count, len(test_set.data))).round().long().tolist()
    images = [test_set.images[i] for i in chosen]
    height, width = test_set.images.shape[-2:]
    viewings = [test_set.data[i] for i in chosen]
    counts = fixation_counts(
        [v.points for v in viewings], (height, width), frames=[(v.height, v.width) for v in viewings]
    )
    frame = viewings[0].width
    columns = {
        "15 people" if len(viewings[0].fixations) == 15 else "people": list(
            density(counts, test_set.data.sigma(frame) * width / frame)
        )
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for recipe in sorted(recipes, key=lambda recipe: recipe.method != "baseline")[:_COLUMNS]:
        model = saved_model(out, recipe, seed, device)
        columns[recipe.name] = [saliency_of(model, image, max(height, width)).cpu() for image in images]
    return example_page(images, columns, Path(out) / EXAMPLES)
