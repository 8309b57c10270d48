"""Direction Concentration Learning within each task."""

from __future__ import annotations

from torch import Tensor

from congruency.continual.learners.base import Learner, Setting
from congruency.continual.methods import Method
from congruency.dcl import DCL

__all__ = ["Concentrated"]


class Concentrated(Learner):
    """DCL alone; references are forgotten when a task begins: accumulation takes place within an episode."""

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        self.corrector = DCL(
            self.optimizer, references=method.references, window=method.window, offset=method.offset, mode=method.mode,
            margin=method.reference_margin, trigger=method.trigger,
        )  # fmt: skip

    def begin(self, task: int, mask: Tensor | None) -> None:
        super().begin(task, mask)
        self.corrector.reset()
