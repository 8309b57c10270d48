"""``congruency illustrate``."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from congruency.cli.options import option
from congruency.cli.terminal import check_folder, interruptible, plain_errors, show
from congruency.studies.console import command_line

__all__ = ["illustrate"]


def illustrate(
    function: Annotated[Literal["paper", "rosenbrock", "himmelblau", "ravine", "waves"], option(
        "The function of two variables; paper is that of its Figure 5.",
    )] = "paper",
    start: Annotated[tuple[float, float] | None, option(
        "The starting point, such as 0.5 1. (default: the function's own)", "X Y",
    )] = None,
    optimizer: Annotated[list[str] | None, option(
        "gd, rmsprop, adam as in the paper's figure, or any of torch.optim (AdamW, NAdam, ...); may be repeated. "
        "(default: those three)", "NAME",
    )] = None,
    lr: Annotated[list[float] | None, option(
        "A learning rate to compare; may be repeated. (default: the figure's two)", "RATE",
    )] = None,
    setting: Annotated[list[str] | None, option(
        "A keyword of the optimizer, such as eps=0.1; may be repeated.", "NAME=VALUE",
    )] = None,
    steps: Annotated[int | None, option("Steps of each path. (default: the figure's)", "N", min=1, max=100000)] = None,
    window: Annotated[int | None, option(
        "Steps between new reference points of DCL; 0 for one that is never renewed. (default: the figure's)",
        "STEPS", min=0,
    )] = None,
    references: Annotated[int, option("How many reference points DCL keeps.", "N", min=1, max=64)] = 1,
    offset: Annotated[int, option("The step of the window at which they are recorded.", "STEPS", min=0)] = 0,
    margin: Annotated[float, option("How strongly the mode anchor pulls back.", "NUMBER", min=0.0)] = 0.5,
    trigger: Annotated[Literal["violated", "always"], option(
        "Whether the mode anchor pulls only where it is violated, or always.",
    )] = "violated",
    animated: Annotated[bool, option("Make the GIF too.", name="--animation/--no-animation")] = True,
    out: Annotated[Path, option(
        "The folder for the page (index.html), the pictures and results.json.", "FOLDER",
    )] = Path("congruency-illustrate"),
) -> None:  # fmt: skip
    """See the path of a descent on a surface, with and without DCL.

    Follows optimizers over a function of two variables, at two learning rates
    each: without correction, and with DCL in its two modes. Says which mode
    makes the learning rates agree on one minimum, and draws the paths (Figure 5).
    """
    check_folder(out, "--out")
    with interruptible("stopped; nothing was written"), plain_errors():
        from congruency.studies.analysis import descent
        from congruency.studies.analysis import illustrate as work

        changes: dict[str, Any] = {"rates": tuple(lr)} if lr else {}
        changes |= {} if steps is None else {"steps": steps}
        changes |= {} if window is None else {"window": window or None}
        changes |= {"settings": dict(map(_setting, setting))} if setting else {}
        settings = work.Settings(
            descent.surface_named(function, start),
            [replace(descent.find(name), **changes) for name in optimizer or descent.OPTIMIZERS],
            descent.Correction(references=references, offset=offset, margin=margin, trigger=trigger),
        )
        results = work.illustrate(settings)
        paths = work.write(settings, results, out, command_line(), animated=animated)
        show(work.table(results), work.findings(results), paths[0])


def _setting(text: str) -> tuple[str, Any]:
    """``eps=0.1`` as a keyword; values are Python's literals, nothing else is evaluated."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or name == "lr":
        raise ValueError(f"--setting must look like eps=0.1 (learning rates are given by --lr), got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"--setting {name}: {value!r} is not a number, a tuple, True, False or None") from None
