"""Measure congruency of two vectors, of a run and between samples; the paper's lower bound."""

from congruency.measure.bound import BoundForm, lower_bound
from congruency.measure.congruency import congruency
from congruency.measure.meter import CongruencyMeter, Measurement, Reference
from congruency.measure.pairwise import pairwise_congruency, pairwise_similarity

__all__ = [
    "BoundForm",
    "CongruencyMeter",
    "Measurement",
    "Reference",
    "congruency",
    "lower_bound",
    "pairwise_congruency",
    "pairwise_similarity",
]
