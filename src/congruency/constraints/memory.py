"""Episodic memory: samples of past tasks, whose gradients are constraints that a step must not violate (GEM)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from congruency._validate import check_choice, check_margin, check_parts, warn
from congruency.backends.base import Basis
from congruency.backends.torch import same_layout
from congruency.constraints.base import ConstraintSource, ascent_sign
from congruency.distributed import local

__all__ = ["EpisodicMemory", "Loss", "Policy"]

_EMPTY_STEPS = 1000

Loss = Callable[[Tensor, Tensor], Tensor]
Policy = Literal["ring", "first"]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # not their subclasses, which may do otherwise

_LARGE = 1 << 24  # samples times weights of a task, from which on a CPU gains nothing by batching tasks


@dataclass(frozen=True)
class Episode:
    """What is kept of one task."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None


Stacks = list[tuple[list[int], Episode]]
"""Memories of one shape in one, with the tasks as first dimension, and their places among all."""


class EpisodicMemory(ConstraintSource):
    """One constraint per past task: the gradient of the mean loss on its stored samples.

    The gradients of all past tasks are computed in one batched call (:mod:`torch.func`), or in one pass per task if
    that is as fast. Batch normalization treats each task's memory as a batch of its own, and its running averages do
    not change. With ``DistributedDataParallel`` every process has a memory of the samples it has seen, and a
    constraint is the mean of the gradients of all processes.

    Args:
        model: The model being trained; constraints cover its parameters.
        loss: ``loss(outputs, targets)``, a scalar. Default: the mean cross entropy.
        size: Number of samples kept per task.
        policy: Which samples to keep: the last seen (``"ring"``) or the ``"first"``.
        margin: Lower bound of the multipliers, GEM's memory strength.
        chunk: Number of tasks per batched call; use it if the gradients of all tasks at once need too much memory.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> memory = congruency.EpisodicMemory(model, size=20, margin=0.5)
        >>> corrector = congruency.Corrector(optimizer, constraints=[memory], trigger="violated")
        >>> for task in range(2):
        ...     inputs, targets = torch.randn(20, 4), torch.randint(2, (20,))
        ...     memory.observe(inputs, targets, task)
        ...     optimizer.zero_grad()
        ...     torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        ...     optimizer.step()  # in the second task, not against the first
        >>> memory.past
        [0]
    """

    def __init__(
        self, model: nn.Module, loss: Loss | None = None, *, size: int = 256, policy: Policy = "ring",
        margin: float = 0.0, chunk: int | None = None,
    ) -> None:  # fmt: skip
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size must be a positive whole number of samples per task, got {size!r}")
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be the torch.nn.Module being trained, got a {type(model).__name__}")
        if loss is not None and not callable(loss):
            raise TypeError(f"loss must be a function loss(outputs, targets) or None, got {loss!r:.40}")
        check_choice("policy", policy, get_args(Policy))
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
            raise ValueError(f"chunk must be a positive whole number of tasks or None, got {chunk!r}")
        self.model, self.size, self.policy, self.chunk = model, size, policy, chunk
        self.loss: Loss = functional.cross_entropy if loss is None else loss
        self._default_loss = loss is None
        self.margin = check_margin(margin)
        self._network: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        _refuse_shards(self._network)
        self._episodes: dict[int, Episode] = {}
        self._current: int | None = None
        self._gradients: dict[Tensor, Tensor] = {}  # by parameter; layers may be replaced between steps
        self._empty = 0  # steps without any sample
        self._stacked: tuple[list[Episode], Stacks] = ([], [])
        self._batches = True  # whether torch.func.vmap takes the model and the loss

    def observe(self, inputs: Tensor, targets: Tensor, task: int, mask: Tensor | None = None) -> None:
        """Store samples of the current task; constraints come from the other tasks.

        Call it with every batch. If you choose the samples yourself and add them at the end of a task, call it without
        samples (``inputs[:0], targets[:0]``) when the next task begins: only then does the previous task constrain.

        Args:
            inputs: (n, ...).
            targets: (n, ...).
            task: A number or name that identifies the task.
            mask: Added to the model's outputs before the loss: -inf for classes that the task does not have.
        """
        if not isinstance(task, (int, float, str)):  # a tensor would count as another task at every call
            raise TypeError(f"task must be a number or a name, got a {type(task).__name__}; pass int(task)")
        for name, samples in (("inputs", inputs), ("targets", targets)):
            if not isinstance(samples, Tensor):
                raise TypeError(f"{name} must be a tensor, got a {type(samples).__name__}")
        if len(inputs) != len(targets):
            raise ValueError(f"got {len(inputs)} inputs and {len(targets)} targets; give one target for each input")
        old = self._episodes.get(task)
        if old is None:
            if self._default_loss:
                _refuse_real_targets(targets)
        elif len(inputs):
            _check_alike(task, "inputs", old.inputs, inputs)
            _check_alike(task, "targets", old.targets, targets)
        self._current = task
        if not len(inputs) or (old is not None and self.policy == "first" and len(old.inputs) >= self.size):
            return
        before = (None, None) if old is None else (old.inputs, old.targets)
        kept = [self._joined(*pair) for pair in zip(before, (inputs, targets), strict=True)]
        self._episodes[task] = Episode(kept[0], kept[1], mask)

    def _joined(self, old: Tensor | None, new: Tensor) -> Tensor:
        """What is kept of old and new samples together, in memory of its own."""
        new = new.detach()
        if old is None or not len(old):  # by itself: with an empty tensor beside it, its memory format would be lost
            return (new[: self.size] if self.policy == "first" else new[-self.size :]).clone()
        if self.policy == "first":
            return torch.cat([old, new[: self.size - len(old)]])
        new = new[-self.size :]
        return torch.cat([old[max(0, len(old) + len(new) - self.size) :], new])

    @property
    def past(self) -> list[int]:
        """The tasks that constraints come from, in the order in which they were met."""
        return [task for task in self._episodes if task != self._current]

    def check_use(self, correct: str, blocks: str, optimizer: torch.optim.Optimizer) -> None:
        known = set(self._network.parameters())
        if known.isdisjoint(parameter for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError(
                "none of the optimizer's parameters is in the memory's model, so its gradients constrain nothing; "
                "pass the model that the optimizer trains"
            )
        # where the optimizer maximizes, an update is the gradient turned around
        self._ascent = ascent_sign(self, optimizer) if correct == "update" else 1.0

    @property
    def capacity(self) -> int:
        return len(self.past)

    @property
    def active(self) -> int:
        return len(self.past)

    def combination(self) -> Tensor:
        return self._ascent * torch.eye(self.active, dtype=torch.float64)

    def begin(self, parameters: Sequence[Tensor]) -> None:
        if not self._episodes:
            self._warn_of_no_samples()
        with torch.enable_grad():
            found = self.gradients()
        self._gradients = {p: found[name] for name, p in self._network.named_parameters() if name in found}
        if isinstance(self.model, DistributedDataParallel):
            for gradient in self._gradients.values():
                torch.distributed.all_reduce(gradient, group=self.model.process_group)
                gradient /= self.model.process_group.size()

    def finish(self, parameters: Sequence[Tensor], scale: Tensor | None, finite: Tensor | bool) -> None:
        self._gradients = {}

    def basis(self, parameter: Tensor) -> Basis:
        gradients = self._gradients.get(parameter)
        if gradients is None:
            return Basis([torch.zeros_like(parameter)] * self.active)
        return Basis(list(gradients.unbind()))

    def gradients(self) -> dict[str, Tensor]:
        """The gradient of every past task's loss by name of parameter, (tasks, *shape).

        Those of one task lie in memory as the parameter does.
        """
        stacks = self._stacks()
        parts = [self._batched(stack) for _, stack in stacks]
        if len(parts) < 2:
            return parts[0] if parts else {}
        found = self._room(self.active)
        for (places, _), part in zip(stacks, parts, strict=True):
            order = torch.tensor(places)
            for name, gradients in part.items():
                found[name].index_copy_(0, order.to(gradients.device), gradients)
        return found

    def _stacks(self) -> Stacks:
        """What the gradients are computed from; made when a task has ended, not at every step."""
        episodes = [self._episodes[task] for task in self.past]
        if len(episodes) != len(self._stacked[0]) or not all(map(operator.is_, episodes, self._stacked[0])):
            self._stacked = (episodes, self._make_stacks(episodes))
        return self._stacked[1]

    def _make_stacks(self, episodes: Sequence[Episode]) -> Stacks:
        alike: dict[tuple[object, ...], list[int]] = {}
        for i, episode in enumerate(episodes):
            alike.setdefault((episode.inputs.shape, episode.targets.shape, episode.mask is None), []).append(i)
        return [(places, joined(torch.stack, [episodes[i] for i in places])) for places in alike.values()]

    def _batched(self, stack: Episode) -> dict[str, Tensor]:
        """The gradients of a stack of memories."""
        count, size, mask = len(stack.inputs), len(stack.targets[0]), stack.mask
        parameters = {name: p.detach() for name, p in self._network.named_parameters() if p.requires_grad}
        work = size * sum(p.numel() for p in parameters.values())
        if count == 1 or not self._batches or (stack.inputs.device.type == "cpu" and work >= _LARGE):
            found = self._room(count)
            masks = [None] * count if mask is None else mask
            self._one_by_one([Episode(*parts) for parts in zip(stack.inputs, stack.targets, masks, strict=True)], found)
            return found
        buffers = {  # each task's own, since a forward pass may write to them
            name: buffer.expand(count, *buffer.shape).clone() for name, buffer in self._network.named_buffers()
        }
        batched = vmap(
            grad(self._loss_of), in_dims=(None, 0, 0, 0, None if mask is None else 0), chunk_size=self.chunk,
            randomness="different",
        )  # fmt: skip
        try:
            gradients = batched(parameters, buffers, stack.inputs, stack.targets, mask)
            return {name: _laid_out_as(parameters[name], of_tasks) for name, of_tasks in gradients.items()}
        except RuntimeError as error:
            if not str(error).startswith("vmap"):
                raise
            self._batches = False  # forward() or the loss calls .item(), or branches on the values of its inputs
            return self._batched(stack)

    def _room(self, tasks: int) -> dict[str, Tensor]:
        """Memory for the gradients of so many tasks, not written yet."""
        named = self._network.named_parameters()
        return {name: _stack_like(p, tasks) for name, p in named if p.requires_grad}

    def _one_by_one(self, episodes: Sequence[Episode], found: Mapping[str, Tensor]) -> None:
        """Write the gradient of every task's loss into ``found``, one task after the other."""
        if not found:  # a frozen model
            return
        parameters = {
            name: p.detach().requires_grad_() for name, p in self._network.named_parameters() if p.requires_grad
        }
        wanted = list(parameters.values())
        with _written_buffers(self._network) as written:
            for i, episode in enumerate(episodes):
                buffers = {name: buffer.clone() for name, buffer in written.items()}
                loss = self._loss_of(parameters, buffers, episode.inputs, episode.targets, episode.mask)
                gradients = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
                torch._foreach_copy_([of_tasks[i] for of_tasks in found.values()], gradients)

    def _loss_of(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, targets: Tensor,
        mask: Tensor | None,
    ) -> Tensor:  # fmt: skip
        outputs = functional_call(self._network, (parameters, buffers), (inputs,))
        loss = self.loss(outputs if mask is None else outputs + mask, targets)
        if loss.ndim:
            raise ValueError(f"loss must return one number, got shape {tuple(loss.shape)}; return its mean")
        return loss

    def _warn_of_no_samples(self) -> None:
        self._empty += 1
        if self._empty == _EMPTY_STEPS:
            warn(
                f"the memory holds no samples after {_EMPTY_STEPS} steps, so nothing was corrected; call "
                "observe(inputs, targets, task) with every batch, with a different value of task for every task"
            )

    def _progress(self) -> str:
        return f"{len(self._episodes)} task{'' if len(self._episodes) == 1 else 's'}"

    def reset(self) -> None:
        self._episodes, self._current, self._gradients, self._stacked = {}, None, {}, ([], [])

    def settings(self) -> dict[str, Any]:
        return {"source": "memory", "margin": self.margin, "size": self.size, "policy": self.policy}

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, Any]:
        return {
            "current": self._current,
            "episodes": [
                {"task": task, "inputs": e.inputs, "targets": e.targets, "mask": e.mask}
                for task, e in self._episodes.items()
            ],
        }

    def check_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        check_parts(state, {"current": (int, float, str, type(None)), "episodes": (list, tuple)}, "a state of a memory")
        for episode in state["episodes"]:
            parts: dict[str, type | tuple[type, ...]] = {
                "task": (int, float, str),
                "inputs": Tensor,
                "targets": Tensor,
                "mask": (Tensor, type(None)),
            }
            check_parts(episode, parts, "a state of a memory (an episode)")
            if not episode["inputs"].ndim or episode["inputs"].shape[:1] != episode["targets"].shape[:1]:
                raise ValueError(f"the state's inputs and targets of task {episode['task']} differ in number")
            first = state["episodes"][0]
            for kind in ("inputs", "targets"):
                if _sample(episode[kind]) != _sample(first[kind]):
                    raise ValueError(
                        f"the state's {kind} of task {episode['task']} are {_sample(episode[kind])}, and those of task "
                        f"{first['task']} {_sample(first[kind])}; they are not from the same stream"
                    )
            if len(episode["inputs"]) > self.size:
                raise ValueError(
                    f"the state holds {len(episode['inputs'])} samples of task {episode['task']}, "
                    f"but this memory keeps {self.size}"
                )

    def load_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        device = parameters[0].device

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        self._current = state["current"]
        self._episodes = {
            e["task"]: Episode(e["inputs"].to(device), e["targets"].to(device), moved(e["mask"]))
            for e in state["episodes"]
        }


