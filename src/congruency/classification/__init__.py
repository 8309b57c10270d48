"""Image classification: networks, augmentation, and batches on the device."""

from congruency.classification.augmentation import AUGMENTATIONS, Augmentation
from congruency.classification.batches import IGNORED, Batches, Plan
from congruency.classification.models import create, normalisation
from congruency.classification.streamed import StreamedBatches

__all__ = ["AUGMENTATIONS", "IGNORED", "Augmentation", "Batches", "Plan", "StreamedBatches", "create", "normalisation"]
