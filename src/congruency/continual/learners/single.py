"""One network for all tasks and nothing against forgetting."""

from __future__ import annotations

from congruency.continual.learners.base import Learner

__all__ = ["Single"]


class Single(Learner):
    """Plain SGD on one task after the other: the floor."""
