"""``congruency reproduce`` for the tables and grids of classification: run under a progress bar, show, write."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from congruency.report.tables import to_rich
from congruency.studies.catalogue import DATA_TITLES, partial_set
from congruency.studies.classification.grids import GRIDS, grid
from congruency.studies.classification.grids import TITLES as GRID_TITLES
from congruency.studies.classification.jobs import Table, changed, pick, told_changes
from congruency.studies.classification.running import Machine, Stopped, Work, run_table
from congruency.studies.classification.showing import collect, narrow, show
from congruency.studies.classification.store import Store, check_settings, read_settings
from congruency.studies.classification.tables import TITLES as PAPER_TITLES
from congruency.studies.classification.tables import paper_table
from congruency.studies.console import plain_warnings, progress, typed
from congruency.training import STOPPED_EXIT_CODE
from congruency.training.processes import first_process, process_count

__all__ = ["TITLES", "run"]

TITLES = {**PAPER_TITLES, **GRID_TITLES}
_WIDE = 150  # columns of a terminal that a whole table needs


def run(
    *,
    table: str,
    seeds: Sequence[int],
    rows: Sequence[str],
    out: Path,
    budget: str | None = None,
    data: Path | None = None,
    base: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    compile: bool = False,
    capture: bool | None = None,
    channels_last: bool | None = None,
    changes: dict[str, Any] | None = None,
    cache: Path | None = None,
    processes: int = 1,
    minutes: float | None = None,
    only_show: bool = False,
    record_steps: int = 0,
) -> int:
    """Run a table of classification and show it; what the command exits with.

    Args:
        table: its name.
        seeds: one run of every training each.
        rows: names of rows, or their beginnings; empty for all.
        out: for the results; what is finished there is not run again.
        budget: ``"paper"`` or ``"small"``, of the paper's tables.
        data: the folder of data sets.
        base: another set instead of the table's.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        precision: None takes bf16 for grids on a GPU, else 32.
        compile: run networks through ``torch.compile``.
        capture: replay their passes as CUDA graphs; None does so for the grids, on a GPU.
        channels_last: None takes it on a GPU.
        changes: other attributes of every training's setup.
        cache: a folder for decoded images.
        processes: trainings at once.
        minutes: begin no training that would not be over by then.
        only_show: run nothing.
        record_steps: keep the line of every so many-th step in the runs' records; 0 for none.
    """
    console = Console()
    held = read_settings(out)
    if only_show and held is None:
        raise ValueError(f"{out} holds no runs to show; leave --show off to make some")
    machine = _machine(table, device, precision, compile, capture, channels_last)
    settings: dict[str, Any] = {
        "table": table, "budget": budget or "paper", "base": Path(base).name if base else None,
        "real_images": data is not None or base is not None, "changes": _told(changes), "machine": asdict(machine),
    }  # fmt: skip
    command = shlex.join(["congruency", *sys.argv[1:]])
    if only_show and held is not None:
        if held["table"] != table:
            raise ValueError(f"{out} holds runs of the table {held['table']}, not {table}")
        settings, command = held, held.get("command", command)
    if table in GRIDS and settings["budget"] != "paper":
        raise ValueError(f"{table} has no small budget; give fewer --seeds, --rows or --epochs")
    chosen = pick(_table(settings), rows)
    began = perf_counter()
    left = 0
    if not only_show:
        if process_count() > 1 and (processes > 1 or minutes is not None):
            raise ValueError("--processes and --minutes are for one process; leave them off under torchrun")
        if record_steps and all(job.short for row in chosen.rows for job in row.jobs):
            raise ValueError(f"--record-steps is for runs whose records are kept, which those of {table} are not")
        for setup in dict.fromkeys(job.setup for row in chosen.rows for job in row.jobs):
            setup.check()
        if held is None:
            versions = {"device_name": _device_name(machine.device), "torch": torch.__version__}
            settings |= {"command": command, **versions, "remarks": _remarks(chosen, data, base)}
        check_settings(out, settings)
        work = Work(
            folder=out,
            machine=machine,
            data=data,
            base=base,
            cache=cache,
            processes=processes,
            minutes=minutes,
            table=table,
            command=typed(),
            record_steps=record_steps,
        )
        try:
            with plain_warnings(first_process()), progress(console, "trainings") as tell:
                left = run_table(chosen, seeds, replace(work, tell=tell))
        except Stopped:
            console.print("stopped; the same command goes on where it stopped", markup=False)
            return STOPPED_EXIT_CODE
    if not first_process():
        return 0
    chosen = pick(_table(read_settings(out) or settings), rows)  # with what its first run had to remark
    results = collect(chosen, Store(out))
    page, paths = show(chosen, results, out, command, _made(read_settings(out) or settings))
    console.print(page.title, markup=False, highlight=False)
    for remark in _limits(settings):
        console.print(remark, markup=False, highlight=False)
    if console.width >= _WIDE:
        console.print(to_rich(page.table))
    else:
        console.print(narrow(page.table), markup=False, highlight=False)
    if left:
        console.print(f"\nThe time was up: {left} trainings are left; the same command goes on.", highlight=False)
    console.print(f"\n{perf_counter() - began:.0f} seconds. The page: {paths[1]}", markup=False, highlight=False)
    return 0


def _machine(
    table: str,
    device: str,
    precision: str | None,
    compile: bool,
    capture: bool | None,
    channels_last: bool | None,
) -> Machine:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"device must be auto, cpu or cuda for classification, got {device!r}; "
            "choose one of several GPUs with CUDA_VISIBLE_DEVICES"
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    cuda = device == "cuda"
    captures = cuda and table in GRIDS and precision != "16" and process_count() == 1
    return Machine(
        device=device,
        precision=precision or ("bf16" if cuda and table in GRIDS else "32"),
        compile=compile,
        capture=captures if capture is None else capture,
        channels_last=cuda if channels_last is None else channels_last,
        tf32=cuda,
    )


def _table(settings: dict[str, Any]) -> Table:
    name = settings["table"]
    if name in GRIDS:
        table = grid(name)
    elif name in PAPER_TITLES:
        table = paper_table(name, settings["budget"], real_images=settings["real_images"])
    else:
        raise ValueError(f"there is no table {name!r} of classification; the tables are {', '.join(TITLES)}")
    changes: dict[str, Any] = settings["changes"]
    table = changed(table, **changes)
    if settings.get("remarks"):
        table = replace(table, lead=f"{table.lead} {' '.join(settings['remarks'])}")
    if not settings["base"]:
        return table
    return replace(table, title=f"{table.title}, {settings['base']} instead of its images")


def _remarks(table: Table, data: Path | None, base: str | None) -> list[str]:
    """What the names of the files say about sets that are not the official ones."""
    used = {job.data.name for row in table.rows for job in row.jobs if not job.data.made_up}
    if base is not None:
        return []
    remarks = {name: partial_set(name, data) for name in sorted(used)}
    return [f"{DATA_TITLES[name]} is not the official set here: {told}." for name, told in remarks.items() if told]


def _limits(settings: dict[str, Any]) -> list[str]:
    """What makes a result another than the table's, for a reader of the terminal alone."""
    return [text for text in (*settings.get("remarks", []), told_changes(settings["changes"])) if text]


def _told(changes: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (changes or {}).items() if value is not None}


def _made(settings: dict[str, Any]) -> str:
    machine = settings["machine"]
    rounded = " (products in TF32)" if machine["tf32"] and machine["precision"] == "32" else ""
    compiled = ", compiled" if machine["compile"] else ""
    captured = ", as CUDA graphs" if machine.get("capture") else ""
    version = f", with PyTorch {settings['torch']}" if "torch" in settings else ""
    how = f"in precision {machine['precision']}{rounded}{compiled}{captured}{version}"
    return f"from runs on {settings['device_name']} {how}"


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device
