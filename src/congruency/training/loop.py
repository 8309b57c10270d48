"""The training loop: train a run from its start or its last checkpoint to its end."""

from __future__ import annotations

import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from congruency._validate import changes
from congruency._version import __version__
from congruency.training.async_readback import AsyncReadback
from congruency.training.checkpoints import CheckpointError, Checkpoints, load_checkpoint
from congruency.training.config import TrainingConfig
from congruency.training.devices import make_fabric
from congruency.training.processes import STOPPED_EXIT_CODE, StopSignal
from congruency.training.progress import TensorBoardLog, progress_bar
from congruency.training.record import RECORD_NAME, Origin, RecordWriter
from congruency.training.run import TrainingRun
from congruency.training.state import seed_everything
from congruency.training.task import Build, Place

if TYPE_CHECKING:
    from lightning.fabric import Fabric

SECONDS_BETWEEN_CHECKPOINTS = 60.0
"""Used if :attr:`TrainingConfig.checkpoint_epochs` is 0."""

Notice = Callable[[int, int], Any]
"""Called with the number of steps taken and the total number of steps."""


@dataclass(frozen=True)
class Result:
    """The outcome of a run: completed epochs and optimizer steps, last evaluation, files."""

    finished: bool  # False if SIGTERM stopped the run, which can then be resumed
    epochs: int
    steps: int
    evaluation: dict[str, float]
    record: Path
    checkpoint: Path | None  # the last one, None if none could be written
    asked_to_stop: bool = False  # whether SIGTERM was received, possibly too late to stop the run early
    resumes_at: int = 0  # the step of the last checkpoint, from which ``resume`` continues; 0 without one

    @property
    def exit_code(self) -> int:
        """Exit code for a command: 0, or 75 ("try again") if the run was stopped."""
        return 0 if self.finished else STOPPED_EXIT_CODE


def train(
    build: Build,
    config: TrainingConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    origin: Origin | None = None,
    notice: Notice | None = None,
) -> Result:
    """Train the task that ``build`` returns, with its record and checkpoints in ``folder``.

        def build(place):
            return Task(model=..., optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), loss=..., data=...)

        result = train(build, TrainingConfig(epochs=10, method=Correction(name="dcl", window=50)), "runs/first")

    On SIGTERM the run writes a checkpoint at the next step (with several processes: at the next flush) and returns.

    Args:
        build: Builds the task; called once in each process, after seeding.
        config: Configuration of the run.
        folder: Folder of this run alone: ``record.jsonl`` and ``checkpoints/``.
        resume: Continue from the last checkpoint; on a CPU, weights and record are then bit for bit those of an
            uninterrupted run. A run without a checkpoint starts over; a finished one is left as it is.
        origin: Provenance for the record; a resumed run keeps the original one.
        notice: Called in the first process after every step with the number of steps taken and the total.

    Raises:
        FileExistsError: The folder holds a run, and ``resume`` is False.
        CheckpointError: No checkpoint can be read, or its configuration differs.
    """
    folder = Path(folder)
    fabric = make_fabric(config)
    _check_folder(folder, resume, fabric)
    with _cuda_settings(config, fabric.device):
        seed_everything(config.seed)
        task = build(Place(fabric.device, fabric.global_rank, fabric.world_size, config.precision))
        run = TrainingRun(fabric, task, config)
        if fabric.global_rank > 0:
            seed_everything(config.seed, fabric.global_rank)  # equal weights, different random numbers from here on
        return _Session(run, folder, resume, origin or Origin(), notice).train()


