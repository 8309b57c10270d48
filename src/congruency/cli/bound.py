"""``congruency bound``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from congruency.cli.options import option, several
from congruency.cli.terminal import show, writing
from congruency.studies.console import command_line

_STEPS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.1, 1.25, 1.5, 1.75, 1.9)


def bound(
    problem: Annotated[list[str] | None, several(
        "Which function; may be repeated. (default: both)", "quadratic", "logistic",
    )] = None,
    step: Annotated[list[float] | None, option(
        "A step size in units of 1/L; may be repeated. (default: 0.02 to 1.9)", "NUMBER",
    )] = None,
    steps: Annotated[int, option("Iterations of gradient descent.", "N", min=2, max=10000)] = 40,
    out: Annotated[Path, option(
        "The folder for the page (index.html) and results.json.", "FOLDER",
    )] = Path("congruency-bound"),
) -> None:  # fmt: skip
    """Compare the lower bound of Theorem 1 with measured congruency.

    Runs gradient descent on a quadratic and on logistic regression, whose
    Lipschitz constants L are known, with step sizes below and above 1/L, and
    shows where the bound is tight, where it is vacuous, and whether it holds.
    """
    with writing(out):
        from congruency.studies.analysis import bound as work

        problems = {name: work.PROBLEMS[name]() for name in problem or work.PROBLEMS}
        results = {
            name: (one, [work.compare(one, relative, steps) for relative in sorted(step or _STEPS)])
            for name, one in problems.items()
        }
        paths = work.write(results, steps, out, command_line())
        show(work.summary(results), work.findings(results), paths[0])
