"""``congruency reproduce`` for the saliency tables: find the sets, run, show, write."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from congruency.report.tables import Table, to_rich
from congruency.studies.console import plain_warnings, typed
from congruency.studies.saliency.experiment import Stopped, collect
from congruency.studies.saliency.recipes import PRINTED
from congruency.studies.saliency.showing import show
from congruency.studies.saliency.study import reproduce_table, table_recipes
from congruency.training import STOPPED_EXIT_CODE, Origin

__all__ = ["SETS", "find_set", "run"]

SETS = {"salicon": ("SALICON",), "osie": ("OSIE", "MIT1003")}
"""The data sets of the tables."""

_LAYOUTS = {  # what lies in the folder of a set, by which it is known
    "SALICON": ("salicon", ("fixations", "annotations")),
    "OSIE": ("osie", ("stimuli",)),
    "MIT1003": ("mit1003", ("ALLSTIMULI",)),
}


def find_set(name: str, data: Path | None) -> Path:
    """The folder of a saliency set: of its own name in the data folder, or the data folder itself."""
    folder, inside = _LAYOUTS[name]
    given = data if data is not None else os.environ.get("CONGRUENCY_DATA")
    if given is None:
        raise ValueError(f"where {name} is must be said: give --data, the folder that holds it, or set CONGRUENCY_DATA")
    root = Path(given).expanduser()
    for place in (root / folder, root / name, root):
        if any((place / each).is_dir() for each in inside):
            return place
    raise FileNotFoundError(f"{name} is not in {root}; put its official folders ({' or '.join(inside)}) into {folder}/")


def run(
    *,
    table: str,
    seeds: Sequence[int],
    rows: Sequence[str],
    out: Path,
    data: Path | None = None,
    device: str = "auto",
    precision: str | None = None,
    capture: bool | None = None,
    backbone: str | None = None,
    pretrained: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    order: str | None = None,
    order_seed: int | None = None,
) -> int:
    """Run a saliency table and show it; what the command exits with.

    Args:
        table: ``"salicon"`` or ``"osie"``.
        seeds: one run of every row each.
        rows: names of rows, or their beginnings; empty for all.
        out: for the results; what is finished there is not run again.
        data: the folder with the sets.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        precision: None for 32.
        capture: replay passes as CUDA graphs; None does so on a GPU.
        backbone: another one than ResNet-50.
        pretrained: a file of weights for it; ``"none"`` trains from scratch; None fetches timm's.
        epochs: None for the paper's 10.
        batch_size: None for the paper's 8.
        lr: None for the paper's, which differ between optimizers.
        order: see :data:`congruency.training.SampleOrder`; None for that of the seed.
        order_seed: of a fixed order.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda for saliency, got {device!r}")
    console = Console()
    changes: dict[str, Any] = {
        "backbone": backbone, "epochs": epochs, "batch": batch_size, "lr": lr, "sample_order": order,
        "order_seed": order_seed,
    }  # fmt: skip
    recipes = table_recipes(
        table,  # type: ignore[arg-type]
        rows,
        weights=None if pretrained == "none" else pretrained,
        pretrained=pretrained is None,
        **{name: value for name, value in changes.items() if value is not None},
    )
    places = [find_set(name, data) for name in SETS[table]]
    try:
        with plain_warnings():
            reproduce_table(
                table,  # type: ignore[arg-type]
                places,
                out,
                seeds=seeds,
                recipes=recipes,
                device=device,
                precision=precision or "32",
                capture=capture,
                origin=Origin(command=typed(), data=SETS[table][0], table=table),
                say=lambda text: console.print(text, markup=False, highlight=False),
            )
    except Stopped as reason:
        console.print(str(reason), markup=False, highlight=False)
        return STOPPED_EXIT_CODE
    page, paths = show(table, recipes, collect(out, recipes), out, shlex.join(["congruency", *sys.argv[1:]]))
    console.print(to_rich(_narrow(page.table)))
    console.print(f"\nThe page: {paths[0]}", markup=False, highlight=False)
    return 0


def _narrow(table: Table) -> Table:
    """The four means, for a terminal; the page has the other columns."""
    shown = [i for i, name in enumerate(table.columns) if name in ("Row", "Seeds", *PRINTED)]
    rows = [[row[place] for place in shown] for row in table.rows]
    return Table("The page has the paired differences.", [table.columns[i] for i in shown], rows)
