"""``congruency bound``: compare the lower bound of Theorem 1 with measured congruency, in a table and a page.

Uses functions with known Lipschitz constant, to show where the bound is tight and where it is vacuous.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from congruency.files import finite, write_together
from congruency.measure import congruency
from congruency.measure.bound import BoundForm, lower_bound
from congruency.report.charts import Series, line_chart
from congruency.report.numbers import fixed
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table
from congruency.studies.page import provenance
from congruency.studies.results import RESULTS_FILE

FORMS: tuple[BoundForm, ...] = get_args(BoundForm)
_ROUNDING = 1e-6
_TIGHT = 0.05
_SHOWN = (0.1, 0.5, 1.0, 1.5)  # step sizes times L: curves are drawn for the nearest ones
_TOP = 1.5  # larger values of the printed form are not drawn: cosines are at most 1


@dataclass(frozen=True, eq=False)
class Problem:
    """A function to minimize: its gradient (p,) -> (p,) in float64, and L, or an upper bound of it."""

    name: str
    description: str
    gradient: Callable[[Tensor], Tensor]
    start: Tensor
    lipschitz: float


@dataclass(frozen=True, eq=False)
class BoundedDescent:
    """Gradient descent with step size ``relative / L``; tensors are (K,), for iterations 1..K."""

    relative: float
    measured: Tensor
    bounds: dict[BoundForm, Tensor]

    @property
    def gap(self) -> float:
        """The mean of the measured congruency minus the sharp bound: 0 is tight, 2 the largest possible."""
        return float((self.measured - self.bounds["sharp"]).nanmean())

    @property
    def tight_for(self) -> int:
        """The number of iterations before the sharp bound first departs from the measured value."""
        loose = (self.measured - self.bounds["sharp"] > _TIGHT).nonzero()
        return int(loose[0]) if len(loose) else len(self.measured)

    @property
    def vacuous_from(self) -> int | None:
        """The first iteration, from 1, at which the sharp bound is -1, hence vacuous; None if it never is."""
        empty = (self.bounds["sharp"] <= -1).nonzero()
        return int(empty[0]) + 1 if len(empty) else None

    def broken(self, form: BoundForm) -> float:
        """Return the percentage of iterations in which the congruency is below the bound."""
        defined = ~self.measured.isnan()
        below = (self.bounds[form] > self.measured + _ROUNDING) & defined
        return 100 * float(below.sum() / defined.sum().clamp(min=1))


def quadratic(size: int = 10, condition: float = 20.0) -> Problem:
    """``1/2 sum_i h_i x_i^2`` with curvatures from 1/condition to 1, so that L = 1."""
    curvatures = torch.logspace(0, 1, size, base=1 / condition, dtype=torch.float64)
    return Problem(
        "quadratic",
        f"half the sum of h x², {size} variables, h from {1 / condition:g} to 1: L is the largest h",
        lambda x: curvatures * x,
        torch.ones(size, dtype=torch.float64),
        1.0,
    )


def logistic(samples: int = 200, size: int = 10, penalty: float = 1e-3, seed: int = 0) -> Problem:
    """Logistic regression on two clouds of points: L is at most the largest eigenvalue of X'X / 4n plus the penalty.

    The logistic function's slope is at most 1/4, and reaches it at the start, where all weights are 0.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 2 * 2.0 - 1
    points = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    points = points + 0.5 * labels[:, None].double() * torch.linspace(1, 0, size, dtype=torch.float64)
    signed = points * labels[:, None].double()

    def gradient(w: Tensor) -> Tensor:
        return -(signed * torch.sigmoid(-(signed @ w))[:, None]).mean(0) + penalty * w

    largest = float(torch.linalg.eigvalsh(points.T @ points)[-1])
    return Problem(
        "logistic",
        f"logistic regression on {samples} points in {size} dimensions, two classes, a penalty of {penalty:g}: L from "
        "the largest eigenvalue of the points' second moments, over 4",
        gradient,
        torch.zeros(size, dtype=torch.float64),
        largest / (4 * samples) + penalty,
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {"quadratic": quadratic, "logistic": logistic}


def compare(problem: Problem, relative: float, steps: int) -> BoundedDescent:
    """Run gradient descent with step size ``relative / L`` and compare congruency and bounds at every iteration.

    Stops early if a gradient's norm leaves the range in which the cosine is well defined.
    """
    if not relative > 0:
        raise ValueError(f"a step size must be positive, got {relative}")
    rate = relative / problem.lipschitz
    x, gradients = problem.start, []
    for _ in range(steps + 1):
        g = problem.gradient(x)
        if not 1e-100 < float(g.norm()) < 1e100:
            break
        gradients.append(g)
        x = x - rate * g
    if len(gradients) < 2:
        raise ValueError(f"{problem.name} with a step of {relative:g} / L has nothing to compare after one step")
    g = torch.stack(gradients)
    measured = congruency(g[1:], g.cumsum(0)[:-1])
    bounds = {form: lower_bound(g, rate, problem.lipschitz, form=form)[1:] for form in FORMS}
    return BoundedDescent(relative, measured, bounds)


Results = Mapping[str, tuple[Problem, Sequence[BoundedDescent]]]
"""Problem and descents by problem name."""


def summary(results: Results) -> Table:
    """Return one line per problem and step size."""
    rows = []
    for problem, descents in results.values():
        for one in descents:
            empty = one.vacuous_from
            rows.append([
                f"{problem.name}, {one.relative:g} / L", fixed(float(one.measured.nanmean()), 3),
                fixed(float(one.bounds["sharp"].nanmean()), 3), fixed(one.gap, 3), str(one.tight_for),
                "never" if empty is None else str(empty), fixed(one.broken("printed"), 0),
            ])  # fmt: skip
    caption = (
        f"Measured, sharp bound and gap: means over the iterations. Tight for: the number of first iterations in which "
        f"the bound is within {_TIGHT:g} of the measured congruency. Vacuous from: the first iteration in which the "
        "bound is -1, which no cosine can be below anyway. Printed broken: the share of the iterations in which the "
        "congruency lies below the bound as the theorem prints it."
    )
    columns = [
        "Problem, step size", "Measured", "Sharp bound", "Gap", "Tight for", "Vacuous from", "Printed broken, %",
    ]  # fmt: skip
    return Table(caption, columns, rows)


def findings(results: Results) -> list[str]:
    """Return sentences on which bounds hold."""
    every = [one for _, descents in results.values() for one in descents]
    must: tuple[BoundForm, ...] = ("sharp", "expanded")
    wrong = [form for form in must if any(one.broken(form) for one in every)]
    broken = sum(one.broken("printed") > 0 for one in every)
    over = sum(bool((one.bounds["printed"] > 1).any()) for one in every)
    return [
        f"The {' and the '.join(wrong)} bound, which must hold, did not: report this."
        if wrong
        else "The sharp and the expanded bound held at every iteration.",
        f"The theorem as printed was broken with {broken} of {len(every)} step sizes, and asked for a congruency above "
        f"1 with {over}.",
    ]


_NOTES = (
    (
        "Sharp, expanded, printed",
        "Three steps of the paper's proof. Sharp: its first inequality. Expanded: after the sum of gradients is "
        "expanded, weaker and still sound. Printed: the theorem, whose last simplification does not hold for gradients "
        "that agree; two equal ones already make it promise a cosine of nearly 2.",
    ),
    ("1 / L", "The step size below which gradient descent on such a function never overshoots along any axis."),
)


def _gaps(results: Results) -> Figure:
    series = [
        Series(problem.name, [one.relative for one in descents], [one.gap for one in descents])
        for problem, descents in results.values()
    ]
    title = "Gap of the sharp bound"
    chart = line_chart(series, title=title, x_label="step size times L", y_label="measured minus bound")
    return Figure(title, chart, "0: tight.")


def _curves(problem: Problem, one: BoundedDescent) -> Figure:
    x = list(range(1, len(one.measured) + 1))
    series = [Series("measured", x, one.measured.tolist())]
    for form in FORMS:
        values = one.bounds[form]
        series.append(Series(form, x, values.where(values <= _TOP, torch.nan).tolist()))
    title = f"{problem.name[0].upper()}{problem.name[1:]}, step {one.relative:g} / L"
    chart = line_chart(series, title=title, x_label="iteration", y_label="congruency", group="congruency")
    hidden = int((one.bounds["printed"] > _TOP).sum())
    note = f"The printed form is above {_TOP:g} in {hidden} of {len(x)} iterations, and not drawn there."
    return Figure(title, chart, note if hidden else "")


def _chosen(descents: Sequence[BoundedDescent]) -> list[BoundedDescent]:
    """The descents nearest to the step sizes to draw, without repetition."""
    nearest = [min(descents, key=lambda one: abs(one.relative - wanted)) for wanted in _SHOWN]
    return list({one.relative: one for one in nearest}.values())


def to_json(results: Results) -> str:
    """Return every number as JSON."""
    content = {
        problem.name: {
            "lipschitz": problem.lipschitz,
            "steps": [
                {
                    "step_times_lipschitz": one.relative,
                    "measured": one.measured.tolist(),
                    **{form: values.tolist() for form, values in one.bounds.items()},
                }
                for one in descents
            ],
        }
        for problem, descents in results.values()
    }
    return json.dumps(finite(content)) + "\n"


def write(results: Results, steps: int, out: Path, command: str) -> list[Path]:
    """Write ``index.html`` and ``results.json`` into a folder."""
    figures = [_gaps(results)]
    for problem, descents in results.values():
        figures += [_curves(problem, one) for one in _chosen(descents)]
    page = Page(
        title="How much Theorem 1 promises",
        lead=(
            f"Gradient descent with a fixed step for {steps} iterations, on functions whose Lipschitz constant L is "
            "known: the congruency of every gradient with the sum of those before it, and what the theorem says it "
            "cannot fall below."
        ),
        command=command,
        table=summary(results),
        findings=findings(results),
        figures=figures,
        figures_note="Point at a chart for its values.",
        notes=[*_NOTES, *((problem.name, problem.description + ".") for problem, _ in results.values())],
        made=provenance("in float64"),
    )
    return write_together(out, {"index.html": render(page), RESULTS_FILE: to_json(results)})
