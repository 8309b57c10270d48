"""Run records of any set of runs: found, read, and put together by what was run, whatever the seed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from congruency.training.config import Correction
from congruency.training.record import RECORD_NAME, Origin, read_record

__all__ = ["Group", "Loaded", "Run", "correction", "find_records", "group", "load", "method_name", "number", "varying"]

# What says how a run was computed or watched, not what was run.
_INCIDENTAL = {
    "seed", "method", "flush_every", "record_steps", "checkpoint_steps", "checkpoint_epochs", "progress", "tensorboard",
    "workers", "accelerator",
}  # fmt: skip

# What of its settings a method trains by, with its own value where none was given.
_BY_METHOD: dict[str, dict[str, Any]] = {
    "baseline": {},
    "gem": {
        "memory": 1, "margin": Correction(name="gem").effective_margin,
        "trigger": Correction(name="gem").effective_trigger, "scope": "head",
    },
    "dcl": {
        "window": None, "references": 1, "mode": "concentrate", "margin": Correction(name="dcl").effective_margin,
        "offset": 0, "trigger": Correction(name="dcl").effective_trigger, "accumulate": "weights",
        "scope": "head",
    },
}  # fmt: skip
_OF_METHODS = {setting.name for setting in fields(Correction)}

_WORDS = {"trigger": "{value}", "scope": "whole network", "accumulate": "accumulating {value}"}

# What tables write of a finished run where they keep no record: those of continual learning, and the short grids.
_FINISHED_RUNS = ({"setting", "method", "matrix"}, {"row", "seed", "job", "figures"})
_OWN_PAGE = (
    "it is of results without records; tables of continual learning and short grids (cifar10_grid, cifar100_noisy, "
    "tiny_subset) keep none, and have pages of their own (index.html, by congruency reproduce)"
)

_FIRST_TOLD = ("data", "model", "optimizer", "sample_order", "training_images", "epochs")


@dataclass(frozen=True, eq=False)
class Run:
    """One run's record, checked.

    Attributes:
        name: the place it was read from, for messages.
        method: in words.
        seed: of the run.
        planned: how many epochs it was to have.
        settings: what else was run, by name.
        kind: the method's own name: ``baseline``, ``gem`` or ``dcl``.
        correction: the settings by which that method corrected gradients, by name.
        machine: what it was computed on and with, by name.
        origin: where it comes from.
        scores: what it was scored with after training, by metric, if it was.
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
    kind: str = "-"
    correction: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    scores: Mapping[str, float] = field(default_factory=dict)

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
        name: the method, and as many of the settings in which it differs from other groups as tell it from them.
        method: the method alone.
        variant: those settings.
        runs: by rising seed, one a seed.
        left_out: further runs of those seeds.
    """

    name: str
    method: str
    variant: tuple[tuple[str, str], ...]
    runs: Sequence[Run]
    left_out: Sequence[Run] = ()

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
            if any(map(_of_a_table, [*sorted(place.glob("*.json*")), *sorted(place.glob("runs/*.json"))])):
                raise FileNotFoundError(f"{place} has no {RECORD_NAME}: {_OWN_PAGE}")
            raise FileNotFoundError(f"{place} holds no run: there is no {RECORD_NAME} in it or below it")
        found += below
    return list(dict.fromkeys(path.resolve() for path in found))


def _of_a_table(path: Path) -> bool:
    """Whether a file is what a table keeps instead of records: its results, or a finished run of it."""
    if path.name == "results.json":
        return True
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and any(keys <= first.keys() for keys in _FINISHED_RUNS)


def load(paths: Iterable[Path], *, unfinished: bool = False) -> Loaded:
    """Read the records; a damaged one is named and left out, and so is an unfinished one unless it is wanted."""
    loaded = Loaded()
    for path in paths:
        name = _short(path)
        try:
            run = _run(path, name)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as reason:
            if _of_a_table(path):
                loaded.messages.append(f"{name} was skipped: {_OWN_PAGE}")
                continue
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
        if not all(isinstance(line.get(name), int) and 0 <= line[name] < 2**53 for name in ("epoch", "step")):
            raise ValueError("a line in it has no epoch or no step; the record is damaged")
        if not isinstance(line.get("evaluation") or {}, Mapping):
            raise ValueError("an evaluation in it is not a set of figures; the record is damaged")
    origin = Origin(**{name: _text(record.run.get(name)) for name in ("command", "data", "table", "row")})
    settings = {**_flat(config), **_flat(task)} | ({} if origin.data is None else {"data": origin.data})
    if settings.get("sample_order") != "fixed":
        settings.pop("order_seed", None)  # it follows from the seed
    versions = record.run.get("versions")
    machine = {"device": str(record.run.get("device", "-")), "processes": str(record.run.get("processes", "-"))}
    return Run(
        name=name,
        method=method_name(method),
        seed=int(record.run["seed"]),
        planned=int(config["epochs"]),
        settings={key: value for key, value in settings.items() if key.partition(".")[0] not in _INCIDENTAL},
        steps=record.steps,
        epochs=record.epochs,
        kind=str(method["name"]),
        correction=correction(method),
        machine=machine | (_flat(versions) if isinstance(versions, Mapping) else {}),
        origin=origin,
        scores=_scores(path.with_name("scores.json")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _scores(path: Path) -> dict[str, float]:
    """What saliency's runs leave beside their record: the scores of the trained network."""
    if not path.is_file():
        return {}
    scores = json.loads(path.read_text(encoding="utf-8"))["scores"]
    return {str(name): number(scores, name) for name in scores}


