"""``congruency illustrate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from congruency.cli.options import option
from congruency.cli.terminal import show, writing
from congruency.studies.console import command_line


def illustrate(
    function: Annotated[Literal["paper", "rosenbrock", "himmelblau", "ravine", "waves"], option(
        "The function of two variables; paper is the one of the paper's Figure 5.",
    )] = "paper",
    optimizer: Annotated[list[str] | None, option(
        "gd, rmsprop, adam as in the paper's figure, or any of torch.optim (AdamW, NAdam, ...); may be repeated. "
        "(default: those three)", "NAME",
    )] = None,
    lr: Annotated[list[float] | None, option(
        "A learning rate to compare; may be repeated. (default: the figure's two)", "RATE", min=0.0,
    )] = None,
    steps: Annotated[int | None, option("Steps of each path. (default: the figure's)", "N", min=1, max=100000)] = None,
    window: Annotated[int | None, option(
        "Steps between new reference points of DCL. (default: the figure's)", "STEPS", min=2,
    )] = None,
    out: Annotated[Path, option(
        "The folder for the page (index.html), the pictures and results.json.", "FOLDER",
    )] = Path("congruency-illustrate"),
) -> None:  # fmt: skip
    """Draw the paths of optimizers on a surface, with and without DCL.

    Minimizes a function of two variables with two learning rates per optimizer:
    without a correction, and with DCL in both modes. Reports in which mode the
    learning rates lead to the same minimum, and draws the paths (Figure 5).
    """
    with writing(out):
        from congruency.studies.analysis import descent
        from congruency.studies.analysis import illustrate as work

        changes: dict[str, Any] = {"rates": tuple(dict.fromkeys(lr)) if lr else None, "steps": steps, "window": window}
        given = {name: value for name, value in changes.items() if value is not None}
        descents = [replace(descent.find(name), **given) for name in dict.fromkeys(optimizer or descent.OPTIMIZERS)]
        results = descent.illustrate(descent.SURFACES[function], descents)
        paths = work.write(results, out, command_line())
        show(work.table(results), work.findings(results), paths[0])
