"""Benchmark the cost of a correction relative to the optimizer's step and to the memory-bandwidth limit."""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

import congruency
from congruency.files import write_together
from congruency.report.page import render
from congruency.report.tables import to_rich
from congruency.studies.bench_cases import TrainingCase, Workload, training_cases, workloads
from congruency.studies.bench_report import page, tables

RATES = ("reading_bytes_per_second", "bandwidth_bytes_per_second")
QUESTIONS = ("corrections", "memory", "meter", "updates", "steps")


Programs = Mapping[str, Callable[[], Any]]
Row = dict[str, Any]
"""One line of the result as plain data; times are medians in seconds, None where not measured.

Corrections: ``congruent`` is the time for a gradient that is left unchanged, ``corrected`` for one that is rewritten;
``congruent_limit`` and ``memory_limit`` are the times of the memory traffic alone (:meth:`Memory.limits`);
``extra_bytes`` is DCL's peak GPU memory besides its reference points. Training steps on a GPU: ``host`` is the host's
time in ``optimizer.step()`` and ``launches`` the kernels and copies per step, each without and with the correction.
``sgd_step`` is the optimizer's own step: SGD with momentum for DCL, AdamW for Cautious.
"""


def run(
    devices: Sequence[str],
    sizes: Sequence[float] | None = None,
    references: Sequence[int] = (1, 3, 10, 20),
    only: Sequence[str] | None = None,
    out: Path | None = None,
    quick: bool = False,
    networks: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
) -> None:
    """Measure on each device and print the tables; write ``bench-DEVICE.json`` and ``bench.html`` to ``out``.

    Args:
        networks, modes: Restrict the training steps to network names with these prefixes and to these modes.
    """
    console = Console()
    steps = {name: [] if sizes else training_cases(torch.device(name), quick) for name in devices}
    cases = {name: chosen_cases(of_device, networks, modes) for name, of_device in steps.items()}
    if any(steps.values()) and not any(cases.values()):
        known = [case for of_device in steps.values() for case in of_device]
        raise ValueError(
            "there is no training step of such a network in such a mode here; the networks are "
            f"{', '.join(sorted({case.name.split(',')[0] for case in known}))}, and the modes "
            f"{', '.join(sorted({case.mode for case in known}))}"
        )
    results = {}
    for name in devices:
        results[name] = result = measure(
            torch.device(name), sizes, references, only or QUESTIONS, quick, cases[name], console
        )
        machine, rates = result["machine"], [result[name] / 1e9 for name in RATES]
        where = machine["gpu"] or f"{machine['processor']}, {machine['threads']} threads"
        speed = "reads {:.0f} GB/s, adds {:.0f} GB/s".format(*rates)
        console.print(f"[bold]{where}[/bold], torch {machine['torch']}; memory {speed}\n")
        for title, table in tables(result):
            console.print(title, style="bold")
            console.print(to_rich(table), "")
    if out is not None:
        files = {
            f"bench-{name.replace(':', '')}.json": json.dumps(each, indent=1) + "\n" for name, each in results.items()
        }
        for path in write_together(out, {**files, "bench.html": render(page(list(results.values())))}):
            console.print(f"written to {path}")


def chosen_cases(
    cases: Sequence[TrainingCase], networks: Sequence[str] | None, modes: Sequence[str] | None
) -> list[TrainingCase]:
    """Return the cases whose network names begin with one of ``networks`` and whose mode is among ``modes``."""
    begins = tuple(name.lower() for name in networks or [""])
    return [case for case in cases if case.name.lower().startswith(begins) and (modes is None or case.mode in modes)]


