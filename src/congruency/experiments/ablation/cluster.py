"""Cells on Ray: a task each, taken up again from its checkpoint where a worker process is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from congruency.experiments.ablation.runs import Failure, Outcome, attempt
from congruency.experiments.classification.running import ImageSets, Run, Stopped, Work, cached, many_runs
from congruency.experiments.terminal import plain_warnings
from congruency.training.processes import StopSignal

__all__ = ["run_on_ray"]

_STORE = 128 * 2**20  # bytes of Ray's object store: runs hand back a few numbers, images are read from files
_LOOK = 0.5  # seconds between looks at whether SIGTERM came


def run_on_ray(
    runs: Sequence[Run], work: Work, *, threads: int, address: str | None, retries: int
) -> Iterator[tuple[Run, Outcome]]:
    """Each run with what it came to, as they end.

    Args:
        runs: a Ray task each.
        work: its folder must be one that all machines of the cluster see, and so must that of the data sets.
        threads: CPU cores of each task; on a GPU each takes one GPU too.
        address: of a cluster; None starts one on this machine, of ``work.processes`` times ``threads`` cores (all cores
            for 0), and ends it.
        retries: how often a run is begun again after its worker process was lost.

    Raises:
        ValueError: Ray is missing, the cluster cannot be reached, or has no room for a single task.
    """
    ray = _library()
    if not runs:
        return
    work = cached(runs, work)
    with _cluster(ray, address, work.processes * threads or None), StopSignal() as stop:
        gpus = int(work.machine.device == "cuda")
        _check_room(ray, threads, gpus)
        start = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=retries, retry_exceptions=[Stopped])(_task)
        pending = {start.remote(run, work, threads): run for run in runs}
        try:
            while pending:
                ready, _ = ray.wait(list(pending), timeout=_LOOK)
                for reference in ready:
                    yield pending.pop(reference), _outcome(ray, reference)
                if stop.asked:
                    raise Stopped
        finally:
            for reference in pending:
                ray.cancel(reference)


def _task(run: Run, work: Work, threads: int) -> Outcome:
    """In a worker process: one run, from its last checkpoint where there is one."""
    with many_runs(), plain_warnings():
        return attempt(run, _images(work)(run.job), work, threads=threads)[0]


@lru_cache(maxsize=1)
def _images(work: Work) -> ImageSets:
    """Read once in each worker process."""
    return ImageSets(work)


def _outcome(ray: Any, reference: Any) -> Outcome:
    try:
        answer: Outcome = ray.get(reference)
        return answer
    except ray.exceptions.RayError as reason:
        return Failure(str(reason).strip() or type(reason).__name__)


@contextmanager
def _cluster(ray: Any, address: str | None, cores: int | None) -> Iterator[None]:
    """Ray, as the caller has started it, at an address, or on this machine until the grid is done."""
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    handler = signal.getsignal(signal.SIGTERM)  # Ray puts one of its own there, and leaves it
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            own: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _STORE}
            ray.init(address="local", **own, **quiet)  # without an address Ray would join any cluster it finds here
    except (ConnectionError, ValueError, RuntimeError) as reason:
        if address is None:
            raise ValueError(f"Ray could not be started on this machine: {reason}") from reason
        raise ValueError(
            f"no Ray cluster could be joined at {address} ({reason}); it must run the same Ray and Python, and where "
            "it asks for a token, RAY_AUTH_MODE and RAY_AUTH_TOKEN must be set here as they are there"
        ) from reason
    try:
        yield
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _check_room(ray: Any, cores: int, gpus: int) -> None:
    """A task that fits nowhere would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cores and node.get("GPU", 0) >= gpus for node in nodes):
        needs = f"{cores} CPU core(s)" + (" and a GPU" if gpus else "")
        raise ValueError(f"no machine of the Ray cluster has {needs}; lower --threads, or choose another --device")


def _library() -> Any:
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError as reason:
        if (reason.name or "").partition(".")[0] != "ray":
            raise
        raise ValueError("ray is missing; install congruency[cluster], or run with --on local") from None
    return ray
