"""Execute runs on Ray: one task per batch, retried if its worker process is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from congruency._validate import installing
from congruency.studies.console import plain_warnings
from congruency.studies.executor import POLL_SECONDS, Batch, Outcome, Place, Runner, Stopped, attempt, many_runs
from congruency.studies.plan import JobT, Run
from congruency.studies.store import Failure, Store
from congruency.training.processes import StopSignal

_OBJECT_STORE_BYTES = 128 * 2**20  # runs return only a few numbers and read data from files


def execute_on_ray(
    batches: Sequence[Batch[JobT]], runner: Runner[JobT], place: Place, store: Store
) -> Iterator[tuple[Run[JobT], Outcome]]:
    """Execute batches on the cluster at ``place.ray``; yield each run with its outcome as its batch ends.

    All machines of the cluster must have access to the store's folder and the data. A task takes
    ``place.threads_per_run`` CPU cores and, on CUDA, one GPU. ``"local"`` starts Ray on this machine and shuts it down
    at the end; ``place.processes`` tasks run at once (with 1, as many as the cores allow).

    Raises:
        ValueError: Ray is missing, or the cluster cannot be reached or has no node large enough for a task.
    """
    ray, threads, gpus = _library(), place.threads_per_run, int(runner.device == "cuda")
    with _cluster(ray, place), StopSignal() as stop:
        _check_room(ray, threads, gpus)
        remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=place.retries, retry_exceptions=[Stopped])
        start = remote(_task)
        pending = {start.remote(batch, runner, store, threads): batch for batch in batches}
        try:
            while pending:
                ready, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
                for reference in ready:
                    yield from zip(batch := pending.pop(reference), _outcomes(ray, reference, batch), strict=True)
                if stop.asked:
                    raise Stopped
        finally:
            for reference in pending:
                ray.cancel(reference)


def _task(batch: Batch[Any], runner: Runner[Any], store: Store, threads: int) -> list[Outcome]:
    """Execute one batch in a Ray worker; return the outcomes in the order of its runs."""
    with many_runs(), plain_warnings():
        outcomes = {run.key: outcome for run, outcome in attempt(batch, runner, store, threads)}
    return [outcomes[run.key] for run in batch]


def _outcomes(ray: Any, reference: Any, batch: Batch[Any]) -> list[Outcome]:
    try:
        outcomes: list[Outcome] = ray.get(reference)
        return outcomes
    except ray.exceptions.RayError as reason:
        return [Failure(str(reason).strip() or type(reason).__name__)] * len(batch)


@contextmanager
def _cluster(ray: Any, place: Place) -> Iterator[None]:
    """Connect to Ray: already initialized by the caller, at an address, or started locally for these runs."""
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it and does not restore it
    try:
        if place.ray != "local":
            ray.init(address=place.ray, **quiet)
        else:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            cores = place.processes * place.threads_per_run if place.processes > 1 else None
            own: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False}
            ray.init(address="local", object_store_memory=_OBJECT_STORE_BYTES, **own, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as reason:
        if place.ray == "local":
            raise ValueError(f"Ray could not be started on this machine: {reason}") from reason
        raise ValueError(
            f"no Ray cluster could be joined at {place.ray} ({reason}); it must run the same Ray and Python, and where "
            "it asks for a token, RAY_AUTH_MODE and RAY_AUTH_TOKEN must be set here as they are there"
        ) from reason
    try:
        yield
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _check_room(ray: Any, cores: int, gpus: int) -> None:
    """Raise ValueError if no node can hold a task, which would otherwise wait forever."""
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
        raise ValueError(f"ray is missing; leave --ray out, or {installing('cluster')}") from None
    return ray
