"""``congruency illustrate``."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from congruency.cli.terminal import check_folder, interruptible, plain_errors, show
from congruency.studies.console import typed

__all__ = ["illustrate"]


def illustrate(
    function: Annotated[
        Literal["paper", "rosenbrock", "himmelblau", "ravine", "waves"],
        typer.Option("--function", help="The function of two variables; paper is that of its Figure 5."),
    ] = "paper",
    start: Annotated[
        tuple[float, float] | None,
        typer.Option("--start", metavar="X Y", help="The starting point, such as 0.5 1. (default: the function's own)"),
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            "--optimizer", metavar="NAME",
            help="gd, rmsprop, adam as in the paper's figure, or any of torch.optim (AdamW, NAdam, ...); may be "
            "repeated. (default: those three)",
        ),
    ] = None,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            "--lr", metavar="RATE", help="A learning rate to compare; may be repeated. (default: the figure's two)"
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting", metavar="NAME=VALUE", help="A keyword of the optimizer, such as eps=0.1; may be repeated."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, max=100_000, metavar="N", help="Steps of each path. (default: the figure's)"),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window", min=0, metavar="STEPS",
            help="Steps between new reference points of DCL; 0 for one that is never renewed. (default: the figure's)",
        ),
    ] = None,
    references: Annotated[
        int, typer.Option("--references", min=1, max=64, metavar="N", help="How many reference points DCL keeps.")
    ] = 1,
    offset: Annotated[
        int, typer.Option("--offset", min=0, metavar="STEPS", help="The step of the window at which they are recorded.")
    ] = 0,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, metavar="NUMBER", help="How strongly the mode anchor pulls back.")
    ] = 0.5,
    trigger: Annotated[
        Literal["violated", "always"],
        typer.Option("--trigger", help="Whether the mode anchor pulls only where it is violated, or always."),
    ] = "violated",
    animated: Annotated[bool, typer.Option("--animation/--no-animation", help="Make the GIF too.")] = True,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="The folder for the page (index.html), the pictures and results.json."
        ),
    ] = Path("congruency-illustrate"),
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
        paths = work.write(settings, results, out, f"congruency {typed() or ''}".rstrip(), animated=animated)
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
