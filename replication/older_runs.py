"""Runs of continual learning that were kept as one file each (``runs/*.json``), put into the store of their folder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from congruency.continual import Outcome
from congruency.studies.continual.runner import result_of
from congruency.studies.continual.tables import digest
from congruency.studies.plan import Run
from congruency.studies.store import Store


def import_older_runs(folder: Path, into: Path) -> None:
    """Add the runs that a folder keeps as one file each to a store, which ``congruency reproduce`` resumes from.

    Raises:
        ValueError: a file is not a finished run.
    """
    store = Store(into)
    known = store.load()
    for path in sorted((folder / "runs").glob("*.json")):
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            key = (digest(read["setting"], read["method"]), int(read["seed"]))
            if key in known:
                continue
            matrix = torch.tensor(read["matrix"], dtype=torch.float64)
            undefined = torch.full_like(matrix, math.nan).tolist()  # of runs from before losses were recorded
            losses = torch.tensor(read.get("losses", undefined), dtype=torch.float64)
            if losses.shape != matrix.shape:
                raise ValueError(f"losses of shape {tuple(losses.shape)} beside a matrix of {tuple(matrix.shape)}")
            others = [torch.tensor(read[name], dtype=torch.float64) for name in ("baseline", "agreement")]
            outcome = Outcome(matrix[None, None], others[0][None], others[1][None, None], losses[None, None])
        except (ValueError, KeyError, TypeError) as reason:
            raise ValueError(f"{path} is not a finished run ({reason}); remove it, and the run is repeated") from None
        store.add(Run(read["method"]["name"], _OlderJob(key[0]), key[1]), result_of(outcome))


@dataclass(frozen=True)
class _OlderJob:
    """The job of a run that was kept by an older release, known by its digest."""

    known_digest: str
    label: str = ""

    @property
    def columns(self) -> dict[str, str]:
        return {}

    def digest(self) -> str:
        return self.known_digest
