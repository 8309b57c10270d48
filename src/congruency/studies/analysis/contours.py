"""Pictures of paths on a surface: still ones, and an animation."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from congruency.report.charts import LIGHT
from congruency.studies.analysis.descent import MODES, Minima, Mode, Path, Surface, letter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "animation", "still"]

_COLOURS: dict[Mode, str] = dict(zip(MODES, ("#111820", "#1173e6", LIGHT[2]), strict=True))
_WIDTHS: dict[Mode, float] = {"baseline": 5.0, "concentrate": 2.0, "anchor": 2.4}
_ALPHAS: dict[Mode, float] = {"baseline": 0.35, "concentrate": 1.0, "anchor": 1.0}
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (7, 2, 1, 2)))
_FRAMES = 50
_LAST_FRAME_MS = 2500


@dataclass(frozen=True, eq=False)
class Panel:
    """One optimizer's paths on a surface."""

    title: str
    surface: Surface
    paths: Sequence[Path]
    minima: Minima


def still(panel: Panel) -> dict[str, bytes]:
    """Return the paths over contour lines, as ``{"png": ..., "svg": ...}``."""
    figure, axes = _figure(1)
    _background(axes[0], panel)
    for path in panel.paths:
        _line(axes[0], panel, path).set_data(*path.points.numpy().T)
        _end(axes[0], path)
    axes[0].legend(loc="best", fontsize=8, framealpha=0.9)
    return {kind: _saved(figure, kind) for kind in ("png", "svg")}


def animation(panels: Sequence[Panel], frames: int = _FRAMES) -> bytes:
    """Return all panels side by side, their paths growing from first step to last; a GIF that loops.

    The surface is drawn once; a frame adds only the lines.
    """
    figure, axes = _figure(len(panels), dpi=80)
    canvas: Any = figure.canvas
    lines = []
    for place, panel in zip(axes, panels, strict=True):
        _background(place, panel)
        lines += [(place, path, _line(place, panel, path)) for path in panel.paths]
        place.legend(loc="best", fontsize=7, framealpha=0.9)
    canvas.draw()
    empty = canvas.copy_from_bbox(figure.bbox)
    pictures = []
    for frame in range(frames + 1):
        canvas.restore_region(empty)
        for place, path, line in lines:
            shown = 1 + math.ceil((len(path.points) - 1) * frame / frames)
            line.set_data(*path.points[:shown].numpy().T)
            place.draw_artist(line)
        pictures.append(Image.fromarray(np.array(canvas.buffer_rgba())[..., :3]))
    return _gif(pictures)


def _gif(pictures: Sequence[Image.Image]) -> bytes:
    """One palette for all frames, that of the last, so that colours do not flicker."""
    palette = pictures[-1].quantize(128)
    frames = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in pictures]
    times = [90] * (len(frames) - 1) + [_LAST_FRAME_MS]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=False, disposal=1
    )
    return buffer.getvalue()


def _figure(count: int, dpi: int = 150) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0 * count, 4.6), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, count, n + 1) for n in range(count)]


def _background(axes: Axes, panel: Panel) -> None:
    """Heights as shades and contour lines; the start, and the minima by their letters."""
    x, y, heights = _grid(panel)
    levels = _levels(heights)
    axes.contourf(x, y, heights, levels=levels, cmap="YlGnBu_r", alpha=0.45, extend="both")
    axes.contour(x, y, heights, levels=levels, colors="#5d6b78", linewidths=0.5, alpha=0.5, negative_linestyles="solid")
    axes.plot(*panel.surface.start, "o", color="white", markeredgecolor="#16202b", markersize=8, zorder=6)
    axes.annotate("start", panel.surface.start, xytext=(8, 6), textcoords="offset points", fontsize=9)
    for number in sorted({number for number in panel.minima.of if number is not None}):
        place = panel.minima.places[number]
        spot = (float(place[0]), float(place[1]))
        axes.plot(*spot, "*", color="#ffd23f", markeredgecolor="#16202b", markersize=15, zorder=6)
        axes.annotate(letter(number), spot, xytext=(9, -13), textcoords="offset points", fontsize=11, weight="bold")
    axes.set(title=panel.title, xlabel="x", ylabel="y", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))


def _grid(panel: Panel, count: int = 160) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The rectangle that the paths lie in, with a margin, and the heights on it."""
    near = [path.points[path.points.abs().amax(1) < 1e3] for path in panel.paths]
    ends = [panel.minima.places[number][None] for number in panel.minima.of if number is not None]
    seen = torch.cat([torch.tensor([panel.surface.start], dtype=torch.float64), *near, *ends])
    low, high = seen.amin(0), seen.amax(0)
    middle, half = (low + high) / 2, (high - low).amax().clamp(min=0.5) * 0.62
    axes = [torch.linspace(float(m - half), float(m + half), count, dtype=torch.float64) for m in middle]
    x, y = torch.meshgrid(*axes, indexing="xy")
    heights = panel.surface(torch.stack([x, y], -1))
    return axes[0].numpy(), axes[1].numpy(), heights.numpy()


def _levels(heights: NDArray[Any], count: int = 18) -> NDArray[Any]:
    """Even steps where heights are of one order, growing ones where a few are much larger than the rest."""
    finite = heights[np.isfinite(heights)]
    if not finite.size:
        return np.array([0.0, 1.0])
    low, middle, high = (float(v) for v in np.quantile(finite, (0.0, 0.5, 0.98)))
    if high <= low:
        return np.array([low - 1, low, low + 1])
    share = np.linspace(0, 1, count)
    bent = share**3 if high - low > 8 * (middle - low) else share
    levels: NDArray[Any] = low + (high - low) * bent
    return levels


def _line(axes: Axes, panel: Panel, path: Path) -> Any:
    rates = list(dict.fromkeys(each.rate for each in panel.paths))
    dash: Any = _DASHES[rates.index(path.rate) % len(_DASHES)]
    (line,) = axes.plot(
        [], [], color=_COLOURS[path.mode], linewidth=_WIDTHS[path.mode], alpha=_ALPHAS[path.mode], linestyle=dash,
        label=f"{path.mode}, {path.rate:g}", zorder=4 if path.mode == "baseline" else 5, solid_capstyle="round",
    )  # fmt: skip
    return line


def _end(axes: Axes, path: Path) -> None:
    x, y = path.points[-1].tolist()
    axes.plot(x, y, "o", color=_COLOURS[path.mode], markersize=4, zorder=7)


def _saved(figure: Figure, kind: str) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    fixed: Any = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "congruency", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=kind, metadata=fixed)
    return buffer.getvalue()
