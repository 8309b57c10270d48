"""Run records of any set of runs: found, read, and put together by what was run, whatever the seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from congruency.training.record import RECORD_NAME, read_record

__all__ = ["Group", "Loaded", "Run", "find_records", "group", "load", "method_name", "number"]

# What says how a run was computed or watched, not what was run.
_INCIDENTAL = {
    "seed", "method", "flush_every", "record_steps", "checkpoint_steps", "checkpoint_epochs", "progress", "tensorboard",
    "workers", "accelerator",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    """One run's record, checked.

    Attributes:
        name: the place it was read from, for messages.
        method: in words.
        seed: of the run.
        planned: how many epochs it was to have.
        settings: what else was run, by name.
        steps: the lines of its steps.
        epochs: the lines of its epochs.
    """

    name: str
    method: str
    seed: int
    planned: int
    settings: Mapping[str, str]
    steps: Sequence[Mapping[str, Any]]
    epochs: Sequence[Mapping[str, Any]]

    @property
    def finished(self) -> bool:
        return len(self.epochs) >= self.planned


@dataclass(frozen=True)
class Loaded:
    """The runs that could be read, and a message for each that could not, or was left out."""

    runs: list[Run] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in their seeds alone.

    Attributes:
        name: the method, and the settings in which it differs from other groups.
        method: the method alone.
        variant: those settings.
        runs: by rising seed.
    """

    name: str
    method: str
    variant: tuple[tuple[str, str], ...]
    runs: Sequence[Run]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]


def find_records(places: Iterable[Path]) -> list[Path]:
    """The records at some places: a record itself, a run's folder, or all runs anywhere below a folder."""
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise FileNotFoundError(f"{place} is missing; give a run's folder, a folder of runs, or a record")
        if not place.is_dir():
            found.append(place)
            continue
        below = sorted(place.rglob(RECORD_NAME))
        if not below:
            raise FileNotFoundError(f"{place} holds no run: there is no {RECORD_NAME} in it or below it")
        found += below
    return list(dict.fromkeys(path.resolve() for path in found))


def load(paths: Iterable[Path], *, unfinished: bool = False) -> Loaded:
    """Read the records; a damaged one is named and left out, and so is an unfinished one unless it is wanted."""
    loaded = Loaded()
    for path in paths:
        name = _short(path)
        try:
            run = _run(path, name)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as reason:
            told = f"it has no {reason}" if isinstance(reason, KeyError) else str(reason).replace(str(path), "it")
            loaded.messages.append(f"{name} was skipped: {told}")
            continue
        if not run.epochs:
            loaded.messages.append(f"{name} was skipped: no epoch of it is finished")
        elif not run.finished and not unfinished:
            loaded.messages.append(
                f"{name} was skipped: it has {len(run.epochs)} of {run.planned} epochs; --unfinished takes it in"
            )
        else:
            loaded.runs.append(run)
    return loaded


def _run(path: Path, name: str) -> Run:
    record = read_record(path)
    config = record.run["config"]
    method, task = config["method"], record.run.get("task") or {}
    if not isinstance(method, Mapping) or not isinstance(task, Mapping):
        raise ValueError("its first line does not describe a run")
    for line in (*record.steps, *record.epochs):
        if not all(isinstance(line.get(name), int) for name in ("epoch", "step")):
            raise ValueError("a line in it has no epoch or no step; the record is damaged")
        if not isinstance(line.get("evaluation") or {}, Mapping):
            raise ValueError("an evaluation in it is not a set of figures; the record is damaged")
    settings = {**_flat(config), **_flat(task)}
    return Run(
        name=name,
        method=method_name(method),
        seed=int(record.run["seed"]),
        planned=int(config["epochs"]),
        settings={key: value for key, value in settings.items() if key.partition(".")[0] not in _INCIDENTAL},
        steps=record.steps,
        epochs=record.epochs,
    )


def method_name(method: Mapping[str, Any]) -> str:
    """A method in words: ``baseline``, ``GEM``, or the paper's ``DCL-window-references`` with its mode."""
    name = str(method["name"])
    scope = "" if method.get("scope", "head") == "head" else ", whole network"
    margin = "" if method.get("margin") is None else f", margin {method['margin']:g}"
    if name == "baseline":
        return name
    if name != "dcl":
        return f"{name.upper()}{margin}{scope}"
    window = "∞" if method.get("window") is None else method["window"]
    offset = f", offset {method['offset']}" if method.get("offset") else ""
    trigger = f", {method['trigger']}" if method.get("trigger") else ""
    return f"DCL-{window}-{method.get('references', 1)} {method.get('mode')}{margin}{offset}{trigger}{scope}"


def group(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their first runs, the baselines first; a seed that comes twice counts once."""
    varying = _varying(runs)
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, Run]] = {}
    for run in runs:
        variant = tuple((key, run.settings.get(key, "-")) for key in varying)
        groups.setdefault((run.method, variant), {}).setdefault(run.seed, run)
    made = [
        Group(_group_name(method, variant), method, variant, [by_seed[seed] for seed in sorted(by_seed)])
        for (method, variant), by_seed in groups.items()
    ]
    return sorted(made, key=lambda each: each.method != "baseline")


def _varying(runs: Sequence[Run]) -> list[str]:
    """The settings that differ between runs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({run.settings.get(key, "-") for run in runs}) > 1]


def _group_name(method: str, variant: Sequence[tuple[str, str]]) -> str:
    told = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in variant)
    return f"{method} ({told})" if told else method


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = str(value)
    return flat


def number(line: Mapping[str, Any], *names: str) -> float:
    """A figure of a line, through the dicts within it; nan where it is missing, null or no number."""
    value: Any = line
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _short(path: Path) -> str:
    """Enough of a path to know it by, and no more of the machine than that."""
    parts = path.parts[-3:] if path.name == RECORD_NAME else path.parts[-2:]
    return "/".join(part for part in parts if part != path.anchor)
