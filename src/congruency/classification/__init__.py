"""Image classification: networks, batches and the paper's recipes."""

from congruency.classification.augmentation import AUGMENTATIONS, Augmentation
from congruency.classification.batches import IGNORED, Batches
from congruency.classification.models import create, normalisation
from congruency.classification.plan import Plan
from congruency.classification.recipes import RECIPES, Recipe, find
from congruency.classification.streamed import StreamedBatches
from congruency.classification.task import Setup, build, evaluate, recipe_sets, recipe_setup

__all__ = [
    "AUGMENTATIONS",
    "IGNORED",
    "RECIPES",
    "Augmentation",
    "Batches",
    "Plan",
    "Recipe",
    "Setup",
    "StreamedBatches",
    "build",
    "create",
    "evaluate",
    "find",
    "normalisation",
    "recipe_sets",
    "recipe_setup",
]
