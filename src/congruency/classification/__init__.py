"""Image classification: networks, and batches that live on the device."""

from congruency.classification.augmentation import AUGMENTATIONS, Augmentation
from congruency.classification.batches import IGNORED, Batches
from congruency.classification.models import create, normalisation
from congruency.classification.plan import Plan
from congruency.classification.streamed import StreamedBatches

__all__ = [
    "AUGMENTATIONS",
    "IGNORED",
    "Augmentation",
    "Batches",
    "Plan",
    "StreamedBatches",
    "create",
    "normalisation",
]
