"""Measure how far gradients agree with the way training has come, and correct those that disagree."""

from congruency._version import __version__
from congruency.bound import lower_bound
from congruency.cone import project, solve_dual
from congruency.corrector import Corrector, Stats
from congruency.dcl import DCL
from congruency.gem import GEM
from congruency.measure import congruency
from congruency.memory import EpisodicMemory
from congruency.meter import CongruencyMeter
from congruency.modules import head
from congruency.pairwise import pairwise_congruency, pairwise_similarity
from congruency.references import References
from congruency.sources import Directions, Source

__all__ = [
    "DCL",
    "GEM",
    "CongruencyMeter",
    "Corrector",
    "Directions",
    "EpisodicMemory",
    "References",
    "Source",
    "Stats",
    "__version__",
    "congruency",
    "head",
    "lower_bound",
    "pairwise_congruency",
    "pairwise_similarity",
    "project",
    "solve_dual",
]
