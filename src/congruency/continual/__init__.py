"""Continual learning: streams of tasks, the methods of the paper's tables, their scores, many seeds at once."""

from congruency.constraints.memory import EpisodicMemory
from congruency.continual.learners import LEARNERS, Learner, Setting, learner
from congruency.continual.methods import Method
from congruency.continual.networks import NarrowResNet18, mlp
from congruency.continual.outcome import Outcome
from congruency.continual.running import run
from congruency.continual.scores import Scores, scores
from congruency.continual.streams import STREAMS, Stream, Task, incremental, permutations, rotations
from congruency.continual.vectorised import run_together

__all__ = [
    "LEARNERS",
    "STREAMS",
    "EpisodicMemory",
    "Learner",
    "Method",
    "NarrowResNet18",
    "Outcome",
    "Scores",
    "Setting",
    "Stream",
    "Task",
    "incremental",
    "learner",
    "mlp",
    "permutations",
    "rotations",
    "run",
    "run_together",
    "scores",
]
