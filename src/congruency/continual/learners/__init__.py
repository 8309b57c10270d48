"""Continual learners on any network, one run at a time."""

from congruency.continual.config import Kind, LearnerConfig
from congruency.continual.learners.base import IndependentLearner, Learner, MultimodalLearner, Setting
from congruency.continual.learners.constrained import AGEMLearner, DCLGEMLearner, DCLLearner, GEMLearner
from congruency.continual.learners.ewc import EWCLearner
from congruency.continual.learners.icarl import ICaRLLearner

__all__ = ["LEARNERS", "Learner", "Setting", "learner"]

LEARNERS: dict[Kind, type[Learner]] = {
    "single": Learner,
    "independent": IndependentLearner,
    "multimodal": MultimodalLearner,
    "ewc": EWCLearner,
    "icarl": ICaRLLearner,
    "gem": GEMLearner,
    "agem": AGEMLearner,
    "dcl": DCLLearner,
    "dcl_memory": DCLGEMLearner,
}


def learner(config: LearnerConfig, setting: Setting) -> Learner:
    """The learner of a configuration's ``kind``."""
    return LEARNERS[config.kind](config, setting)