def correction(method: Mapping[str, Any]) -> dict[str, str]:
    """The settings that a method trains by, its defaults filled in: what it leaves alone cannot tell two runs apart.

    Names that this release does not know are kept, for they may have changed the training.
    """
    settings = _BY_METHOD.get(str(method["name"]))
    if settings is None:
        return {key: value for key, value in _flat(method).items() if key != "name"}
    own = {key: method[key] if method.get(key) is not None else usual for key, usual in settings.items()}
    if "margin" in own:
        own["margin"] = f"{own['margin']:g}"  # 0 and 0.0 are one margin
    return _flat(own | {key: value for key, value in method.items() if key not in _OF_METHODS})


def method_name(method: Mapping[str, Any]) -> str:
    """A method in words: ``baseline``, ``GEM``, or the paper's ``DCL-window-references`` with its mode.

    What is not as usual is told too, so that methods which train differently have different names.
    """
    name, own = str(method["name"]), correction(method)
    usual = correction({"name": name})
    told = ""
    if name == "dcl":
        window, references, mode = (own.pop(key) for key in ("window", "references", "mode"))
        told = f"-{'∞' if window == 'None' else window}-{references} {mode}"
    words = [_WORDS.get(key, "{key} {value}").format(key=key.replace("_", " "), value=value)
             for key, value in own.items() if value != usual.get(key)]  # fmt: skip
    return ", ".join([(name if name == "baseline" else name.upper()) + told, *words])


def group(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their first runs, the baselines first; of a seed that comes twice one run counts.

    That is the first one, or the first that has come to its end; the others are kept as left out.
    """
    keys = varying(runs)
    telling = _telling(runs, keys)
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, list[Run]]] = {}
    for run in runs:
        variant = tuple((key, run.settings.get(key, "-")) for key in keys)
        groups.setdefault((run.method, variant), {}).setdefault(run.seed, []).append(run)
    made = []
    for (method, variant), by_seed in groups.items():
        chosen = [max(by_seed[seed], key=lambda run: run.finished) for seed in sorted(by_seed)]
        left_out = [run for same in by_seed.values() for run in same if run not in chosen]
        made.append(Group(_group_name(method, variant, telling), method, variant, chosen, left_out))
    return sorted(made, key=lambda each: each.method != "baseline")


def varying(runs: Sequence[Run]) -> list[str]:
    """The settings that differ between runs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({run.settings.get(key, "-") for run in runs}) > 1]


def _telling(runs: Sequence[Run], keys: Sequence[str]) -> list[str]:
    """As few of the settings as tell apart what all of them do: another data set has another mean of its pixels too."""
    chosen: list[str] = []
    kinds = 1
    for key in sorted(keys, key=lambda key: _FIRST_TOLD.index(key) if key in _FIRST_TOLD else len(_FIRST_TOLD)):
        told = {tuple(run.settings.get(each, "-") for each in (*chosen, key)) for run in runs}
        if len(told) > kinds:
            chosen.append(key)
            kinds = len(told)
    return chosen


def _group_name(method: str, variant: Sequence[tuple[str, str]], telling: Sequence[str]) -> str:
    values = dict(variant)
    told = ", ".join(f"{key.replace('_', ' ')} {values[key]}" for key in telling)
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
    """A figure of a line, through the dicts within it; nan where it is missing, null or no number that is finite."""
    value: Any = line
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if known else math.nan


def _short(path: Path) -> str:
    """Enough of a path to know it by, and no more of the machine than that."""
    parts = path.parts[-3:] if path.name == RECORD_NAME else path.parts[-2:]
    return "/".join(part for part in parts if part != path.anchor)