def measure(
    device: torch.device, sizes: Sequence[float] | None, references: Sequence[int], only: Sequence[str], quick: bool,
    cases: Sequence[TrainingCase], console: Console,
) -> dict[str, Any]:  # fmt: skip
    """Run the measurements of the questions ``only`` on one device; return plain data."""
    clock = Clock(device, seconds=0.2 if quick else 1.0)
    chosen = workloads(sizes) if sizes or not quick else [w for w in workloads() if w.parameters <= 2e6]
    cells = [(w, n) for w in chosen for n in references if _fits(w, n, device)]
    for workload in chosen if sizes else ():
        left_out = [str(n) for n in references if (workload, n) not in cells]
        if left_out:
            why = f"{_bytes_needed(workload, 1) / 1e9:,.0f} GB or more are needed"
            why = why if "1" in left_out or len(left_out) == len(references) else "too large for several"
            console.print(
                f"not measured: {workload.parameters:.3g} parameters with {', '.join(left_out)} reference(s): {why}"
            )
    if sizes and not cells:
        raise ValueError("nothing of this fits into the memory that is free here; give a smaller --size")
    memory = MemoryClock(clock, 1 << (22 if quick else 26 if device.type == "cpu" else 28))
    large = [w for w in chosen if _fits(w, 2, device)]
    on_gpu = device.type == "cuda"
    whole = Clock(device, clock.seconds * (1 if on_gpu else 3), calls=10 if on_gpu else 1)
    jobs: list[tuple[str, str, Callable[[], Row]]] = [
        *(("corrections", f"{w.name}, {n} reference(s)", partial(measure_correction, w, n, clock, memory))
          for w, n in cells),
        *(("memory", f"{w.name}, {n} memory rows", partial(measure_memory, w, n, clock, memory))
          for w in large[-2:] for n in references if n > 1),
        *(("meter", f"{w.name}, meter", partial(measure_meter, w, clock, memory)) for w in large),
        *(("updates", f"{w.name}, updates", partial(measure_update, w, clock)) for w in large),
        *(("steps", f"{case.name}, {case.correction}, {case.mode}", partial(measure_training_step, case, whole))
          for case in cases),
    ]  # fmt: skip
    jobs = [job for job in jobs if job[0] in only]
    found: dict[str, list[Row]] = {name: [] for name in QUESTIONS}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(jobs))
        for what, description, job in jobs:
            progress.update(task, description=description, advance=1)
            found[what].append(job())
    return {
        "command": " ".join(["congruency", *sys.argv[1:]]),
        "machine": machine(device),
        **dict(zip(RATES, memory().bytes_per_second, strict=True)),
        "training_steps": found.pop("steps"),
        **found,
    }


class Clock:
    """Measures the median time of programs, called in turn so that drift affects all of them alike."""

    def __init__(self, device: torch.device, seconds: float, calls: int = 1) -> None:
        self.device = device
        self.seconds = seconds
        self.calls = calls  # without synchronizing between them: as in training, the host can run ahead of the GPU

    def time(self, programs: Programs) -> dict[str, float]:
        """Return the median seconds of each program."""
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(2):
            for program in programs.values():
                program()
        end = time.perf_counter() + self.seconds * len(programs)
        while time.perf_counter() < end or len(times[next(iter(times))]) < 5:
            for name, program in programs.items():
                times[name].append(self._once(program))
        return {name: statistics.median(values) for name, values in times.items()}

    def work(self, programs: Programs) -> dict[str, float]:
        """Like :meth:`time`, but on a GPU count device time only: in training the host runs ahead of it."""
        if self.device.type != "cuda":
            return self.time(programs)
        return {name: device_seconds(program) for name, program in programs.items()}

    def _once(self, program: Callable[[], Any]) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(self.calls):
            program()
        self._wait()
        return (time.perf_counter() - start) / self.calls

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Memory:
    """Memory speed: seconds per element for reading, and for an in-place addition of two tensors."""

    reading: float
    adding: float

    @property
    def bytes_per_second(self) -> tuple[float, float]:
        """Bytes per second of reading (4 bytes per element) and of an addition (two reads and a write, 12 bytes)."""
        return 4 / self.reading, 12 / self.adding

    def limits(self, tensors: int, parameters: int) -> tuple[float, float]:
        """Seconds of the memory traffic alone: all tensors read once; and read twice, with the gradient written.

        A CPU moves more bytes per second in an addition than in reading, since writes overlap with reads.
        """
        again = (tensors - 2) * self.reading + self.adding
        return parameters * tensors * self.reading, parameters * (tensors * self.reading + again)


