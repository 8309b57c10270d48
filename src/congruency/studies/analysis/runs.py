"""Find run records, read them, and group runs that differ only in their seeds."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from congruency.training.record import RECORD_NAME, read_record
from congruency.training.wording import correction, flat, method_name

# Settings that do not define what was run: how it was computed or monitored.
_INCIDENTAL = {
    "seed", "method", "flush_every", "record_steps", "checkpoint_steps", "checkpoint_epochs", "progress", "tensorboard",
    "workers", "accelerator",
}  # fmt: skip

_FIRST_NAMED = ("data", "model", "optimizer", "sample_order", "training_images", "epochs")


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The validated record of one run.

    Attributes:
        name: where it was read from, for messages.
        method: the method in words; ``kind`` is its key: ``baseline``, ``gem``, ``dcl``, ``cautious`` or ``l2sp``.
        settings, correction, machine: task and training settings, the method's settings, and device and versions.
        steps, epochs: the lines of the record; ``planned`` is the number of epochs configured.
        scores: scores after training by metric, if any.
    """

    name: str
    method: str
    seed: int
    planned: int
    settings: Mapping[str, str]
    steps: Sequence[Mapping[str, Any]]
    epochs: Sequence[Mapping[str, Any]]
    kind: str = "-"
    correction: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return len(self.epochs) >= self.planned


@dataclass(frozen=True)
class Loaded:
    """The runs that were read, and a message for each that was skipped."""

    runs: list[RecordedRun] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seeds.

    Attributes:
        name: the method with the settings needed to distinguish the group from others.
        variant: the settings in which groups differ.
        runs: one per seed, sorted by seed.
        left_out: further runs with the same seeds.
    """

    name: str
    method: str
    variant: tuple[tuple[str, str], ...]
    runs: Sequence[RecordedRun]
    left_out: Sequence[RecordedRun] = ()

    @property
    def kind(self) -> str:
        """The method's key; see :class:`RecordedRun`."""
        return self.runs[0].kind

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]


def find_records(places: Iterable[Path]) -> list[Path]:
    """Return the records at the given paths: a record file, a run's folder, or all runs below a folder."""
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise FileNotFoundError(f"{place} is missing; give a run's folder, a folder of runs, or a record")
        if not place.is_dir():
            found.append(place)
            continue
        below = sorted(place.rglob(RECORD_NAME))
        if not below:
            raise FileNotFoundError(
                f"{place} holds no run: there is no {RECORD_NAME} in it or below it; tables of continual learning and "
                "short grids keep none, and have pages of their own (index.html)"
            )
        found += below
    return list(dict.fromkeys(path.resolve() for path in found))


def load(paths: Iterable[Path], *, unfinished: bool = False) -> Loaded:
    """Read the records; damaged ones, and unfinished ones unless ``unfinished``, are skipped with a message."""
    loaded = Loaded()
    for path in paths:
        name = _short(path)
        try:
            run = _run(path, name)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as reason:
            text = f"it has no {reason}" if isinstance(reason, KeyError) else str(reason).replace(str(path), "it")
            loaded.messages.append(f"{name} was skipped: {text}")
            continue
        if not run.epochs:
            loaded.messages.append(f"{name} was skipped: no epoch of it is finished")
        elif not run.finished and not unfinished:
            loaded.messages.append(
                f"{name} was skipped: it has {len(run.epochs)} of {run.planned} epochs; --unfinished includes it"
            )
        else:
            loaded.runs.append(run)
    return loaded