def joined(join: Callable[[list[Tensor]], Tensor], episodes: Sequence[Episode]) -> Episode:
    """Several memories as one, by ``torch.stack`` or ``torch.cat``; they all have masks or none has."""
    masks = [e.mask for e in episodes if e.mask is not None]
    inputs, targets = join([e.inputs for e in episodes]), join([e.targets for e in episodes])
    return Episode(inputs, targets, join(masks) if masks else None)


@contextmanager
def _written_buffers(network: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The buffers that a forward pass may write: within this context no running averages of batch normalization.

    In training they are not read either, and to copy and update them is a quarter of a pass's operations.
    """
    norms = [
        layer for layer in network.modules()
        if isinstance(layer, _BATCH_NORMS) and type(layer) in _BATCH_NORMS
        and layer.training and layer.track_running_stats
    ]  # fmt: skip
    averages = {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield {name: buffer for name, buffer in network.named_buffers() if id(buffer) not in averages}
    finally:
        for norm in norms:
            norm.track_running_stats = True


def _stack_like(parameter: Tensor, count: int) -> Tensor:
    """Memory for (count, *shape), each of which lies as the parameter does: in the ``channels_last`` format, say."""
    strides = torch.empty_like(parameter, device="meta").stride()  # dense, in the parameter's order of dimensions
    size = (count, *parameter.shape), (parameter.numel(), *strides)
    return torch.empty_strided(*size, dtype=parameter.dtype, device=parameter.device)


def _laid_out_as(parameter: Tensor, stack: Tensor) -> Tensor:
    """A stack of tensors (count, *shape), copied unless each of them lies in memory as the parameter does."""
    return stack if same_layout([parameter, stack[0]]) else _stack_like(parameter, len(stack)).copy_(stack)


def _sample(samples: Tensor) -> str:
    """What one sample is, in words."""
    return f"{samples.dtype} in {samples.ndim - 1} dimensions"  # the sizes may differ from task to task


def _refuse_real_targets(targets: Tensor) -> None:
    """Refuse targets that the cross entropy, which nobody chose, would take for probabilities, and train on nothing."""
    if not targets.is_floating_point() or not len(targets):
        return
    if targets.ndim < 2 or targets.shape[1] < 2 or bool(((targets.sum(1) - 1).abs() > 0.01).any()):
        raise ValueError(
            "targets are real numbers but not class probabilities, and the default loss is the cross entropy; pass "
            "another loss, such as loss=torch.nn.functional.mse_loss"
        )


def _check_alike(task: object, kind: str, old: Tensor, new: Tensor) -> None:
    if new.shape[1:] != old.shape[1:]:
        raise ValueError(
            f"{kind} of task {task} had shape {tuple(old.shape[1:])} per sample before and have {tuple(new.shape[1:])} "
            "now; the memory of a task is one batch: pad, crop or resize them"
        )


def _refuse_shards(network: nn.Module) -> None:
    for name, parameter in network.named_parameters():
        if local(parameter) is not parameter:
            raise TypeError(
                f"{name} is sharded (DTensor): the gradients of a memory need whole parameters; use DDP, or keep the "
                "model on one device"
            )