class MemoryClock:
    """Measures memory speed: on every call on a CPU, whose memory other processes share; only once on a GPU."""

    def __init__(self, clock: Clock, size: int) -> None:
        self._main, self._clock = clock, Clock(clock.device, clock.seconds / 5)
        self._a, self._b = (torch.randn(size, device=clock.device) for _ in range(2))
        self._known: Memory | None = None

    def __call__(self) -> Memory:
        if self._known is not None:
            return self._known
        a, b = self._a, self._b
        times = self._clock.work({"sum": a.sum, "dot": lambda: torch.dot(a, b), "add": lambda: a.add_(b, alpha=1e-9)})
        memory = Memory(min(times["sum"], times["dot"] / 2) / a.numel(), times["add"] / a.numel())
        if self._clock.device.type == "cuda":
            self._known = memory
        return memory

    def around(self, programs: Programs) -> tuple[dict[str, float], Memory]:
        """Return the seconds of each program and the memory speed, averaged over before and after."""
        before, times, after = self(), self._main.work(programs), self()
        return times, Memory((before.reading + after.reading) / 2, (before.adding + after.adding) / 2)


def measure_correction(workload: Workload, references: int, clock: Clock, memory: MemoryClock) -> Row:
    """Measure one correction of random gradients that are left unchanged, and of gradients that are rewritten."""
    params, gradients = _parameters(workload, clock.device)
    optimizer = _sgd(params)
    congruent = congruency.DCL(optimizer, references=references, attach=False)
    # a small margin, so that the gradient is rewritten every time but stays congruent
    corrected = congruency.DCL(optimizer, references=references, margin=1e-6, floor=1.0, returning=False, attach=False)
    for _ in range(references):
        congruent.correct()
        corrected.correct()
        _move(params, gradients)
    programs: dict[str, Callable[[], Any]] = {
        "sgd": optimizer.step, "congruent": congruent.correct, "corrected": corrected.correct
    }  # fmt: skip
    times, rate = memory.around(programs)
    extra = _extra_bytes(optimizer, references, workload.parameters) if clock.device.type == "cuda" else None
    return _correction_row(workload, references, times, rate.limits(2 + references, workload.parameters)) | {
        "extra_bytes": extra
    }


def measure_memory(workload: Workload, rows: int, clock: Clock, memory: MemoryClock) -> Row:
    """Measure a correction with constraints that all change at every step, as with an episodic memory."""
    params, gradients = _parameters(workload, clock.device)
    optimizer = _sgd(params)
    programs: dict[str, Callable[[], Any]] = {"sgd": optimizer.step}
    vectors = [[torch.randn_like(p) + g / 10 for p, g in zip(params, gradients, strict=True)] for _ in range(rows)]
    for name, margin in (("congruent", 0.0), ("corrected", 1e-6)):
        directions = congruency.Directions(margin)
        directions.set(vectors, params)
        corrector = congruency.Corrector(optimizer, constraints=[directions], attach=False)
        programs[name] = corrector.correct
    times, rate = memory.around(programs)
    return _correction_row(workload, rows, times, rate.limits(1 + rows, workload.parameters))


def _correction_row(
    workload: Workload, references: int, times: Mapping[str, float], limits: tuple[float, float]
) -> Row:
    return {
        "workload": workload.name, "tensors": len(workload.shapes), "parameters": workload.parameters,
        "references": references, "sgd_step": times["sgd"], "congruent": times["congruent"],
        "corrected": times["corrected"], "memory_limit": limits[1], "congruent_limit": limits[0], "extra_bytes": None,
    }  # fmt: skip


