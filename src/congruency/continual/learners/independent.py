"""A network of its own for each task: nothing is forgotten, nothing is shared."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from congruency.continual.learners.base import Learner, masked

__all__ = ["Independent"]


class Independent(Learner):
    """As many networks as tasks, each with its share of the hidden units, so that all together are as large as one."""

    def build(self) -> nn.Module:
        share = 1.0 / self.setting.tasks
        return nn.ModuleList([self.setting.make(share) for _ in range(self.setting.tasks)])

    def outputs(self, inputs: Tensor, task: int) -> Tensor:
        outputs: Tensor = self.model[task](inputs)  # type: ignore[index]
        return outputs

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(masked(self.outputs(inputs, self.task), self.mask), labels)
