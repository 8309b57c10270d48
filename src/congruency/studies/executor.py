"""Execute runs sequentially in this process, in several processes, or on a Ray cluster.

All three execute a run in the same way and with the same number of threads, so results are identical bit for bit. Runs
whose process was killed are retried, from their last checkpoint if the runner keeps checkpoints.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol

import torch

from congruency.studies.console import Notify, plain_warnings
from congruency.studies.plan import JobT, Run
from congruency.studies.store import Failure, RunResult, Store
from congruency.training.devices import why_unusable
from congruency.training.processes import StopSignal

Batch = tuple[Run[JobT], ...]
"""Runs that are executed together: usually one, several if the runner trains them as one batch."""

Outcome = RunResult | Failure
Within = Callable[[str, float], None]
"""Progress callback of a running batch: called with a label and the finished share of the batch."""
_ERROR_LINES = 8
POLL_SECONDS = 0.5  # between checks for SIGTERM while runs are executed elsewhere


class Stopped(Exception):
    """Raised when SIGTERM stops the command; running the same command again resumes."""


class Runner(Protocol[JobT]):
    """Executes the runs of one task family. It is pickled into other processes, so it holds settings, not data."""

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda"``."""

    def prepare(self, runs: Sequence[Run[JobT]]) -> None:
        """Check and load what all runs share, before any of them starts; raise ValueError for invalid input."""

    def batches(self, runs: Sequence[Run[JobT]]) -> list[Batch[JobT]]:
        """Group the runs into batches that are executed together."""

    def run(self, batch: Batch[JobT], within: Within) -> Iterator[tuple[Run[JobT], RunResult]]:
        """Execute a batch; after SIGTERM save what can be saved and raise Stopped."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place where runs are executed.

    Attributes:
        processes: number of runs executed at once on this machine.
        threads: CPU threads per run; None divides the threads of this process among the processes.
        ray: address of a Ray cluster, ``"local"`` to start one on this machine, or None.
        retries: how often a run is retried after its process was killed.
    """

    processes: int = 1
    threads: int | None = None
    ray: str | None = None
    retries: int = 3

    @property
    def threads_per_run(self) -> int:
        if self.threads is not None:
            return self.threads
        return 1 if self.ray is not None else max(1, torch.get_num_threads() // self.processes)

    @property
    def elsewhere(self) -> bool:
        """Whether the runs are executed in other processes."""
        return self.ray is not None or self.processes > 1


def execute(
    runs: Sequence[Run[JobT]], runner: Runner[JobT], place: Place, store: Store, notify: Notify | None = None
) -> Iterator[tuple[Run[JobT], Outcome]]:
    """Check the input, then execute the runs and yield each with its outcome as it ends. ``store`` logs the attempts.

    Raises:
        Stopped: on SIGTERM.
        ValueError: the input is invalid; raised by the call itself, before iteration.
    """
    if not runs:
        return iter(())  # rewriting the page of finished runs needs neither the device nor the data
    reason = why_unusable(runner.device) if place.ray is None else None
    if reason is not None:
        raise ValueError(f"PyTorch cannot use {runner.device!r} here: {reason}; choose another --device")
    runner.prepare(runs)
    return _executed(runs, runner, place, store, notify)


def _executed(
    runs: Sequence[Run[JobT]], runner: Runner[JobT], place: Place, store: Store, notify: Notify | None
) -> Iterator[tuple[Run[JobT], Outcome]]:
    batches = runner.batches(runs)
    if place.ray is not None:
        from congruency.studies.ray_executor import execute_on_ray

        outcomes = execute_on_ray(batches, runner, place, store)
    elif place.processes > 1:
        outcomes = _in_processes(batches, runner, place, store)
    else:
        outcomes = _in_this_process(batches, runner, place, store, notify)
    for done, (run, outcome) in enumerate(outcomes, start=1):
        yield run, outcome
        if notify is not None:
            notify(run.title, done, len(runs))


def attempt(
    batch: Batch[JobT], runner: Runner[JobT], store: Store, threads: int, within: Within = lambda label, share: None
) -> Iterator[tuple[Run[JobT], Outcome]]:
    """Execute one batch in this process. Errors become Failure outcomes, so other runs continue; Stopped propagates."""
    left = {run.key: run for run in batch}
    for run in batch:
        store.note_attempt(run)
    try:
        with limited_threads(threads):
            for run, result in runner.run(batch, within):
                del left[run.key]
                yield run, result
    except Stopped:
        raise
    except Exception as error:
        reason = _reason(error)
        for run in left.values():
            yield run, Failure(reason)


def _reason(error: BaseException) -> str:
    """Return the end of the traceback and, as the last line, the name of the error.

    That is the first error if others followed while it was handled: the end of a CUDA graph's capture, for example,
    raises one of its own. The last line of CUDA's messages is advice.
    """
    lines = "".join(traceback.format_exception(error)).strip().splitlines()[-_ERROR_LINES:]
    while error.__context__ is not None and not error.__suppress_context__:  # suppressed by ``raise ... from``
        error = error.__context__
    name = traceback.format_exception_only(error)[0].strip().splitlines()[0]
    return "\n".join(lines if lines[-1] == name else [*lines, name])


def _in_this_process(
    batches: Sequence[Batch[JobT]], runner: Runner[JobT], place: Place, store: Store, notify: Notify | None
) -> Iterator[tuple[Run[JobT], Outcome]]:
    done, total = 0, sum(map(len, batches))
    with many_runs():
        for batch in batches:

            def within(label: str, share: float, before: int = done, size: int = len(batch)) -> None:
                if notify is not None:
                    notify(label, before + share * size, total)

            yield from attempt(batch, runner, store, place.threads_per_run, within)
            done += len(batch)


@dataclass
class _Worker(Generic[JobT]):
    """A worker process and its current batch."""

    process: BaseProcess
    batch: Batch[JobT] = ()

    def unfinished(self, finished: set[tuple[str, int]]) -> Batch[JobT]:
        return tuple(run for run in self.batch if run.key not in finished)


def _in_processes(
    batches: Sequence[Batch[JobT]], runner: Runner[JobT], place: Place, store: Store
) -> Iterator[tuple[Run[JobT], Outcome]]:
    context = multiprocessing.get_context("spawn")
    waiting = deque(batches)
    workers: dict[Connection, _Worker[JobT]] = {}
    finished: set[tuple[str, int]] = set()
    lost: Counter[tuple[str, int]] = Counter()
    stopping = False
    with StopSignal() as stop:
        try:
            while True:
                if stop.asked and not stopping:
                    stopping = True
                    waiting.clear()
                    for worker in workers.values():
                        worker.process.terminate()  # SIGTERM: a training loop writes a checkpoint first
                while waiting and len(workers) < place.processes:
                    connection, theirs = context.Pipe()
                    arguments = (theirs, runner, store, place.threads_per_run)
                    process = context.Process(target=_work, args=arguments, daemon=True)
                    process.start()
                    theirs.close()
                    workers[connection] = _Worker(process)
                for connection, worker in workers.items():
                    if not worker.batch and waiting:
                        worker.batch = waiting.popleft()
                        connection.send(worker.batch)
                busy = [connection for connection, worker in workers.items() if worker.batch]
                if not busy and stopping:
                    raise Stopped
                if not busy:
                    return
                for ready in wait(busy, POLL_SECONDS):
                    assert isinstance(ready, Connection)
                    worker = workers[ready]
                    try:
                        place_in_batch, outcome = ready.recv()
                    except (EOFError, OSError):  # the process was killed: retry its runs
                        del workers[ready]
                        left = worker.unfinished(finished)
                        lost.update(run.key for run in left)
                        if stopping:
                            continue
                        if left and all(lost[run.key] <= place.retries for run in left):
                            waiting.appendleft(left)
                        else:
                            reason = f"the process was killed {place.retries + 1} times while the run was executed"
                            yield from ((run, Failure(reason)) for run in left)
                        continue
                    if isinstance(outcome, Stopped):
                        stop.asked = True
                    if place_in_batch is None:
                        worker.batch = ()
                        continue
                    run = worker.batch[place_in_batch]
                    finished.add(run.key)
                    yield run, outcome
        finally:
            for worker in workers.values():
                worker.process.terminate()
            for worker in workers.values():
                worker.process.join()


def _work(connection: Connection, runner: Runner[Any], store: Store, threads: int) -> None:
    """Main function of a worker process: execute the batches received from the connection until it is closed."""
    threading.Thread(target=_stop_as_orphan, daemon=True).start()
    with many_runs(), plain_warnings(), suppress(EOFError, ConnectionError):  # the parent is gone
        while True:
            batch: Batch[Any] = connection.recv()
            places = {run.key: i for i, run in enumerate(batch)}
            try:
                for run, outcome in attempt(batch, runner, store, threads):
                    connection.send((places[run.key], outcome))
                connection.send((None, None))
            except Stopped as stopped:
                connection.send((None, stopped))
                return


def _stop_as_orphan() -> None:
    """Wait until the parent process ends, then send SIGTERM to this one, which checkpoints and stops."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def many_runs() -> Iterator[None]:
    """Silence Fabric's loggers during many runs; on exit restore their levels and unfreeze the garbage collector."""
    loggers = [logging.getLogger(name) for name in ("lightning.fabric", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        gc.unfreeze()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Use ``count`` CPU threads within the context. Their number changes how sums are rounded, hence the results."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