def measure_meter(workload: Workload, clock: Clock, memory: MemoryClock) -> Row:
    """Measure the update of a congruency meter, alone and beside DCL, which has already measured the same step."""
    params, _ = _parameters(workload, clock.device)
    optimizer = _sgd(params)
    dcl = congruency.DCL(optimizer)
    alone, beside = congruency.CongruencyMeter(params), congruency.CongruencyMeter(params, beside=dcl)
    for _ in range(2):
        alone.update()
        optimizer.step()
        beside.update()
    times, rate = memory.around({"sgd": _sgd(params).step, "update": alone.update, "beside": beside.update})
    return {
        "workload": workload.name, "parameters": workload.parameters, "sgd_step": times["sgd"],
        "update": times["update"], "beside": times["beside"], "memory_limit": rate.limits(3, workload.parameters)[0],
    }  # fmt: skip


def _parameters(workload: Workload, device: torch.device) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Random parameters with random gradients, and copies of the gradients."""
    params = [nn.Parameter(torch.randn(shape, device=device)) for shape in workload.shapes]
    gradients = [torch.randn_like(p) for p in params]
    for p, g in zip(params, gradients, strict=True):
        p.grad = g.clone()
    return params, gradients


def _sgd(params: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1e-9, momentum=0.9, foreach=True)


def _extra_bytes(optimizer: torch.optim.Optimizer, references: int, parameters: int) -> int:
    """DCL's peak memory besides the references, as requested from the allocator, without its rounding."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    dcl = congruency.DCL(optimizer, references=references, mode="anchor", margin=1e-6, attach=False)
    for _ in range(references + 2):
        dcl.correct()
    peak: int = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return int(peak - before - 4 * references * parameters)


def measure_update(workload: Workload, clock: Clock) -> Row:
    """Measure AdamW steps on random gradients: plain, cautious, with DCL on the update, and timm's cautious AdamW."""

    def optimizer(make: Callable[..., torch.optim.Optimizer], **settings: Any) -> torch.optim.Optimizer:
        return make(_parameters(workload, clock.device)[0], lr=1e-6, weight_decay=0.1, foreach=True, **settings)

    plain, cautious, dcl = (optimizer(torch.optim.AdamW) for _ in range(3))
    congruency.Cautious(cautious)
    congruency.DCL(dcl, correct="update", mode="anchor", margin=1e-6)
    programs: dict[str, Callable[[], Any]] = {"adamw": plain.step, "cautious": cautious.step, "dcl": dcl.step}
    if find_spec("timm"):
        import_module("congruency._torchvision_compat")  # before timm
        from timm.optim.adamw import AdamWLegacy

        programs["timm"] = optimizer(AdamWLegacy, caution=True).step
    times = clock.work(programs)
    return {
        "workload": workload.name, "parameters": workload.parameters, "adamw_step": times["adamw"],
        "cautious": times["cautious"], "dcl_update": times["dcl"], "timm_cautious": times.get("timm"),
    }  # fmt: skip