class _Session:
    """A run with its record, checkpoints, progress bar and TensorBoard log."""

    def __init__(self, run: TrainingRun, folder: Path, resume: bool, origin: Origin, notice: Notice | None) -> None:
        self._run, self._config, self._fabric = run, run.config, run.fabric
        self._notice = notice if run.fabric.is_global_zero else None
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._last: Path | None = None
        self._last_step = 0
        self._saved_at = time.monotonic()
        self._record_path = folder / RECORD_NAME
        self._record: RecordWriter | None = None
        state = self._newest() if resume else None
        if state is not None:
            self._check_same(state)
            run.load(state)
        if self._fabric.is_global_zero:
            self._record = RecordWriter(self._record_path, 0 if state is None else state["record"])
        if state is None:
            self._append([_header(run, origin)])
        wanted = run.config.tensorboard and self._fabric.is_global_zero
        self._board = TensorBoardLog(folder / "tensorboard", run.step) if wanted else None
        self._diverged, self._loss = False, math.nan
        self._votes = AsyncReadback(delayed=self._fabric.device.type == "cuda")

    def train(self) -> Result:
        """Train to the end, or until SIGTERM."""
        run, config = self._run, self._config
        shown = config.progress and self._fabric.is_global_zero
        try:
            with StopSignal() as stop, progress_bar(shown, run.total_steps, run.step, config.epochs) as self._advance:
                while run.epoch < config.epochs:
                    if self._train_epoch(stop) or self._end_epoch(stop):
                        return self._result(finished=False, asked=True)
            return self._result(finished=True, asked=stop.asked)
        finally:
            if self._record is not None:
                self._record.close()
            if self._board is not None:
                self._board.close()

    def _train_epoch(self, stop: StopSignal) -> bool:
        """Take the remaining steps of the epoch; return whether to stop."""
        run, config = self._run, self._config
        batches = run.batches()
        while not run.epoch_done:
            samples = run.take_step(batches)
            self._advance(run.epoch, samples, self._loss)
            if self._notice is not None:
                self._notice(run.step, run.total_steps)
            flush = run.step % config.flush_every == 0
            if flush:
                self._flush(everything=False)
            if self._agreed(stop, flush):
                self._save()
                return True
            if config.checkpoint_steps and run.step % config.checkpoint_steps == 0 and not run.epoch_done:
                self._save()
        return False

    def _end_epoch(self, stop: StopSignal) -> bool:
        """Evaluate, record and checkpoint after an epoch; return whether to stop."""
        run, config = self._run, self._config
        self._flush()
        line = run.end_epoch()
        self._append([line])
        if self._board is not None:
            self._board.log("epoch", line, line["step"])
            self._board.log("evaluation", line["evaluation"] or {}, line["step"])
        stopping = self._agreed(stop, True, everything=True) and run.epoch < config.epochs
        if stopping or self._due():
            saved = self._save()
            if run.epoch == config.epochs and not saved:
                raise CheckpointError(
                    "the run is finished, but its last checkpoint could not be written; make room and resume it"
                )
        return stopping

    def _due(self) -> bool:
        """Whether to write a checkpoint after this epoch; elapsed time is that of the first process."""
        epoch, last, every = self._run.epoch, self._config.epochs, self._config.checkpoint_epochs
        if every:
            return epoch % every == 0 or epoch == last
        waited = time.monotonic() - self._saved_at > SECONDS_BETWEEN_CHECKPOINTS
        return bool(self._fabric.broadcast(waited and epoch < last))

    def _agreed(self, stop: StopSignal, together: bool, *, everything: bool = False) -> bool:
        """Whether to stop; several processes decide together, only at flushes, when they synchronise anyway."""
        if self._fabric.world_size == 1:
            return stop.asked
        if not together:
            return False
        asked = torch.full((), float(stop.asked), device=self._fabric.device)
        torch.distributed.all_reduce(asked)
        self._votes.send(None, [asked])
        return any(tensors[0].item() > 0 for _, tensors in self._votes.receive(everything=everything))

    def _flush(self, *, everything: bool = True) -> None:
        """Read back the figures of new steps and record them."""
        lines = self._run.read(everything=everything)
        if not lines:
            return
        every = self._config.record_steps
        self._append([line for line in lines if every and line["step"] % every == 0])
        self._loss = lines[-1]["loss"]
        self._warn_of_divergence(lines)
        if self._board is not None:
            for line in lines:
                self._board.log("step", line, line["step"])

    def _warn_of_divergence(self, lines: list[dict[str, Any]]) -> None:
        """Warn once if the run has diverged; it continues."""
        lost = next((line["step"] for line in lines if not math.isfinite(line["loss"])), None)
        if lost is not None and not self._diverged and self._fabric.is_global_zero:
            self._diverged = True
            warnings.warn(
                f"the run has diverged: the loss is not finite from step {lost} on; a smaller learning rate may help",
                stacklevel=2,
            )

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if self._record is not None:
            for line in lines:
                self._record.append(line)
            self._record.flush()

    def _save(self) -> bool:
        """Sync the record to disk, then write a checkpoint; return whether that succeeded."""
        self._flush()
        run = self._run
        state = run.state()
        saved: Path | None = None
        if self._record is not None:
            state["config"] = self._config.binding()
            state["record"] = self._record.sync()
            saved = self._checkpoints.save(state, run.step)
            if saved is not None:
                self._last, self._last_step = saved, run.step
        self._saved_at = time.monotonic()
        return bool(self._fabric.broadcast(saved is not None))

    def _newest(self) -> dict[str, Any] | None:
        """Return the state to resume from; the first process chooses the file."""
        found = self._checkpoints.load() if self._fabric.is_global_zero else None
        path: Path | None = self._fabric.broadcast(None if found is None else found[0])
        self._last = path
        if path is None:
            return None
        state = found[1] if found is not None else load_checkpoint(path)
        self._last_step = state["step"]
        return state

    def _check_same(self, state: dict[str, Any]) -> None:
        try:  # fields missing in an older release's checkpoint take their defaults
            saved = TrainingConfig.from_dict(state["config"]).binding()
        except (TypeError, ValueError) as reason:
            raise CheckpointError(f"the run's configuration cannot be read ({reason}); start a new run") from None
        different = changes(saved, self._config.binding())
        if different:
            listed = "; ".join(different)
            raise CheckpointError(f"the run cannot be resumed with another configuration: {listed}; start a new run")

    def _result(self, *, finished: bool, asked: bool) -> Result:
        run = self._run
        return Result(
            finished, run.epoch, run.step, dict(run.evaluation), self._record_path, self._last, asked, self._last_step
        )


def _check_folder(folder: Path, resume: bool, fabric: Fabric) -> None:
    taken = fabric.broadcast((folder / RECORD_NAME).exists())
    if taken and not resume:
        raise FileExistsError(f"{folder} already holds a run; resume it, or choose another folder")


def _header(run: TrainingRun, origin: Origin) -> dict[str, Any]:
    device = run.fabric.device
    return {
        "kind": "run",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **asdict(origin),
        "config": run.config.as_dict(),
        "task": dict(run.task.description),
        "seed": run.config.seed,
        "steps_per_epoch": run.steps_per_epoch,
        "steps": run.total_steps,
        "parameters": sum(parameter.numel() for parameter in run.bare.parameters()),
        "processes": run.fabric.world_size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "versions": {
            "congruency": __version__,
            "torch": torch.__version__,
            "lightning": version("lightning"),
            "python": platform.python_version(),
        },
    }


@contextmanager
def _cuda_settings(config: TrainingConfig, device: torch.device) -> Iterator[None]:
    """Apply torch's global settings for a run on a GPU; restore them on exit."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    before = (cudnn.benchmark, cudnn.allow_tf32)
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    cudnn.benchmark, cudnn.allow_tf32 = True, config.tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        cudnn.benchmark, cudnn.allow_tf32 = before
