"""Continual learners, one a file, one run at a time, on any network."""

from congruency.continual.learners.agem import AveragedMemory
from congruency.continual.learners.base import Learner, Setting
from congruency.continual.learners.dcl import Concentrated
from congruency.continual.learners.dcl_memory import ConcentratedMemory
from congruency.continual.learners.ewc import Consolidated
from congruency.continual.learners.gem import GradientMemory
from congruency.continual.learners.icarl import ExemplarMeans
from congruency.continual.learners.independent import Independent
from congruency.continual.learners.multimodal import Multimodal
from congruency.continual.learners.single import Single
from congruency.continual.methods import Kind, Method

__all__ = ["LEARNERS", "Learner", "Setting", "learner"]

LEARNERS: dict[Kind, type[Learner]] = {
    "single": Single,
    "independent": Independent,
    "multimodal": Multimodal,
    "ewc": Consolidated,
    "icarl": ExemplarMeans,
    "gem": GradientMemory,
    "agem": AveragedMemory,
    "dcl": Concentrated,
    "dcl_memory": ConcentratedMemory,
}


def learner(method: Method, setting: Setting) -> Learner:
    """The learner for a method."""
    return LEARNERS[method.kind](method, setting)