@torch.no_grad()
def _move(params: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Take a noisy step down the gradients, so that the gradients are congruent with the displacement."""
    for p, g in zip(params, gradients, strict=True):
        p.sub_(g + 0.3 * torch.randn_like(g), alpha=1e-3)


def training_steps(
    case: TrainingCase, device: torch.device
) -> tuple[dict[str, Callable[[], Any]], dict[str, torch.optim.Optimizer], congruency.Corrector]:
    """Return the training step ``"plain"`` and ``"corrected"``, their optimizers, and the corrector.

    The correction changes as many steps as possible. All references are recorded.
    """
    programs: dict[str, Callable[[], Any]] = {}
    optimizers: dict[str, torch.optim.Optimizer] = {}
    corrector: congruency.Corrector | None = None
    captured = case.mode == "graph"
    kind: dict[str, Any] = {"fused": True} if device.type == "cuda" else {"foreach": True}
    for name in ("plain", "corrected"):
        model = case.make()
        if case.correction == "Cautious":
            optimizers[name] = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=captured, **kind)
        else:
            optimizers[name] = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, **kind)
        if name == "corrected" and case.correction == "Cautious":
            corrector = congruency.Cautious(optimizers[name], corrected_parameters(case, model))
        elif name == "corrected":
            corrector = congruency.DCL(
                optimizers[name], corrected_parameters(case, model), references=case.references, mode="anchor",
                margin=1e-6, capturable=captured,
            )  # fmt: skip
        programs[name] = _stepper(case, model, optimizers[name], device)
    assert corrector is not None
    for program in programs.values():  # gradients for the optimizer's own step, and references
        for _ in range(3 + case.references):
            program()
    return programs, optimizers, corrector


def corrected_parameters(case: TrainingCase, model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters in the case's scope."""
    return list((congruency.head(model) if case.scope == "head" else model).parameters())


def measure_training_step(case: TrainingCase, clock: Clock) -> Row:
    """Measure a whole training step with and without a correction that changes as many steps as possible."""
    on_gpu, captured = clock.device.type == "cuda", case.mode == "graph"
    programs, optimizers, corrector = training_steps(case, clock.device)
    own = optimizers["plain"].step
    host = [_host_seconds(each.step) for each in optimizers.values()] if on_gpu and not captured else None
    if captured:
        programs = {name: _captured(program) for name, program in programs.items()}
    launches = [device_launches(program) for program in programs.values()] if on_gpu else None
    times = clock.time({**programs, "optimizer": own})
    corrected, taken = int(corrector.stats.corrected_steps), int(corrector.stats.steps)
    return {
        "network": case.name, "scope": case.scope,
        "parameters": sum(p.numel() for p in corrected_parameters(case, case.make())),
        "references": case.references, "step": times["plain"], "step_with_dcl": times["corrected"],
        "sgd_step": times["optimizer"],
        "corrected_share": min(1.0, corrected / taken),  # for Cautious the host does not count replayed steps
        "correction": case.correction, "mode": case.mode, "host": host, "launches": launches,
    }  # fmt: skip


def _stepper(case: TrainingCase, model: nn.Module, optimizer: Any, device: torch.device) -> Callable[[], None]:
    loss = nn.CrossEntropyLoss()
    compiled = case.mode == "compile"
    forward: Callable[..., Tensor] = torch.compile(model, mode="reduce-overhead") if compiled else model
    turn = itertools.cycle(range(1 if case.mode == "graph" else len(case.inputs)))

    def step() -> None:
        i = next(turn)
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=case.autocast):
            value = loss(forward(case.inputs[i]), case.targets[i])
        value.backward()
        optimizer.step()

    return step


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """Capture a step in a CUDA graph, after warm-up on a side stream; return its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _host_seconds(program: Callable[[], Any], repeats: int = 100) -> float:
    """Median host time until ``program`` returns, with the GPU idle at its start."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        program()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def device_launches(program: Callable[[], Any], repeats: int = 10) -> float:
    """Return how many kernels and copies one call of ``program`` launches on a GPU."""
    return float(sum(event.count for event in _device_events(program, repeats))) / repeats


def device_seconds(program: Callable[[], Any], repeats: int = 10) -> float:
    """Return the GPU time of one call of ``program``: the sum over its kernels, without gaps."""
    return float(sum(event.self_device_time_total for event in _device_events(program, repeats))) / repeats * 1e-6


def _device_events(program: Callable[[], Any], repeats: int) -> list[Any]:
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        program()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            program()
        torch.cuda.synchronize()
    return [event for event in profiler.key_averages() if event.self_device_time_total > 0]


def _bytes_needed(workload: Workload, references: int) -> int:
    return workload.parameters * 4 * (4 + 3 * references)


def _fits(workload: Workload, references: int, device: torch.device) -> bool:
    """Whether parameters, momentum, two gradients and the references of three DCLs fit in 80 % of the free memory."""
    if references > 1 and workload.parameters > 3e7:
        return False  # slow, and hardly different from many references of a smaller model
    need = _bytes_needed(workload, references)
    if device.type == "cuda":
        return need < 0.8 * torch.cuda.mem_get_info(device)[0]
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
    return need < 0.8 * pages


def machine(device: torch.device) -> dict[str, Any]:
    """Return the hardware and software versions of the measurement."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "processor": _processor(), "threads": torch.get_num_threads(), "gpu": gpu, "torch": torch.__version__,
        "congruency": congruency.__version__, "python": platform.python_version(),
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
