"""Constraint sources: what a corrected gradient or update has to agree with."""

from congruency.constraints.base import ConstraintSource
from congruency.constraints.descent import Descent
from congruency.constraints.directions import Directions
from congruency.constraints.memory import EpisodicMemory
from congruency.constraints.references import References

__all__ = ["ConstraintSource", "Descent", "Directions", "EpisodicMemory", "References"]
