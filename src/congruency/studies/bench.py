"""What a correction costs: beside the optimizer's own step, DCL through the host, and the limit of the memory."""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

import congruency
from congruency.files import write_together
from congruency.studies.bench_cases import HostDCL, TrainingCase, Workload, training_cases, workloads

__all__ = ["run"]

_BYTES_PER_PARAMETER = 28  # float32, one reference: read w, r, g; then read w, r, g and write g
_HOST_LIMIT = 110_000_000  # parameters; HostDCL needs about 40 bytes each


@dataclass(frozen=True)
class Row:
    """One line of the result; times are medians in seconds, None where not measured."""

    workload: str
    tensors: int
    parameters: int
    references: int
    sgd_step: float
    congruent: float
    corrected: float
    host: float | None
    memory_limit: float
    extra_bytes: int | None
    """On a GPU: the most memory DCL takes besides its reference points, a correction included."""


@dataclass(frozen=True)
class UpdateRow:
    """An AdamW step (foreach) with its update corrected, and without; times are medians in seconds."""

    workload: str
    parameters: int
    adamw_step: float
    cautious: float
    dcl_update: float
    timm_cautious: float | None
    """The cautious AdamW of timm, where it is installed."""


@dataclass(frozen=True)
class StepRow:
    """The cost within a whole training step; times are medians in seconds."""

    network: str
    scope: str
    parameters: int
    references: int
    step: float
    step_with_dcl: float
    sgd_step: float
    """The optimizer's own step: SGD with momentum for DCL, AdamW for Cautious."""
    corrected_share: float
    correction: str = "DCL"


def run(
    devices: Sequence[str],
    sizes: Sequence[float] | None = None,
    references: Sequence[int] = (1, 3, 10, 20),
    out: Path | None = None,
    quick: bool = False,
) -> None:
    """Measure on each device in turn, print the tables, write ``bench-DEVICE.json`` into ``out``."""
    console = Console()
    for name in devices:
        result = measure(torch.device(name), sizes, references, quick, console)
        _show(console, result)
        if out is not None:
            (path,) = write_together(out, {f"bench-{name.replace(':', '')}.json": json.dumps(result, indent=1) + "\n"})
            console.print(f"written to {path}\n")


def measure(
    device: torch.device, sizes: Sequence[float] | None, references: Sequence[int], quick: bool, console: Console
) -> dict[str, Any]:
    """Measure everything on one device; return plain data."""
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
    clock = _Clock(device, seconds=0.2 if quick else 1.0)
    large = [w for w in chosen if _fits(w, 2, device)]
    cases = [] if sizes else training_cases(device, quick)
    bandwidth = measure_bandwidth(device, clock, 1 << (22 if quick else 27))
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(cells) + len(large) + len(cases))

        def now(description: str) -> None:
            progress.update(task, description=description, advance=1)

        rows, updates, steps = [], [], []
        calls = 10 if device.type == "cuda" else 1
        for workload, count in cells:
            now(f"{workload.name}, {count} reference(s)")
            rows.append(measure_correction(workload, count, device, clock, bandwidth))
        for workload in large:
            now(f"{workload.name}, updates")
            updates.append(measure_update(workload, device, clock))
        for case in cases:
            now(f"{case.name}, {case.scope}, {case.correction}")
            steps.append(measure_training_step(case, device, _Clock(device, 3 * clock.seconds, calls)))
    return {
        "command": " ".join(["congruency", *sys.argv[1:]]),
        "machine": machine(device),
        "bandwidth_bytes_per_second": bandwidth,
        "corrections": [asdict(row) for row in rows],
        "updates": [asdict(row) for row in updates],
        "training_steps": [asdict(step) for step in steps],
    }


class _Clock:
    """Medians of repeated calls, several programs in turn so that drift affects all of them alike."""

    def __init__(self, device: torch.device, seconds: float, calls: int = 1) -> None:
        self.device = device
        self.seconds = seconds
        self.calls = calls  # in a row: as in training, the host may then run ahead of a GPU

    def time(self, programs: dict[str, Callable[[], Any]]) -> dict[str, float]:
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


def measure_bandwidth(device: torch.device, clock: _Clock, size: int) -> float:
    """Return the bytes per second of an in-place addition over ``size`` floats: two reads and a write per element."""
    a, b = torch.randn(size, device=device), torch.randn(size, device=device)

    def add() -> None:
        a.add_(b, alpha=1e-9)

    seconds = device_seconds(add) if device.type == "cuda" else clock.time({"add": add})["add"]
    return 12 * size / seconds


