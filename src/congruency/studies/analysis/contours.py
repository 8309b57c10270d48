"""Pictures of paths on a surface."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from congruency.report.charts import LIGHT
from congruency.studies.analysis.descent import MODES, Illustration, Mode, letter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["picture_of"]

_COLOURS: dict[Mode, str] = dict(zip(MODES, ("#111820", "#1173e6", LIGHT[2]), strict=True))
_WIDTHS: dict[Mode, float] = {"baseline": 5.0, "concentrate": 2.0, "anchor": 2.4}
_ALPHAS: dict[Mode, float] = {"baseline": 0.35, "concentrate": 1.0, "anchor": 1.0}
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (7, 2, 1, 2)))


def picture_of(drawn: Illustration) -> bytes:
    """Return the paths over contour lines, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _background(axes, drawn)
    for path in drawn.paths:
        dash: Any = _DASHES[drawn.descent.rates.index(path.rate) % len(_DASHES)]
        x, y = path.points.numpy().T
        axes.plot(
            x, y, color=_COLOURS[path.mode], linewidth=_WIDTHS[path.mode], alpha=_ALPHAS[path.mode], linestyle=dash,
            label=f"{path.mode}, {path.rate:g}", zorder=4 if path.mode == "baseline" else 5, solid_capstyle="round",
        )  # fmt: skip
        axes.plot(x[-1], y[-1], "o", color=_COLOURS[path.mode], markersize=4, zorder=7)
    axes.legend(loc="best", fontsize=8, framealpha=0.9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _background(axes: Axes, drawn: Illustration) -> None:
    """Heights as shades and contour lines; the start, and the minima by their letters."""
    x, y, heights = _grid(drawn)
    low, middle, high = (float(value) for value in np.quantile(heights, (0.0, 0.5, 0.98)))
    share = np.linspace(0, 1, 18)
    if high - low > 8 * (middle - low):  # a few heights are much larger than the rest
        share = share**3
    levels = low + (high - low) * share
    axes.contourf(x, y, heights, levels=levels, cmap="YlGnBu_r", alpha=0.45, extend="both")
    axes.contour(x, y, heights, levels=levels, colors="#5d6b78", linewidths=0.5, alpha=0.5, negative_linestyles="solid")
    axes.plot(*drawn.surface.start, "o", color="white", markeredgecolor="#16202b", markersize=8, zorder=6)
    axes.annotate("start", drawn.surface.start, xytext=(8, 6), textcoords="offset points", fontsize=9)
    for number in sorted({path.minimum for path in drawn.paths if path.minimum is not None}):
        a, b = drawn.minima[number].tolist()
        axes.plot(a, b, "*", color="#ffd23f", markeredgecolor="#16202b", markersize=15, zorder=6)
        axes.annotate(letter(number), (a, b), xytext=(9, -13), textcoords="offset points", fontsize=11, weight="bold")
    title = f"{drawn.descent.name} after {drawn.descent.steps} steps"
    axes.set(title=title, xlabel="x", ylabel="y", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))


def _grid(drawn: Illustration, count: int = 160) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The rectangle that the paths lie in, with a margin, and the heights on it."""
    near = [path.points[path.points.abs().amax(1) < 1e3] for path in drawn.paths]
    ends = [drawn.minima[path.minimum][None] for path in drawn.paths if path.minimum is not None]
    seen = torch.cat([torch.tensor([drawn.surface.start], dtype=torch.float64), *near, *ends])
    low, high = seen.amin(0), seen.amax(0)
    middle, half = (low + high) / 2, (high - low).amax().clamp(min=0.5) * 0.62
    axes = [torch.linspace(float(m - half), float(m + half), count, dtype=torch.float64) for m in middle]
    x, y = torch.meshgrid(*axes, indexing="xy")
    heights = drawn.surface(torch.stack([x, y], -1))
    return axes[0].numpy(), axes[1].numpy(), heights.numpy()
