"""Continual learners on any network, one run at a time."""

from congruency.continual.config import Kind, LearnerConfig
from congruency.continual.learners.base import IndependentLearner, JointLearner, Learner, MultimodalLearner, Setting
from congruency.continual.learners.ewc import EWCLearner, MASLearner
from congruency.continual.learners.icarl import ICaRLLearner
from congruency.continual.learners.lwf import LwFLearner
from congruency.continual.learners.replay import DERLearner, DERPPLearner, ERLearner

__all__ = [
    "LEARNERS", "DERLearner", "DERPPLearner", "ERLearner", "EWCLearner", "ICaRLLearner", "JointLearner", "Learner",
    "LwFLearner", "MASLearner", "Setting", "learner",
]  # fmt: skip

LEARNERS: dict[Kind, type[Learner]] = {
    "single": Learner,
    "independent": IndependentLearner,
    "multimodal": MultimodalLearner,
    "joint": JointLearner,
    "ewc": EWCLearner,
    "mas": MASLearner,
    "icarl": ICaRLLearner,
    "lwf": LwFLearner,
    "er": ERLearner,
    "der": DERLearner,
    "derpp": DERPPLearner,
}
"""The learner of each loss. The kinds that only constrain the steps (``"gem"``, ``"dcl"``, ...) are plain SGD."""


def learner(config: LearnerConfig, setting: Setting) -> Learner:
    """The learner of a configuration's ``kind``, under its constraints."""
    return LEARNERS[config.objective](config, setting)
