"""Shared parts of `train` and `train-lm`: checks of the run folder, and the final report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from congruency.report.tables import Table
    from congruency.training import Result
    from congruency.training.config import Correction

_NAMES = {"dcl": "DCL", "gem": "GEM", "cautious": "Cautious"}


def check_folder_free(out: Path, resume: bool) -> bool:
    """Return whether the folder holds a run; raise FileExistsError if it does and ``resume`` is False."""
    from congruency.training.record import RECORD_NAME

    held = (out / RECORD_NAME).exists()
    if held and not resume:
        raise FileExistsError(f"{out} already holds a run; give --resume to continue it, or another --out")
    return held


def check_same(out: Path, here: Mapping[str, Any], usual: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Raise ValueError if the run to resume has another task; the training loop checks its own settings.

    ``usual`` are defaults for settings that older records lack.
    """
    from congruency._validate import changes
    from congruency.training import read_record

    began = {**usual, **read_record(out).run.get("task", {})}
    plain = json.loads(json.dumps(here))
    different = {
        name: value for name, value in plain.items() if name != "workers" and name in began and began[name] != value
    }
    if different:
        listed = "; ".join(changes(began, different))
        raise ValueError(f"{out} holds another run ({listed}); give its options, or another --out")


def report(
    result: Result, method: Correction, table: Callable[[Sequence[Mapping[str, Any]]], Table], console: Console
) -> None:
    """Print the table of the run's epochs, whether it was stopped, and where its files are."""
    from congruency.report.tables import to_rich
    from congruency.training import read_record

    epochs = read_record(result.record).epochs
    if epochs:
        console.print(to_rich(table(epochs)))
    if result.finished and method.name in _NAMES and not any(line["corrected_share"] for line in epochs):
        console.print(_nothing_corrected(method), markup=False)
    if not result.finished:
        console.print(_stopped(result), markup=False)
    console.print(f"record: {result.record}", markup=False, soft_wrap=True)
    if result.checkpoint is not None:
        console.print(f"weights: {result.checkpoint}", markup=False, soft_wrap=True)


def _nothing_corrected(method: Correction) -> str:
    why = "nothing disagreed"
    if method.name == "dcl":
        why += "; more steps or a shorter --window may show more"
    if method.floor is not None:
        why = "it corrects only weak disagreement, which is rare with momentum; --floor none is the paper's form"
    without = "Cautious alone" if method.cautious else "plain training"
    return f"{_NAMES[method.name]} corrected no step, so this was {without}: {why}."


def _stopped(result: Result) -> str:
    again = "the same command with --resume"
    if result.resumes_at == result.steps:
        return f"stopped; {again} resumes where it stopped"
    where = f"resumes from the last one, of step {result.resumes_at}" if result.resumes_at else "starts again"
    return f"stopped at step {result.steps}, whose checkpoint could not be written; {again} {where}"


def shown(value: float | None, digits: int = 2) -> str:
    """Format a number of a record; a dash if it is missing."""
    from congruency.report.numbers import fixed

    return fixed(float("nan") if value is None else value, digits)
