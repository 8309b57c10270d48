"""All studies of image classifiers by name: our grids, the paper's error tables and its cost tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from congruency.datasets import SETS
from congruency.datasets.loading import find
from congruency.studies import cost
from congruency.studies.classification import grids, tables, tuned
from congruency.studies.classification.jobs import ImageJob, changed
from congruency.studies.network_runs import Machine, chosen_device
from congruency.studies.plan import Study
from congruency.training.config import Accelerator, Precision

TITLES = {**tables.TITLES, **cost.TITLES, **grids.TITLES}
_STUDIES = {**tables.TABLES, **cost.TABLES, **grids.GRIDS}
_PARTIAL = {"subset": "a subset", "noisy": "its training labels noisy"}  # part of a file name: what it means
_SHARED = " Within a seed all rows begin with the same weights and see the same batches."


def named_study(name: str) -> Study[ImageJob]:
    """Return a study by its name."""
    if name not in _STUDIES:
        raise ValueError(f"there is no table {name!r} of classification; the tables are {', '.join(TITLES)}")
    return _STUDIES[name]()


def study_of(settings: Mapping[str, Any]) -> Study[ImageJob]:
    """Rebuild the study from a folder's ``settings.json``: its table with the changed options."""
    study = changed(named_study(settings["table"]), **settings["changes"])
    instead = f", {settings['base']} instead of its images" if settings["base"] else ""
    text = " ".join([study.lead, *settings.get("remarks", [])])
    return replace(study, title=f"{study.title}{instead}", lead=f"{text}{_SHARED}")


def sets_of(study: Study[ImageJob]) -> set[str]:
    """Return the data sets that a study reads."""
    return {job.data.name for row in study.rows for job in row.jobs if not job.data.synthetic}


def remarks(names: Iterable[str], data: Path | None) -> list[str]:
    """Return one remark per data set whose file name says that it is not the official set."""
    found = []
    for name in sorted(set(names)):
        try:
            place = find(name, data)
        except (FileNotFoundError, ValueError):
            continue
        partial = ", ".join(words for part, words in _PARTIAL.items() if part in place.name.lower())
        if partial:
            title = SETS[name].title.partition(",")[0]
            found.append(f"{title} is not the official set here: {partial} ({place.name}).")
    return found


def choose_machine(
    table: str,
    device: Accelerator,
    precision: Precision | None = None,
    compile: bool = False,
    capture: bool | None = None,
) -> Machine:
    """Return the machine settings of a study; None chooses the default: for grids on a GPU bf16 and CUDA graphs."""
    device = chosen_device(device)
    cuda, short = device == "cuda", table in (*grids.GRIDS, *tuned.TUNED)
    captures = cuda and short and precision != "16"
    return Machine(
        device=device,
        precision=precision or ("bf16" if cuda and short else "32"),
        compile=compile,
        capture=captures if capture is None else capture,
        channels_last=cuda,
        tf32=cuda,
    )
