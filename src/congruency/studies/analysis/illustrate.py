"""``congruency illustrate``: page on optimizer paths on a surface, with and without DCL."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from congruency.files import write_together
from congruency.report.charts import DARK, LIGHT, Series, line_chart
from congruency.report.numbers import fixed, listed
from congruency.report.page import Figure, Page, render
from congruency.report.pictures import picture
from congruency.report.tables import Table
from congruency.studies.analysis.descent import MODES, Illustration, Mode, letter
from congruency.studies.page import provenance
from congruency.studies.results import RESULTS_FILE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: dict[bool, dict[Mode, str]] = {  # keys: whether the colour scheme is dark
    False: dict(zip(MODES, ("#111820", "#1173e6", LIGHT[2]), strict=True)),
    True: dict(zip(MODES, ("#ffffff", DARK[1], DARK[2]), strict=True)),
}
_SCHEMES: dict[bool, dict[str, str]] = {
    False: {"card": "#ffffff", "ink": "#16202b", "lines": "#5d6b78"},
    True: {"card": "#18212b", "ink": "#e8edf3", "lines": "#8494a5"},
}
_WIDTHS: dict[Mode, float] = {"baseline": 5.0, "concentrate": 2.0, "anchor": 2.4}
_ALPHAS: dict[Mode, float] = {"baseline": 0.35, "concentrate": 1.0, "anchor": 1.0}
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (7, 2, 1, 2)))


def table(results: Sequence[Illustration]) -> Table:
    """Return one line per path."""
    rows = []
    for result in results:
        for path in result.paths:
            x, y = path.points[-1].tolist()
            rows.append([
                f"{result.descent.name} {path.rate:g} {path.mode}", f"({fixed(x)}, {fixed(y)})",
                fixed(float(path.heights[-1]), 3), letter(path.minimum), fixed(path.detour, 3),
                "-" if path.mode == "baseline" else f"{path.corrected}/{len(path.points) - 1}",
            ])  # fmt: skip
    caption = (
        "Minimum: that of the basin in which the path ends, by its letter in the pictures. "
        "Length / distance: 1 is a straight line from start to end. Corrected: steps whose gradient DCL "
        "changed. More digits are in results.json."
    )
    columns = ["Path", "End (x, y)", "z at the end", "Minimum", "Length / distance", "Corrected"]
    return Table(caption, columns, rows)


def findings(results: Sequence[Illustration]) -> list[str]:
    """Return sentences on whether the learning rates of each mode end at the same minimum."""
    several = [result for result in results if len(result.descent.rates) > 1]
    same = [
        f"{result.descent.name} {path.rate:g}"
        for result in results
        for path in result.paths
        if path.mode == "concentrate" and path.corrected == 0
    ]
    text = [_verdict(several)] if several else []
    if same:
        text.append(
            f"With {listed(same)} no gradient ever opposed the gradient accumulated within the window, so concentrate "
            "corrected nothing and its path is the baseline's, point for point."
        )
    return text


def _verdict(results: Sequence[Illustration]) -> str:
    """State which mode makes learning rates agree that disagree without correction."""
    split = [result for result in results if result.agree("baseline") is False]
    if not split:
        return (
            "With every optimizer the learning rates end at the same minimum without correction, so nothing is left "
            "for a correction to bring together."
        )
    parts = []
    for mode in ("anchor", "concentrate"):
        united = [result.descent.name for result in split if result.agree(mode)]
        missed = [result.descent.name for result in split if not result.agree(mode)]
        does = f"does with {listed(united)}" if united else "does not with any of them"
        parts.append(f"{mode} {does}{f', not with {listed(missed)}' if united and missed else ''}")
    return (
        f"Without correction the learning rates end at different minima with "
        f"{listed([result.descent.name for result in split])}. The paper's figure shows DCL making them agree on one. "
        f"Here {'; '.join(parts)}."
    )


def write(results: Sequence[Illustration], out: Path, command: str) -> list[Path]:
    """Write the page, ``results.json``, and a PNG per optimizer for the light and the dark colour scheme."""
    drawn = {result.descent.name: (_picture_of(result), _picture_of(result, dark=True)) for result in results}
    page = _page(results, drawn, command)
    pictures = {
        f"paths-{name.lower()}{suffix}.png": content
        for name, both in drawn.items()
        for suffix, content in zip(("", "-dark"), both, strict=True)
    }
    return write_together(out, {"index.html": render(page), RESULTS_FILE: to_json(results), **pictures})


def _page(results: Sequence[Illustration], pictures: dict[str, tuple[bytes, bytes]], command: str) -> Page:
    figures = []
    for result in results:
        name = result.descent.name
        alt = f"Contour lines of z with {len(result.paths)} paths of {name} from the start to minima."
        settings = ", ".join(f"{key} {value}" for key, value in result.descent.settings.items())
        note = f"DCL's window: {result.descent.window} steps.{f' Optimizer: {settings}.' if settings else ''}"
        light, dark = pictures[name]
        figures.append(Figure(f"Paths with {name}", picture(light, alt, dark=dark), note))
        figures += _heights(result)
    surface = results[0].surface
    return Page(
        title="What DCL does to the path of a descent",
        lead=(
            f"z = {surface.formula}, from {surface.start}: without correction (baseline), and with DCL in its two "
            "modes, concentrate (the paper's equations) and anchor (its published code)."
        ),
        command=command,
        table=table(results),
        findings=findings(results),
        figures=figures,
        figures_title="Paths and heights",
        figures_note="Colour: the mode. Dashes in the pictures: the larger learning rate. Stars: minima.",
        notes=_NOTES,
        made=provenance("nothing here is random"),
    )


def _heights(result: Illustration) -> list[Figure]:
    """Draw one chart per learning rate, so that a mode keeps its colour of the picture."""
    made = []
    for rate in result.descent.rates:
        series = [
            Series(path.mode, list(range(len(path.heights))), path.heights.tolist())
            for path in result.paths
            if path.rate == rate
        ]
        title = f"z with {result.descent.name} at learning rate {rate:g}"
        chart = line_chart(series, title=title, x_label="iteration", y_label="z", group=result.descent.name)
        made.append(Figure(title, chart, "Lower is better."))
    return made


def _picture_of(drawn: Illustration, dark: bool = False) -> bytes:
    """Return the paths over contour lines, as a PNG."""
    from matplotlib import rc_context

    scheme = _SCHEMES[dark]
    ink, card = scheme["ink"], scheme["card"]
    with rc_context({
        "text.color": ink, "axes.labelcolor": ink, "axes.edgecolor": ink, "xtick.color": ink, "ytick.color": ink,
        "figure.facecolor": card, "axes.facecolor": card, "legend.facecolor": card,
    }):  # fmt: skip
        return _drawn(drawn, _COLOURS[dark], scheme)


def _drawn(drawn: Illustration, colours: dict[Mode, str], scheme: dict[str, str]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _background(axes, drawn, scheme)
    for path in drawn.paths:
        dash: Any = _DASHES[drawn.descent.rates.index(path.rate) % len(_DASHES)]
        x, y = path.points.numpy().T
        axes.plot(
            x, y, color=colours[path.mode], linewidth=_WIDTHS[path.mode], alpha=_ALPHAS[path.mode], linestyle=dash,
            label=f"{path.mode}, {path.rate:g}", zorder=4 if path.mode == "baseline" else 5, solid_capstyle="round",
        )  # fmt: skip
        axes.plot(x[-1], y[-1], "o", color=colours[path.mode], markersize=4, zorder=7)
    axes.legend(loc="best", fontsize=8, framealpha=0.9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _background(axes: Axes, drawn: Illustration, scheme: dict[str, str]) -> None:
    """Draw the heights as shades and contour lines, the start, and the minima with their letters."""
    x, y, heights = _grid(drawn)
    low, middle, high = (float(value) for value in np.quantile(heights, (0.0, 0.5, 0.98)))
    share = np.linspace(0, 1, 18)
    if high - low > 8 * (middle - low):  # a few heights are much larger than the rest
        share = share**3
    levels = low + (high - low) * share
    axes.contourf(x, y, heights, levels=levels, cmap="YlGnBu_r", alpha=0.45, extend="both")
    axes.contour(
        x, y, heights, levels=levels, colors=scheme["lines"], linewidths=0.5, alpha=0.5, negative_linestyles="solid"
    )
    axes.plot(*drawn.surface.start, "o", color="white", markeredgecolor="#16202b", markersize=8, zorder=6)
    axes.annotate("start", drawn.surface.start, xytext=(8, 6), textcoords="offset points", fontsize=9)
    for number in sorted({path.minimum for path in drawn.paths if path.minimum is not None}):
        a, b = drawn.minima[number].tolist()
        axes.plot(a, b, "*", color="#ffd23f", markeredgecolor="#16202b", markersize=15, zorder=6)
        axes.annotate(letter(number), (a, b), xytext=(9, -13), textcoords="offset points", fontsize=11, weight="bold")
    title = f"{drawn.descent.name} after {drawn.descent.steps} steps"
    axes.set(title=title, xlabel="x", ylabel="y", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))


def _grid(drawn: Illustration, count: int = 160) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return a grid over a square around the paths, and the heights on it."""
    near = [path.points[path.points.abs().amax(1) < 1e3] for path in drawn.paths]
    ends = [drawn.minima[path.minimum][None] for path in drawn.paths if path.minimum is not None]
    seen = torch.cat([torch.tensor([drawn.surface.start], dtype=torch.float64), *near, *ends])
    low, high = seen.amin(0), seen.amax(0)
    middle, half = (low + high) / 2, (high - low).amax().clamp(min=0.5) * 0.62
    axes = [torch.linspace(float(m - half), float(m + half), count, dtype=torch.float64) for m in middle]
    x, y = torch.meshgrid(*axes, indexing="xy")
    heights = drawn.surface(torch.stack([x, y], -1))
    return axes[0].numpy(), axes[1].numpy(), heights.numpy()


