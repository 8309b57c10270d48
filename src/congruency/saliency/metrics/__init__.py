"""Scores of saliency maps against where people looked.

Maps are (B, H, W), or (H, W) for one image; fixations and negatives are **counts**: how many fixations fell on each
pixel. Every function gives one value an image, on the device of its inputs, without waiting for it.

One rule for the undefined, in all of them: what is wrong with the *truth* is nan, what is wrong with the *prediction*
is scored as what it says. An image without fixations, or with a density that is constant where a correlation is asked,
has no score: nan, left out of the classes' means and counted there (``left_out``). A constant saliency map says nothing
and scores chance: NSS 0, CC 0, AUC 1/2. A saliency map with a nan has the score nan, and is not left out of the means:
leaving it out would flatter the model that failed. A negative count is a mistake of the caller's, not a missing truth:
the score is nan and is not left out either.
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
from congruency.saliency.metrics.density import cc, information_gain, kl, nss, sim
from congruency.saliency.metrics.roc import Protocol, auc_borji, auc_judd, auc_shuffled, shuffled_negatives

__all__ = [
    "CC",
    "KL",
    "NSS",
    "SIM",
    "AUCBorji",
    "AUCJudd",
    "AUCShuffled",
    "ImageMean",
    "InformationGain",
    "Protocol",
    "auc_borji",
    "auc_judd",
    "auc_shuffled",
    "cc",
    "information_gain",
    "kl",
    "nss",
    "shuffled_negatives",
    "sim",
]
