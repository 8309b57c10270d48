"""Measure how well each gradient agrees with the gradient accumulated so far, and correct those that disagree."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from congruency._version import __version__
from congruency.backends.base import Basis
from congruency.cautious import Cautious
from congruency.cone import project, solve_dual
from congruency.constraints import ConstraintSource, Descent, Directions, EpisodicMemory, References
from congruency.corrector import Corrector, Stats
from congruency.dcl import DCL
from congruency.gem import GEM
from congruency.measure import (
    CongruencyMeter,
    Measurement,
    congruency,
    lower_bound,
    pairwise_congruency,
    pairwise_similarity,
)
from congruency.modules import head

__all__ = [
    "DCL",
    "GEM",
    "Basis",
    "Cautious",
    "CongruencyMeter",
    "ConstraintSource",
    "Corrector",
    "Descent",
    "Directions",
    "EpisodicMemory",
    "Measurement",
    "References",
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


def __getattr__(name: str) -> _ModuleType:
    if name == "integrations":  # on first use, so that torch stays the only import
        return _import_module("congruency.integrations")
    raise AttributeError(f"module 'congruency' has no attribute {name!r}")