def measure_correction(
    workload: Workload, references: int, device: torch.device, clock: _Clock, bandwidth: float
) -> Row:
    """Measure one correction of random gradients, congruent and incongruent ones."""
    params = [nn.Parameter(torch.randn(shape, device=device)) for shape in workload.shapes]
    gradients = [torch.randn_like(p) for p in params]
    for p, g in zip(params, gradients, strict=True):
        p.grad = g.clone()
    optimizer = torch.optim.SGD(params, lr=1e-9, momentum=0.9, foreach=True)
    congruent = congruency.DCL(optimizer, references=references, attach=False)
    # a margin, so that the gradient is rewritten every time, and stays congruent
    corrected = congruency.DCL(optimizer, references=references, margin=1e-6, floor=1.0, returning=False, attach=False)
    host = None
    if workload.parameters <= _HOST_LIMIT and references <= 3 and find_spec("quadprog"):
        host = HostDCL(params, references, margin=1e-6)
    for _ in range(references):
        for method in (congruent, corrected, host):
            if method is not None:
                method.correct()
        _move(params, gradients)
    programs: dict[str, Callable[[], Any]] = {
        "sgd": optimizer.step,
        "congruent": congruent.correct,
        "corrected": corrected.correct,
    }
    if device.type == "cuda":  # what the GPU does; the host runs ahead of it in training
        times = {name: device_seconds(program) for name, program in programs.items()}
    else:
        times = clock.time(programs)
    host_time = clock.time({"host": host.correct})["host"] if host else None
    extra = _extra_bytes(optimizer, references, workload.parameters) if device.type == "cuda" else None
    limit = (_BYTES_PER_PARAMETER + 8 * (references - 1)) * workload.parameters / bandwidth
    return Row(
        workload.name, len(params), workload.parameters, references,
        times["sgd"], times["congruent"], times["corrected"], host_time, limit, extra,
    )  # fmt: skip


def _extra_bytes(optimizer: torch.optim.Optimizer, references: int, parameters: int) -> int:
    """As requested from the allocator: what it adds by rounding up its blocks is not counted."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    dcl = congruency.DCL(optimizer, references=references, mode="anchor", margin=1e-6, attach=False)
    for _ in range(references + 2):
        dcl.correct()
    peak: int = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return int(peak - before - 4 * references * parameters)


def measure_update(workload: Workload, device: torch.device, clock: _Clock) -> UpdateRow:
    """Measure AdamW steps on random gradients: plain, cautious, with DCL on the update, and cautious by timm."""

    def optimizer(make: Callable[..., torch.optim.Optimizer], **settings: Any) -> torch.optim.Optimizer:
        params = [nn.Parameter(torch.randn(shape, device=device)) for shape in workload.shapes]
        for p in params:
            p.grad = torch.randn_like(p)
        return make(params, lr=1e-6, weight_decay=0.1, foreach=True, **settings)

    plain, cautious, dcl = (optimizer(torch.optim.AdamW) for _ in range(3))
    congruency.Cautious(cautious)
    congruency.DCL(dcl, correct="update", mode="anchor", margin=1e-6)
    programs: dict[str, Callable[[], Any]] = {"adamw": plain.step, "cautious": cautious.step, "dcl": dcl.step}
    if find_spec("timm"):
        import_module("congruency._torchvision_compat")  # before timm
        from timm.optim.adamw import AdamWLegacy

        programs["timm"] = optimizer(AdamWLegacy, caution=True).step
    if device.type == "cuda":
        times = {name: device_seconds(program) for name, program in programs.items()}
    else:
        times = clock.time(programs)
    named = (times["adamw"], times["cautious"], times["dcl"], times.get("timm"))
    return UpdateRow(workload.name, workload.parameters, *named)


@torch.no_grad()
def _move(params: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """A noisy step down the gradients: the next gradient is congruent, its opposite is not."""
    for p, g in zip(params, gradients, strict=True):
        p.sub_(g + 0.3 * torch.randn_like(g), alpha=1e-3)


def measure_training_step(case: TrainingCase, device: torch.device, clock: _Clock) -> StepRow:
    """Measure a whole step, forward to update, with and without a correction that changes every step it can."""
    programs: dict[str, Callable[[], Any]] = {}
    corrector: congruency.Corrector | None = None
    fused = device.type == "cuda"
    kind: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
    for name in ("plain", "corrected"):
        model = case.make()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, **kind)
        if case.correction == "Cautious":
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **kind)
        chosen = list((congruency.head(model) if case.scope == "head" else model).parameters())
        if name == "plain":
            programs["optimizer"] = optimizer.step
        elif case.correction == "Cautious":
            corrector = congruency.Cautious(optimizer, chosen)
        else:
            corrector = congruency.DCL(optimizer, chosen, references=case.references, mode="anchor", margin=1e-6)
        programs[name] = _stepper(case, model, optimizer, device)
    programs["plain"]()  # gradients for the optimizer's own step
    times = clock.time(programs)
    assert corrector is not None
    share = int(corrector.stats.corrected_steps) / int(corrector.stats.steps)
    return StepRow(
        case.name, case.scope, sum(p.numel() for p in chosen), case.references,
        times["plain"], times["corrected"], times["optimizer"], share, case.correction,
    )  # fmt: skip


def _stepper(case: TrainingCase, model: nn.Module, optimizer: Any, device: torch.device) -> Callable[[], None]:
    loss = nn.CrossEntropyLoss()
    turn = itertools.cycle(range(len(case.inputs)))

    def step() -> None:
        i = next(turn)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=case.autocast):
            value = loss(model(case.inputs[i]), case.targets[i])
        value.backward()
        optimizer.step()

    return step


def device_seconds(program: Callable[[], Any], repeats: int = 10) -> float:
    """Return the time that a GPU works on one call of ``program``: all its kernels, without the gaps between them."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        program()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            program()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in profiler.key_averages())) / repeats * 1e-6


