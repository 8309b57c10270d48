"""The constraints on a learner's steps: GEM's memory, A-GEM's, DCL's references, or memory and references together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd as _Convolution

from congruency.backends.base import Basis
from congruency.constraints.base import ConstraintSource
from congruency.constraints.memory import Episode, EpisodicMemory, Policy, Stacks, joined
from congruency.constraints.references import References
from congruency.continual.config import LearnerConfig
from congruency.corrector import Corrector

_BRANCHES = 4  # of the CUDA graph of a memory's gradients: more gain little


class StepConstraints:
    """A corrector of the learner's optimizer, and its constraint sources; each source has its own margin.

    - ``"dcl"``: Direction Concentration Learning in the paper's form; the references restart with every task.
    - ``"gem"`` (Lopez-Paz and Ranzato, NeurIPS 2017): one constraint per past task.
    - ``"dcl_memory"``: both in one quadratic program (``eqn:constraints_conn``).
    - ``"agem"`` (Chaudhry et al., ICLR 2019): one constraint, from a new sample of the memory at every step.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, config: LearnerConfig, *, memory: int,
        policy: Policy, chunk: int | None, seed: int,
    ) -> None:  # fmt: skip
        self._seed = seed
        self.memory = self.references = None
        if config.has_episodes:
            kind = (
                SampledMemory if config.constrained_by == "agem"
                else LoopedMemory if any(isinstance(layer, _Convolution) for layer in model.modules())
                else EpisodicMemory
            )  # fmt: skip
            self.memory = kind(model, size=memory, policy=policy, margin=config.memory_margin, chunk=chunk)
        if config.has_references:
            self.references = References(
                config.references, window=config.window, offset=config.offset, mode=config.mode,
                margin=config.reference_margin, floor=None,
            )  # fmt: skip
        sources: list[ConstraintSource] = [each for each in (self.memory, self.references) if each is not None]
        self.corrector = Corrector(optimizer, constraints=sources, trigger=config.trigger)

    def begin(self, task: int, mask: Tensor | None) -> None:
        """Start a task."""
        if self.references is not None:
            self.references.reset()
        if isinstance(self.memory, SampledMemory):
            if mask is not None:
                raise ValueError("A-GEM draws from all tasks at once, which needs tasks that share their classes")
            self.memory.seed(self._seed, task)

    def observe(self, inputs: Tensor, labels: Tensor, task: int, mask: Tensor | None) -> None:
        """Keep samples of the present task for the constraints of later ones."""
        if self.memory is not None:
            self.memory.observe(inputs, labels, task, mask)

    def agreement(self) -> Tensor | None:
        """Mean cosine of the last update with the memory's gradients."""
        past = 0 if self.memory is None else self.memory.active
        return self.corrector.stats.corrected_congruency[:past].nanmean() if past else None


class SampledMemory(EpisodicMemory):
    """One constraint: the gradient on ``size`` samples, drawn with replacement from all past tasks."""

    def seed(self, seed: int, task: int) -> None:
        self._generator = np.random.RandomState([seed, task])

    @property
    def capacity(self) -> int:
        return min(1, len(self.past))

    @property
    def active(self) -> int:
        return self.capacity

    def _make_stacks(self, episodes: Sequence[Episode]) -> Stacks:
        return [([0], joined(torch.cat, episodes))] if episodes else []

    def _batched(self, stack: Episode) -> dict[str, Tensor]:
        drawn = torch.from_numpy(self._generator.randint(len(stack.inputs), size=self.size)).to(stack.inputs.device)
        found = self._room(1)
        self._one_by_one([Episode(stack.inputs[drawn], stack.targets[drawn], None)], found)
        return found


class LoopedMemory(EpisodicMemory):
    """The gradients of the past tasks one after the other, for networks with convolutions.

    In one batched call the gradients by shared weights become grouped convolutions, which are slow. On a GPU all passes
    of a step are replayed as one CUDA graph, captured once per task. The tasks are dealt out to branches of the graph
    that run at the same time: the kernels of a small memory leave most of a GPU idle.
    """

    _key: tuple[int, ...] = ()
    _graph: torch.cuda.CUDAGraph | None = None
    _rooms = 0  # how many times the gradients have got memory of their own

    @property
    def layout(self) -> tuple[int, int]:
        return id(self), self._rooms

    def basis(self, parameter: Tensor) -> Basis:
        if parameter not in self._bases:
            self._bases[parameter] = super().basis(parameter)
        return self._bases[parameter]

    def gradients(self) -> dict[str, Tensor]:
        episodes = [self._episodes[task] for task in self.past]
        read = [*(p for p in self._network.parameters() if p.requires_grad), *self._network.buffers()]
        key = (int(self._network.training), *map(id, episodes), *map(Tensor.data_ptr, read))
        if key != self._key:  # a task has ended, or what a graph reads lies elsewhere
            self._key, self._kept, self._graph = key, episodes, None
            self._found, self._rooms = self._room(len(episodes)) if episodes else {}, self._rooms + 1
            self._bases: dict[Tensor, Basis] = {}
            self._one_by_one(episodes, self._found)
        elif not episodes or not episodes[0].inputs.is_cuda:
            self._one_by_one(episodes, self._found)
        else:
            if self._graph is None:
                self._graph = self._captured(episodes)
            self._graph.replay()
        return self._found

    def _captured(self, episodes: Sequence[Episode]) -> torch.cuda.CUDAGraph:
        """Capture the gradients of all past tasks in a CUDA graph, a share of the tasks in each of its branches."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(episodes[0].inputs.device):
            main, *branches = (torch.cuda.Stream() for _ in range(1 + min(_BRANCHES, len(episodes))))
            with torch.cuda.graph(graph, stream=main, capture_error_mode="thread_local"):
                for i, branch in enumerate(branches):
                    share = slice(i, None, len(branches))
                    branch.wait_stream(main)
                    with torch.cuda.stream(branch):
                        self._one_by_one(episodes[share], {name: found[share] for name, found in self._found.items()})
                for branch in branches:
                    main.wait_stream(branch)
        return graph