def _run(path: Path, name: str) -> RecordedRun:
    record = read_record(path)
    config = record.run["config"]
    method, task = config["method"], record.run.get("task") or {}
    if not isinstance(method, Mapping) or not isinstance(task, Mapping):
        raise ValueError("its first line does not describe a run")
    for line in (*record.steps, *record.epochs):
        if not all(isinstance(line.get(name), int) and 0 <= line[name] < 2**53 for name in ("epoch", "step")):
            raise ValueError("a line in it has no epoch or no step; the record is damaged")
        if not isinstance(line.get("evaluation") or {}, Mapping):
            raise ValueError("an evaluation in it is not a set of figures; the record is damaged")
    known = {name: value for name in ("command", "data") if isinstance(value := record.run.get(name), str)}
    described = {name: value for part in (config, task) for name, value in part.items() if name not in _INCIDENTAL}
    settings = flat(described) | ({"data": known["data"]} if "data" in known else {})
    if settings.get("sample_order") != "fixed":
        settings.pop("order_seed", None)  # it follows from the seed
    versions = record.run.get("versions")
    machine = {"device": str(record.run.get("device", "-")), "processes": str(record.run.get("processes", "-"))}
    return RecordedRun(
        name=name,
        method=method_name(method),
        seed=int(record.run["seed"]),
        planned=int(config["epochs"]),
        settings=settings,
        steps=record.steps,
        epochs=record.epochs,
        kind=str(method["name"]),
        correction=flat(correction(method)),
        machine=machine | (flat(versions) if isinstance(versions, Mapping) else {}),
        command=known.get("command"),
        scores=_scores(path.with_name("scores.json")),
    )


def _scores(path: Path) -> dict[str, float]:
    """The scores of the trained network, which saliency runs store beside their record."""
    if not path.is_file():
        return {}
    scores = json.loads(path.read_text(encoding="utf-8"))["scores"]
    return {str(name): number(scores, name) for name in scores}


def group(runs: Sequence[RecordedRun]) -> list[Group]:
    """Group runs that differ only in their seeds; baselines come first, otherwise in the order of the runs.

    If a seed occurs more than once, the first finished run counts, else the first; the others are ``left_out``.
    """
    keys = varying(runs)
    named = _distinguishing(runs, keys)
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, list[RecordedRun]]] = {}
    for run in runs:
        variant = tuple((key, run.settings.get(key, "-")) for key in keys)
        groups.setdefault((run.method, variant), {}).setdefault(run.seed, []).append(run)
    made = []
    for (method, variant), by_seed in groups.items():
        name = row_name(method, {key: dict(variant)[key] for key in named})
        chosen = [max(by_seed[seed], key=lambda run: run.finished) for seed in sorted(by_seed)]
        left_out = [run for same in by_seed.values() for run in same if run not in chosen]
        made.append(Group(name, method, variant, chosen, left_out))
    return sorted(made, key=lambda each: each.kind != "baseline")


def varying(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the settings that differ between runs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({run.settings.get(key, "-") for run in runs}) > 1]


def _distinguishing(runs: Sequence[RecordedRun], keys: Sequence[str]) -> list[str]:
    """Choose few settings that distinguish as much as all; many vary together, such as data set and pixel mean."""
    chosen: list[str] = []
    kinds = 1
    for key in sorted(keys, key=lambda key: _FIRST_NAMED.index(key) if key in _FIRST_NAMED else len(_FIRST_NAMED)):
        found = {tuple(run.settings.get(each, "-") for each in (*chosen, key)) for run in runs}
        if len(found) > kinds:
            chosen.append(key)
            kinds = len(found)
    return chosen


def row_name(method: str, settings: Mapping[str, str]) -> str:
    """Return a row's name: the method in words, and the settings in which it differs from other rows."""
    listed = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())
    return f"{method} ({listed})" if listed else method


def number(line: Mapping[str, Any], *names: str) -> float:
    """Return a number from a line's nested dicts; nan if it is missing, null or not a finite number."""
    value: Any = line
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if known else math.nan


def _short(path: Path) -> str:
    """The last parts of a path, without machine-specific folders."""
    parts = path.parts[-3:] if path.name == RECORD_NAME else path.parts[-2:]
    return "/".join(part for part in parts if part != path.anchor)
