"""Finished runs on disk, one file each, so that none is ever run again."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from congruency.continual import Outcome
from congruency.continual.config import LearnerConfig
from congruency.files import write_together

__all__ = ["Store"]


@dataclass(frozen=True)
class Store:
    """The runs of one setting in a folder.

    Attributes:
        folder: where they are.
        setting: all that the runs have in common and that changes what comes out.
    """

    folder: Path
    setting: dict[str, Any]

    def load(self, method: LearnerConfig, seed: int) -> Outcome | None:
        """A finished run (S = M = 1), or None."""
        path = self.folder / self._name(method, seed)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            parts = [torch.tensor(found[key], dtype=torch.float64) for key in ("matrix", "baseline", "agreement")]
            losses = _losses(found, parts[0])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as reason:
            raise ValueError(f"{path} is not a finished run ({reason}); remove it, and the run is done again") from None
        return Outcome(parts[0][None, None], parts[1][None], parts[2][None, None], losses[None, None])

    def save(self, method: LearnerConfig, seed: int, outcome: Outcome) -> None:
        """Keep a run (S = M = 1)."""
        record = {
            "setting": self.setting,
            "method": asdict(method),
            "seed": seed,
            "matrix": outcome.matrix[0, 0].tolist(),
            "baseline": outcome.baseline[0].tolist(),
            "agreement": outcome.agreement[0, 0].tolist(),
            "losses": outcome.losses[0, 0].tolist(),
        }
        write_together(self.folder, {self._name(method, seed): json.dumps(record) + "\n"})

    def _name(self, method: LearnerConfig, seed: int) -> str:
        described = json.dumps([self.setting, asdict(method), seed], sort_keys=True)
        digest = hashlib.sha256(described.encode()).hexdigest()[:12]
        shown = re.sub("[^A-Za-z0-9.-]+", "_", method.name)[:100]  # the digest tells longer names apart
        return f"{shown}-seed{seed}-{digest}.json"


def _losses(found: dict[str, Any], matrix: torch.Tensor) -> torch.Tensor:
    """Those of a file, nan where it is from before they were kept."""
    if "losses" not in found:
        return torch.full_like(matrix, torch.nan)
    losses = torch.tensor(found["losses"], dtype=torch.float64)
    if losses.shape != matrix.shape:
        raise ValueError(f"losses of shape {tuple(losses.shape)} beside a matrix of shape {tuple(matrix.shape)}")
    return losses