_NOTES = (
    (
        "Concentrate",
        "The gradient of a step may not oppose the gradient accumulated since the reference point; one that does "
        "is replaced by the nearest that does not.",
    ),
    (
        "Anchor",
        "The same with the opposite sign, as in the paper's published code: a step further away from the reference "
        "point is corrected, and the weights are pulled back to it (margin 0.5).",
    ),
    (
        "Window",
        "The number of steps after which the reference point is renewed. The step that records it is never corrected.",
    ),
    (
        "Whether learning rates agree",
        "From the last point of every path plain descent in small steps continues to the minimum of the basin; two "
        "paths agree where these are one. A path that ends at a saddle, or diverges, has none.",
    ),
)


def to_json(results: Sequence[Illustration]) -> str:
    """Return the numbers of every path as JSON."""
    surface = results[0].surface
    content: dict[str, Any] = {"formula": surface.formula, "start": list(surface.start)}
    content["minima"] = [place.tolist() for place in results[0].minima]
    content["optimizers"] = {
        result.descent.name: {
            "agree": {mode: result.agree(mode) for mode in MODES},
            "paths": [
                {
                    "mode": path.mode, "rate": path.rate, "end": path.points[-1].tolist(),
                    "z": float(path.heights[-1]), "minimum": path.minimum, "length": path.length,
                    "distance": path.distance, "corrected": path.corrected, "steps": len(path.points) - 1,
                }
                for path in result.paths
            ],
        }
        for result in results
    }  # fmt: skip
    return json.dumps(content, indent=1) + "\n"
