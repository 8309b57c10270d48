"""Terminal output of scores beside floors and ceiling, and warnings about maps left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from congruency.saliency.score_maps import InvalidMap


def reference_lines(
    scores: Mapping[str, float], references: Mapping[str, Mapping[str, float]], who: str
) -> Iterator[str]:
    """Yield one line per metric with its value and the numbered references, then their names and any warning.

    ``who`` names what was scored, such as ``"the network"``.
    """
    from congruency.report.numbers import fixed
    from congruency.saliency.baselines import below_centre

    if references:
        yield " " * 9 + "".join(
            f"{heading:>9}" for heading in ["scored", *(f"({i + 1})" for i in range(len(references)))]
        )
    for name, value in scores.items():
        every = [value, *(each.get(name, math.nan) for each in references.values())]
        yield f"{name:<9}" + "".join(f"{fixed(one, 4):>9}" for one in every)
    for i, name in enumerate(references):
        yield f"({i + 1}) {name}"
    worse = below_centre(scores, references)
    if worse:
        yield f"warning: {who}: {worse}"


def warn_of_invalid(invalid: Sequence[InvalidMap], metrics: Sequence[str]) -> None:
    """Print a warning to stderr for every map that was left out of some or all metrics."""
    for problem in invalid:
        which = "" if set(problem.metrics) == set(metrics) else f" of {', '.join(problem.metrics)}"
        typer.echo(f"warning: {problem.file} is left out{which}: {problem.reason}", err=True)
