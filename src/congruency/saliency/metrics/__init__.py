"""Metrics of saliency maps against human fixations.

Maps are (B, H, W), or (H, W) for one image; fixations and negatives are **counts**, the number of fixations on each
pixel. Every function returns one value per image, on the device of its inputs, without synchronising.

Undefined values are treated the same in all metrics. An image without ground truth (no fixations, or a constant density
for CC) has the score nan; the classes exclude it from their means and count it (``left_out``). A constant saliency map
scores chance: NSS 0, CC 0, AUC 1/2. A saliency map with a nan, or a negative count, has the score nan and is not
excluded from the means, since that would hide the failure.
"""

from congruency.saliency.metrics.accumulate import (
    CC,
    KL,
    NSS,
    SIM,
    AUCBorji,
    AUCJudd,
    AUCShuffled,
    ImageMean,
    InformationGain,
)
from congruency.saliency.metrics.checks import Protocol
from congruency.saliency.metrics.density import cc, information_gain, kl, nss, sim
from congruency.saliency.metrics.roc import auc_borji, auc_judd, auc_shuffled, shuffled_negatives

__all__ = [
    "CC", "KL", "NSS", "SIM", "AUCBorji", "AUCJudd", "AUCShuffled", "ImageMean", "InformationGain", "Protocol",
    "auc_borji", "auc_judd", "auc_shuffled", "cc", "information_gain", "kl", "nss", "shuffled_negatives", "sim",
]  # fmt: skip
