"""Continual learning: streams of tasks, the learners of the paper's tables, their scores, many seeds at once."""

from congruency.constraints.memory import EpisodicMemory
from congruency.continual.batched_runner import run_together
from congruency.continual.config import LearnerConfig
from congruency.continual.learners import (
    LEARNERS,
    DERLearner,
    DERPPLearner,
    ERLearner,
    EWCLearner,
    ICaRLLearner,
    JointLearner,
    Learner,
    LwFLearner,
    MASLearner,
    Setting,
    learner,
)  # fmt: skip
from congruency.continual.networks import NarrowResNet18, mlp
from congruency.continual.runner import run
from congruency.continual.scores import Outcome, Scores, scores
from congruency.continual.streams import STREAMS, Scenario, Stream, Task, incremental, permutations, rotations

__all__ = [
    "LEARNERS", "STREAMS", "DERLearner", "DERPPLearner", "ERLearner", "EWCLearner", "EpisodicMemory", "ICaRLLearner",
    "JointLearner", "Learner", "LearnerConfig", "LwFLearner", "MASLearner", "NarrowResNet18", "Outcome", "Scenario",
    "Scores", "Setting", "Stream", "Task", "incremental", "learner", "mlp", "permutations", "rotations", "run",
    "run_together", "scores",
]  # fmt: skip