def _bytes_needed(workload: Workload, references: int) -> int:
    return workload.parameters * 4 * (4 + 3 * references)


def _fits(workload: Workload, references: int, device: torch.device) -> bool:
    """Whether parameters, momentum, gradients twice and three DCLs' references take 80 % of the free memory or less."""
    if references > 1 and workload.parameters > 3e7:
        return False  # many references of a large model add little to those of a smaller one, and take long
    need = _bytes_needed(workload, references)
    if device.type == "cuda":
        return need < 0.8 * torch.cuda.mem_get_info(device)[0]
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
    return need < 0.8 * pages


def machine(device: torch.device) -> dict[str, Any]:
    """Return what the numbers were measured on."""
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


def _show(console: Console, result: dict[str, Any]) -> None:
    machine, rate = result["machine"], result["bandwidth_bytes_per_second"] / 1e9
    where = machine["gpu"] or f"{machine['processor']}, {machine['threads']} threads"
    console.print(f"[bold]{where}[/bold], torch {machine['torch']}; memory moves {rate:.0f} GB/s here\n")
    table = _table("One correction of all parameters", _CORRECTION_NOTE, _CORRECTION_COLUMNS)
    for row in result["corrections"]:
        table.add_row(
            row["workload"], f"{row['parameters']:.3g}", str(row["references"]),
            _duration(row["congruent"]), _duration(row["corrected"]),
            f"{row['congruent'] / row['sgd_step']:.2f} {row['corrected'] / row['sgd_step']:.2f}",
            f"{row['host'] / row['corrected']:.0f}" if row["host"] else "-",
            f"{row['memory_limit'] / row['corrected']:.0%}",
        )  # fmt: skip
    console.print(table)
    if result["updates"]:
        table = _table("An AdamW step whose update is corrected", _UPDATE_NOTE, _UPDATE_COLUMNS)
        for row in result["updates"]:
            base = row["adamw_step"]
            ratios = [row[name] and f"{row[name] / base:.2f}" for name in ("cautious", "timm_cautious", "dcl_update")]
            shown = [ratio or "-" for ratio in ratios]
            table.add_row(row["workload"], f"{row['parameters']:.3g}", _duration(base), *shown)
        console.print(table)
    if not result["training_steps"]:
        return
    table = _table("A whole training step, corrected every time", _STEP_NOTE, _STEP_COLUMNS)
    for step in result["training_steps"]:
        more = step["step_with_dcl"] - step["step"]
        table.add_row(
            step["network"], step["scope"], _correction(step), _duration(step["step"]),
            _duration(step["step_with_dcl"]), f"{more / step['step']:+.1%}", f"{more / step['sgd_step']:.2f}",
        )  # fmt: skip
    console.print(table)


def _correction(step: dict[str, Any]) -> str:
    """Return which correction a row measured; older files know only DCL."""
    name: str = step.get("correction", "DCL")
    return f"{name} {step['references']}" if name == "DCL" else name


def _table(title: str, note: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, caption=note, title_justify="left", caption_justify="left", box=SIMPLE, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table


_CORRECTION_COLUMNS = ("what", "size", "refs", "congruent", "corrected", "x SGD", "host", "limit")
_CORRECTION_NOTE = (
    "Medians. congruent: the gradient disagrees with nothing and is left alone; corrected: it is rewritten. "
    "x SGD: both, beside a foreach SGD-momentum step on the same parameters. host: how many times more DCL "
    "through the host costs (numpy float64 and quadprog). limit: the time that moving the memory alone would take, as "
    "a share of the corrected case's. On a GPU times are the device's own."
)
_UPDATE_COLUMNS = ("what", "size", "AdamW", "x Cautious", "x timm", "x DCL")
_UPDATE_NOTE = (
    "Medians of whole optimizer steps. x: the step with the correction over AdamW's own (foreach). timm: its cautious "
    "AdamW. DCL: on the update, one reference. On a GPU times are the device's own."
)
_STEP_COLUMNS = ("network", "scope", "correction", "plain", "corrected", "more", "x step")
_STEP_NOTE = (
    "Medians. DCL 3: with 3 references, on SGD with momentum; Cautious: on AdamW. x step: what the correction adds, "
    "beside the optimizer's own step."
)


def _duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.2f} us"
