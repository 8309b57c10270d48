"""One process of a run: network, optimizer, correction, measurements, and position in the data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from congruency.distributed import whole
from congruency.training.async_readback import AsyncReadback, EpochMeans, PendingStep, StepClock, seconds
from congruency.training.capture import Captured
from congruency.training.config import TrainingConfig
from congruency.training.correction import attach, check_length, float32, head_copy, parameters_of
from congruency.training.devices import compiled
from congruency.training.l2sp import L2SP
from congruency.training.state import load_model, load_optimizer, random_state, restore_random_state
from congruency.training.step_meter import StepMeter, measures
from congruency.training.task import Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric

_STATE_VERSION = 2


class TrainingRun:
    """The state of a run and its training step; the loop handles files. Steps are counted from 0."""

    def __init__(self, fabric: Fabric, task: Task, config: TrainingConfig) -> None:
        self.fabric, self.task, self.config = fabric, task, config
        self.step = self.epoch = self.batch = 0
        self.evaluation: dict[str, float] = {}
        if len(task.data) < 1:
            raise ValueError("the data has no batches; use a smaller batch, or more samples")
        self.steps_per_epoch = math.ceil(len(task.data) / config.accumulate)
        check_length(config, self.total_steps)
        self._set_up_model()
        self._set_up_optimizer()
        self._captured = self._capture() if config.capture else None
        self._names: list[str] = ["loss"]
        self._means = EpochMeans()
        self._corrected_before = 0
        self._pending: list[PendingStep] = []
        self._clock = StepClock(fabric.device)
        self._readback = AsyncReadback(delayed=fabric.device.type == "cuda")

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps of the whole run."""
        return self.steps_per_epoch * self.config.epochs

    @property
    def epoch_done(self) -> bool:
        """Whether all batches of this epoch have been used."""
        return self.batch >= len(self.task.data)

    @property
    def _alone(self) -> bool:
        """Whether there is one process without sharding, so that Fabric's wrappers are not needed."""
        return self.fabric.world_size == 1 and self.config.strategy != "fsdp"

    def _set_up_model(self) -> None:
        self.bare = self.task.model
        self._head_copy = head_copy(self.config.method, self.bare)
        if self._head_copy is not None:
            self._head_copy.to(self.fabric.device)
        self.bare.to(self.fabric.device)
        if self.config.channels_last:
            self.bare.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        network = compiled(self.bare, self.config.compile)
        self.model: Any = _Autocast(network, self.fabric.autocast) if self._alone else self.fabric.setup_module(network)

    def _set_up_optimizer(self) -> None:
        """Create the optimizer and register its hooks, which run in this order: meter, corrector, meter."""
        task, config = self.task, self.config
        self.optimizer = task.optimizer(self.bare)
        bare = self._alone and config.precision != "16"  # no gradient scaler
        self._stepper: Any = self.optimizer if bare else self.fabric.setup_optimizers(self.optimizer)
        self._backward: Callable[[Tensor], Any] = Tensor.backward if bare else self.fabric.backward
        self.step_meter: StepMeter | None = None
        if config.measure != "none":
            self.step_meter = StepMeter(parameters_of(self.bare, config.measure), guarded=config.precision == "16")
            self.step_meter.watch_before(self.optimizer)
        self.penalty: L2SP | None = None
        if config.method.name == "l2sp":
            strengths = {"strength": config.method.strength, "head_strength": config.method.head_strength}
            self.penalty = L2SP(self.bare, self.optimizer, **strengths)
        loss = task.loss if task.head_loss is None or config.method.scope == "all" else task.head_loss
        self.corrector, self._memory, self.cautious = attach(
            config.method, self.bare, self.optimizer, loss, layer_copy=self._head_copy, autocast=self.fabric.autocast
        )
        gradients = self.corrector is not None and self.corrector.target == "gradient"
        if self.step_meter is not None and gradients:
            self.step_meter.watch_after(self.optimizer)
        self.schedule = None if task.schedule is None else task.schedule(self.optimizer)

    def _capture(self) -> Captured:
        if not self._alone or self.fabric.device.type != "cuda":
            raise ValueError("capture needs one process on a GPU; leave it off")
        parameters = [parameter for parameter in self.bare.parameters() if parameter.requires_grad]
        return Captured(lambda inputs, targets: self._gradients(inputs, targets, 1, last=True), parameters)

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Return the remaining batches of this epoch."""
        self.model.train()
        self._clock.restart()
        return iter(self.task.data.train_batches(self.epoch, self.batch))

    def take_step(self, batches: Iterator[tuple[Any, Any]]) -> int:
        """Take one optimizer step without waiting for the device; return its number of samples."""
        lr = _learning_rate(self.optimizer)
        group = min(self.config.accumulate, len(self.task.data) - self.batch)
        data_seconds = 0.0
        samples = 0
        values: Tensor | None = None
        for i in range(group):
            started = time.perf_counter()
            inputs, targets = self._next(batches)
            data_seconds += time.perf_counter() - started
            samples += _count(inputs)
            if self._memory is not None and self.batch == 0:
                self._memory.remember(inputs, targets)
            if self._captured is not None:
                part = self._captured(inputs, targets)
            else:
                part = self._gradients(inputs, targets, group, last=i == group - 1)
            values = part if values is None else values + part
            self.batch += 1
        assert values is not None
        self._update()
        self._pending.append(
            PendingStep(
                step=self.step,
                epoch=self.epoch,
                lr=lr,
                samples=samples * self.fabric.world_size,
                data_seconds=data_seconds,
                values=values if group == 1 else values / group,
                measures=None if self.step_meter is None else self.step_meter.take(),
                kept=None if self.cautious is None else self.cautious.stats.kept,
            )
        )
        self.step += 1
        self._clock.tick()
        return samples * self.fabric.world_size

    def _next(self, batches: Iterator[tuple[Any, Any]]) -> tuple[Any, Any]:
        try:
            inputs, targets = next(batches)
        except StopIteration:
            raise ValueError(
                f"the data has length {len(self.task.data)} but gave {self.batch} batches in epoch {self.epoch}; "
                "its length must be the number of batches that train_batches(epoch) yields"
            ) from None
        inputs, targets = (_to_device(part, self.fabric.device) for part in (inputs, targets))
        return (_channels_last(inputs) if self.config.channels_last else inputs), targets

    def _gradients(self, inputs: Any, targets: Any, group: int, *, last: bool) -> Tensor:
        """Accumulate one batch's gradients; return its loss and figures, (figures,) on the device."""
        with self._without_sync(not last):
            outputs = self.model(inputs)
            loss = self.task.loss(outputs, targets)
            self._backward(loss if group == 1 else loss / group)
        values = {"loss": loss.detach()}
        if self.task.figures is not None:
            with torch.no_grad():
                values.update(self.task.figures(outputs, targets))
        self._names = list(values)
        return torch.stack([value.to(torch.float32) for value in values.values()])

    def _without_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        if self.config.accumulate == 1 or self.fabric.world_size == 1:
            return nullcontext()
        return self.fabric.no_backward_sync(self.model, enabled=enabled)

    def _update(self) -> None:
        if self.config.clip is not None:
            self.fabric.clip_gradients(self.model, self._stepper, max_norm=self.config.clip, error_if_nonfinite=False)
        self._stepper.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.schedule is not None and self.task.schedule_every == "step":
            self.schedule.step()

    def read(self, *, everything: bool = True) -> list[dict[str, Any]]:
        """Return the record lines of the steps not read before, in order.

        On a GPU, without ``everything``, the steps since the last call are returned by the next call, so that this one
        does not wait for the device.
        """
        self._send()
        lines = []
        for (steps, names, marks), tensors in self._readback.receive(everything=everything):
            measured = [{}] * len(steps) if self.step_meter is None else list(map(measures, tensors[1].tolist()))
            if self.cautious is not None:
                measured = [{**each, "kept": kept} for each, kept in zip(measured, tensors[-1].tolist(), strict=True)]
            for step, row, found, mark in zip(steps, tensors[0].tolist(), measured, marks, strict=True):
                lines.append(self._line(step, dict(zip(names, row, strict=True)), found, seconds(mark)))
        return lines

    def _send(self) -> None:
        """Start copying the figures of the new steps to the host."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        values = torch.stack([step.values for step in pending])
        if self.fabric.world_size > 1:
            torch.distributed.all_reduce(values)
            values /= self.fabric.world_size
        tensors = [values]
        if self.step_meter is not None:
            tensors.append(self.step_meter.gather([step.measures for step in pending if step.measures is not None]))
        if self.cautious is not None:
            tensors.append(torch.stack([step.kept for step in pending if step.kept is not None]))
        self._readback.send((pending, self._names, self._clock.take()), tensors)

    def _line(
        self, step: PendingStep, figures: dict[str, float], measured: dict[str, float], took: float
    ) -> dict[str, Any]:
        self._means.add(step, figures, measured, took)
        place = {"kind": "step", "step": step.step, "epoch": step.epoch}
        times = {"samples": step.samples, "seconds": took, "data_seconds": step.data_seconds}
        return {**place, **figures, "lr": step.lr, **measured, **times}

    def end_epoch(self) -> dict[str, Any]:
        """Evaluate, step the schedule and start the next epoch; return the record line. Call :meth:`read` first."""
        lr = _learning_rate(self.optimizer)
        evaluated, evaluation_seconds = self._evaluate()
        if self.schedule is not None and self.task.schedule_every == "epoch":
            self.schedule.step()
        corrector = self.corrector or self.cautious
        corrected = 0 if corrector is None else int(corrector.stats.corrected_steps)
        epoch = self._means
        means = epoch.means()
        means.pop("corrected", None)
        line = {
            "kind": "epoch",
            "epoch": self.epoch,
            "step": self.step,
            **means,
            "lr": lr,
            "corrected_share": (corrected - self._corrected_before) / epoch.steps,
            "evaluation": evaluated,
            "samples": epoch.samples,
            "seconds": epoch.seconds,
            "data_seconds": epoch.data_seconds,
            "evaluation_seconds": evaluation_seconds,
            "samples_per_second": epoch.samples / epoch.seconds if epoch.seconds > 0 else math.nan,
        }
        self._corrected_before = corrected
        self._means = EpochMeans()
        self.epoch, self.batch = self.epoch + 1, 0
        return line

    def _evaluate(self) -> tuple[dict[str, float] | None, float]:
        every, number = self.config.evaluate_every, self.epoch + 1
        due = every > 0 and (number % every == 0 or number == self.config.epochs)
        if self.task.evaluate is None or not due:
            return None, 0.0
        started = time.perf_counter()
        if self.fabric.world_size > 1:  # use the running averages of the first process everywhere
            for buffer in self.bare.buffers():
                torch.distributed.broadcast(buffer, src=0)
        self.model.eval()
        # the bare network: DDP synchronises at every batch, and a compiled network would compile again
        network = _ChannelsLast(self.bare) if self.config.channels_last else self.bare
        with torch.no_grad():
            figures = self.task.evaluate(_Autocast(network, self.fabric.autocast))
        self.model.train()
        self.evaluation = {name: float(value) for name, value in figures.items()}
        return self.evaluation, time.perf_counter() - started

    def state(self) -> dict[str, Any]:
        """Return the state needed to resume bit for bit; a collective call. Call :meth:`read` first."""
        if self._pending or self._readback:
            raise RuntimeError("some steps were not read; call read() before state()")
        state = {
            "version": _STATE_VERSION,
            "step": self.step,
            "epoch": self.epoch,
            "batch": self.batch,
            "world_size": self.fabric.world_size,
            "model": whole(dict(self.bare.state_dict())),
            "optimizer": whole(self.optimizer.state_dict()),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "scaler": self.fabric.strategy.precision.state_dict(),
            "method": None if self.corrector is None else self.corrector.state_dict(full_tensors=True),
            "cautious": None if self.cautious is None else self.cautious.state_dict(),
            "penalty": None if self.penalty is None else self.penalty.state_dict(),
            "step_meter": None if self.step_meter is None else self.step_meter.state_dict(),
            "means": asdict(self._means),
            "corrected_before": self._corrected_before,
            "evaluation": dict(self.evaluation),
            "processes": self._of_each_process(),
        }
        self._clock.restart()
        return state

    def _of_each_process(self) -> list[dict[str, Any]]:
        """Gather the state that differs between processes: random generators and the data's state."""
        data = self.task.data
        own = {
            "random": random_state(self.fabric.device),
            "data": data.state_dict() if hasattr(data, "state_dict") else None,
        }
        if self.fabric.world_size == 1:
            return [own]
        gathered: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(gathered, own)
        return gathered

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state`."""
        if state["version"] != _STATE_VERSION:
            raise ValueError(
                f"the checkpoint has version {state['version']}, this release reads version {_STATE_VERSION}; "
                "resume it with the release that made it"
            )
        if state["world_size"] != self.fabric.world_size:
            raise ValueError(
                f"the run had {state['world_size']} process(es), now there are {self.fabric.world_size}; "
                "resume it with the same number of processes"
            )
        load_model(self.bare, state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.fabric.strategy.precision.load_state_dict(state["scaler"])
        parts = ((self.schedule, "schedule"), (self.corrector, "method"), (self.cautious, "cautious"))
        for part, name in (*parts, (self.penalty, "penalty"), (self.step_meter, "step_meter")):
            if part is not None:
                part.load_state_dict(state[name])
        self._means = EpochMeans(**state["means"])
        self._corrected_before = state["corrected_before"]
        self.evaluation = dict(state["evaluation"])
        self.step, self.epoch, self.batch = state["step"], state["epoch"], state["batch"]
        own = state["processes"][self.fabric.global_rank]
        if own["data"] is not None:
            self.task.data.load_state_dict(own["data"])  # type: ignore[attr-defined]
        restore_random_state(own["random"], self.fabric.device)


class _Autocast(nn.Module):
    """Runs the network in the run's precision with float32 outputs; cheaper than Fabric's wrapper."""

    def __init__(self, model: nn.Module, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self.model, self._autocast = model, autocast

    def forward(self, *inputs: Any) -> Any:
        with self._autocast():
            outputs = self.model(*inputs)
        return float32(outputs) if isinstance(outputs, Tensor) else pytree.tree_map(float32, outputs)


class _ChannelsLast(nn.Module):
    """Converts 4-d inputs to the channels-last memory format."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Any:
        return self.model(*_channels_last(inputs))


def _to_device(part: Any, device: torch.device) -> Any:
    if isinstance(part, Tensor):
        return part if part.device == device else part.to(device, non_blocking=True)
    return pytree.tree_map(lambda leaf: _to_device(leaf, device) if isinstance(leaf, Tensor) else leaf, part)


def _channels_last(inputs: Any) -> Any:
    def converted(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() == 4:
            return value.contiguous(memory_format=torch.channels_last)
        return value

    return converted(inputs) if isinstance(inputs, Tensor) else pytree.tree_map(converted, inputs)


def _count(inputs: Any) -> int:
    """Return the number of samples in a batch."""
    return len(next(leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)))


def _learning_rate(optimizer: torch.optim.Optimizer) -> float:
    lr = optimizer.param_groups[0]["lr"]
    return math.nan if isinstance(lr, Tensor) and lr.device.type != "cpu" else float(lr)
