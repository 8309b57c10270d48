"""Charts as inline SVG without scripts or external resources.

Colours come from the page's CSS properties (`--ink`, `--series-1`, ...) with the light theme as fallback: a chart also
works alone. Series differ in dash as well as in colour. Line charts show the values at a point on hover.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, pairwise

from congruency.report import scales
from congruency.report.numbers import short, with_margin

LIGHT = ("#4a5663", "#0b5cc4", "#b93c06", "#0a6e63", "#6f35d8", "#a8124f")
DARK = ("#aab6c3", "#6fb3ff", "#ff9d5c", "#4fd0bf", "#bba2ff", "#ff8fc0")
_DASHES = ("", "8 3", "3 3", "9 3 2 3", "12 4", "1 3")
_WIDTH, _HEIGHT = 420.0, 280.0
_LEFT, _RIGHT, _BOTTOM = 54.0, 14.0, 42.0
_HALF_DIGIT = 3.6  # half of the width of a digit
_FONT = 12.5
_LETTER = 7.2  # approximate width of a letter at this size, for the layout of the legend
_MAX_HOVER = 250
_BAR_OFFSET = 7.0  # between the error bars of neighbouring lines
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_Point = tuple[float, float, float, float]  # x, y, and the lower and upper edge of the band

STYLE = f"""
.chart {{ display: block; width: 100%; height: auto; font: {_FONT}px system-ui, sans-serif; }}
.chart text {{ fill: var(--ink-soft, #4a5663); }}
.chart text.name {{ fill: var(--ink, #16202b); paint-order: stroke; stroke: var(--card, #ffffff); stroke-width: 5px; }}
.chart .grid {{ stroke: var(--line, #dde3ea); stroke-width: 1; }}
.chart .axis {{ stroke: var(--ink-soft, #4a5663); stroke-width: 1; }}
.chart .zero {{ stroke: var(--ink-soft, #4a5663); stroke-width: 1.5; stroke-dasharray: 4 3; }}
.chart .line {{ fill: none; stroke-width: 2.2; stroke-linejoin: round; }}
.chart .thin {{ stroke-width: 1.3; }}
.chart .band {{ stroke: none; fill-opacity: 0.16; }}
.chart .dot {{ fill-opacity: 0.55; }}
.chart .hover {{ fill: transparent; }}
.chart .hover:hover {{ fill: var(--ink, #16202b); fill-opacity: 0.08; }}
.chart .tip {{ visibility: hidden; pointer-events: none; }}
.chart .place:hover .tip {{ visibility: visible; }}
.chart .tip rect {{ fill: var(--card, #ffffff); stroke: var(--line, #dde3ea); fill-opacity: 0.95; }}
.chart .tip text {{ fill: var(--ink, #16202b); }}
"""


@dataclass(frozen=True)
class Series:
    """One line: `y` over `x`, with a band of `y` ± `margin`; nan breaks the line.

    With `bars` the margins are error bars instead of a band, for several lines whose bands would overlap.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    margin: Sequence[float] | None = None
    bars: bool = False

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.y) == len(self.margins):
            raise ValueError(f"series {self.name!r}: x, y and margin must be equally long")

    @property
    def margins(self) -> Sequence[float]:
        """The margin at every point; nan without one."""
        return [math.nan] * len(self.y) if self.margin is None else self.margin


@dataclass(frozen=True)
class Sample:
    """One row of a strip chart: all values, and their mean with the margin of its confidence interval."""

    name: str
    values: Sequence[float]
    mean: float
    margin: float


def colour(index: int) -> str:
    """The CSS colour of series `index` in the page's theme."""
    place = index % len(LIGHT)
    return f"var(--series-{place + 1}, {LIGHT[place]})"


def theme(colours: Sequence[str]) -> str:
    """CSS properties that set the colours of the series: LIGHT or DARK."""
    return " ".join(f"--series-{n}: {value};" for n, value in enumerate(colours, 1))


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    x_names: Sequence[str] | None = None,
    possible: tuple[float, float] = (-math.inf, math.inf),
) -> str:
    """A line chart with shaded bands; `log` makes the y axis logarithmic and skips values that are not positive.

    `x_names` are tick labels for x = 0, 1, .... Bands are clipped to the `possible` values, since the interval of two
    seeds may reach far beyond them; the hover text shows the whole margin.
    """
    y_label = f"{y_label}, log scale" if log else y_label
    legend, top = _legend([one.name for one in series])
    low, high = _HEIGHT - _BOTTOM, top + 12
    xs = [value for one in series for value in one.x]
    integers = all(float(x).is_integer() for x in xs)
    x_axis = scales.linear(xs, _LEFT, _WIDTH - _RIGHT, ticks=7, integers=integers, tight=True)
    if x_names is not None:
        x_axis = scales.Scale(-0.4, len(x_names) - 0.6, _LEFT, _WIDTH - _RIGHT, tuple(range(len(x_names))))
    sides = (+1,) if log else (+1, -1)
    ys = [edge for one in series for edge in (*one.y, *(e for side in sides for e in _edges(one, side, possible)))]
    y_axis = scales.logarithmic(ys, low, high) if log else scales.linear(ys, low, high)
    parts = [legend, *_y_grid(y_axis, y_label), *_x_marks(x_axis, x_label, low, x_names)]
    barred = [index for index, one in enumerate(series) if one.bars]
    for index, one in enumerate(series):
        if one.bars:
            parts.extend(_barred(one, index, barred.index(index) - (len(barred) - 1) / 2, x_axis, y_axis, possible))
        else:
            parts.extend(_line(one, index, x_axis, y_axis, possible))
    if not any(math.isfinite(y) and (y > 0 or not log) for one in series for y in one.y):
        parts.append(f'<text x="{_WIDTH / 2:g}" y="{(low + high) / 2:.1f}" text-anchor="middle">nothing to show</text>')
    parts.extend(_hover(series, x_label, x_axis, low, high, x_names))
    return _svg(parts, _HEIGHT, f"{title}. {y_label} over {x_label}. {_line_summary(series, x_names)}")


def strip_chart(samples: Sequence[Sample], *, title: str, x_label: str) -> str:
    """One row per sample: its values as dots, their mean and confidence interval as a bar, and a line at zero."""
    row = 84.0
    low = row * len(samples)
    height = low + _BOTTOM
    values = [value for one in samples for value in (*one.values, one.mean - one.margin, one.mean + one.margin)]
    x_axis = scales.linear([0.0, *values], 0, _WIDTH, ticks=6)
    side = max(14.0, *(_HALF_DIGIT * len(_mark(mark)) for mark in x_axis.ticks))  # space for the outermost tick labels
    x_axis = replace(x_axis, start=side, stop=_WIDTH - side)
    parts = [
        f'<line class="grid" x1="{x_axis(mark):.1f}" x2="{x_axis(mark):.1f}" y1="4" y2="{low:g}"/>'
        for mark in x_axis.ticks
    ]
    parts += [*_x_marks(x_axis, x_label, low)]
    parts.append(f'<line class="zero" x1="{x_axis(0):.1f}" x2="{x_axis(0):.1f}" y1="4" y2="{low:g}"/>')
    for index, one in enumerate(samples):
        parts.extend(_strip(one, index, index * row, x_axis))
    summary = "; ".join(f"{one.name}: {with_margin(one.mean, one.margin, sign=True)}" for one in samples)
    return _svg(parts, height, f"{title}. {x_label}. {summary}.")


def heat_map(
    values: Sequence[Sequence[float]], *, title: str, x_label: str, y_label: str, low: float = 0.0, high: float = 100.0
) -> str:
    """One cell per value, rows from the top, light at `low` and dark at `high`; the value is shown on hover."""
    rows, columns = len(values), max(map(len, values), default=0)
    left, top, size = 40.0, 8.0, (_WIDTH - 40.0 - 90.0) / max(1, columns)
    parts = []
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            tip = f"{y_label} {i + 1}, {x_label} {j + 1}: {short(value)}"
            parts.append(
                f'<rect x="{left + j * size:.1f}" y="{top + i * size:.1f}" width="{size:.1f}" height="{size:.1f}" '
                f'fill="{_shade(value, low, high)}"><title>{escape(tip)}</title></rect>'
            )
    bottom = top + rows * size
    parts.append(
        f'<text x="{left + columns * size / 2:.1f}" y="{bottom + 30:.1f}" text-anchor="middle">{x_label}</text>'
    )
    parts.append(
        f'<text x="12" y="{(top + bottom) / 2:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {(top + bottom) / 2:.1f})">{y_label}</text>'
    )
    for k in sorted({0, rows // 2, rows - 1}) if rows else ():
        parts.append(f'<text x="{left - 6:g}" y="{top + (k + 0.5) * size + 4:.1f}" text-anchor="end">{k + 1}</text>')
    for k in sorted({0, columns // 2, columns - 1}) if columns else ():
        parts.append(
            f'<text x="{left + (k + 0.5) * size:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{k + 1}</text>'
        )
    parts.extend(_colour_bar(_WIDTH - 70, top, bottom, low, high))
    mean = sum(value for row in values for value in row) / max(1, sum(map(len, values)))
    return _svg(parts, bottom + 38, f"{title}. {rows} by {columns} values, mean {short(mean)}.")


def _colour_bar(x: float, top: float, bottom: float, low: float, high: float) -> Iterator[str]:
    """The colour bar with its limits."""
    steps = 20
    each = (bottom - top) / steps
    for k in range(steps):
        value = high - (k + 0.5) * (high - low) / steps
        yield (
            f'<rect x="{x:g}" y="{top + k * each:.1f}" width="12" height="{each + 0.3:.1f}" '
            f'fill="{_shade(value, low, high)}"/>'
        )
    for value, y in ((high, top + 10), (low, bottom)):
        yield f'<text x="{x + 17:g}" y="{y:.1f}">{short(value)}</text>'


def _shade(value: float, low: float, high: float) -> str:
    """A colour map from pale yellow over green to dark blue with uniform lightness; grey for nan."""
    if not math.isfinite(value):
        return "#999999"
    stops = ((253, 246, 214), (161, 213, 171), (58, 152, 165), (33, 83, 136), (22, 26, 74))
    place = min(max((value - low) / (high - low), 0.0), 1.0) * (len(stops) - 1)
    first = min(int(place), len(stops) - 2)
    parts = [round(a + (b - a) * (place - first)) for a, b in zip(stops[first], stops[first + 1], strict=True)]
    return "#" + "".join(f"{part:02x}" for part in parts)


def _svg(parts: Sequence[str], height: float, label: str) -> str:
    """The SVG element, with one label for screen readers."""
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" '
        f'aria-label="{escape(label)}">\n' + "\n".join(parts) + "\n</svg>"
    )


def _legend(names: Sequence[str]) -> tuple[str, float]:
    """The legend, in as many rows as it needs, and its height."""
    parts, x, y = [], _LEFT, 13.0
    for index, name in enumerate(names):
        shown = _shortened(name, 48)
        width = 30 + _LETTER * len(shown) + 16
        if x > _LEFT and x + width > _WIDTH:
            x, y = _LEFT, y + 18
        parts.append(
            f'<line class="line" x1="{x:.1f}" x2="{x + 24:.1f}" y1="{y - 4:g}" y2="{y - 4:g}" {_stroke(index)}/>'
            f'<text class="name" x="{x + 30:.1f}" y="{y:g}">{escape(shown)}</text>'
        )
        x += width
    return "\n".join(parts), y


def _stroke(index: int) -> str:
    dash = _DASHES[index % len(_DASHES)]
    return f'style="stroke: {colour(index)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _y_grid(axis: scales.Scale, label: str) -> Iterator[str]:
    for mark in axis.ticks:
        y = axis(mark)
        kind = "axis" if mark == 0 else "grid"
        yield f'<line class="{kind}" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end">{_mark(mark)}</text>'
    middle = (axis.start + axis.stop) / 2
    yield f'<text transform="translate(12 {middle:.1f}) rotate(-90)" text-anchor="middle">{escape(label)}</text>'


def _x_marks(axis: scales.Scale, label: str, y: float, names: Sequence[str] | None = None) -> Iterator[str]:
    yield f'<line class="axis" x1="{axis.start:g}" x2="{axis.stop:g}" y1="{y:g}" y2="{y:g}"/>'
    for mark in axis.ticks:
        yield f'<text x="{axis(mark):.1f}" y="{y + 16:g}" text-anchor="middle">{escape(_x_text(mark, names))}</text>'
    middle = (axis.start + axis.stop) / 2
    yield f'<text x="{middle:.1f}" y="{y + 35:g}" text-anchor="middle">{escape(label)}</text>'


def _mark(value: float) -> str:
    if 0 < abs(value) < 0.001 or abs(value) >= 1e6:
        digits, _, exponent = f"{value:.2e}".partition("e")
        power = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
        return power if float(digits) == 1 else f"{float(digits):g}·{power}"
    return f"{value:.10g}"


def _x_text(x: float, names: Sequence[str] | None) -> str:
    """The label of a position on the x axis."""
    return _mark(x) if names is None else names[round(x)]


def _edges(one: Series, side: int, possible: tuple[float, float]) -> list[float]:
    """The lower (-1) or upper (+1) edge of the band, clipped to possible values; nan without a margin."""
    low, high = possible
    edges = [y + side * margin for y, margin in zip(one.y, one.margins, strict=True)]
    return [edge if math.isnan(edge) else min(max(edge, low), high) for edge in edges]


def _line(
    one: Series, index: int, x_axis: scales.Scale, y_axis: scales.Scale, possible: tuple[float, float]
) -> Iterator[str]:
    """Band and line of every unbroken segment; a segment of one point is a dot with an error bar."""
    points = list(zip(one.x, one.y, _edges(one, -1, possible), _edges(one, +1, possible), strict=True))
    for segment in _unbroken(points, lambda point: _drawable(point[1], y_axis)):
        for banded in _unbroken(segment, lambda point: math.isfinite(point[3])):
            upper = [(x_axis(x), y_axis(top)) for x, _, _, top in banded]
            lower = [(x_axis(x), y_axis(bottom)) for x, _, bottom, _ in banded]
            if len(banded) > 1:
                outline = _path(upper + lower[::-1])
                yield f'<path class="band" d="{outline} Z" style="fill: {colour(index)}"/>'
            else:
                yield f'<path class="line" d="{_path(upper + lower)}" {_stroke(index)}/>'
        line = [(x_axis(x), y_axis(y)) for x, y, _, _ in segment]
        if len(line) > 1:
            yield f'<path class="line" d="{_path(line)}" {_stroke(index)}/>'
        else:
            yield f'<circle cx="{line[0][0]:.1f}" cy="{line[0][1]:.1f}" r="4" style="fill: {colour(index)}"/>'


def _barred(
    one: Series, index: int, place: float, x_axis: scales.Scale, y_axis: scales.Scale, possible: tuple[float, float]
) -> Iterator[str]:
    """The line with a dot and an error bar at every point, shifted by `place` so that several lines do not overlap."""
    points = list(zip(one.x, one.y, _edges(one, -1, possible), _edges(one, +1, possible), strict=True))
    for segment in _unbroken(points, lambda point: _drawable(point[1], y_axis)):
        spots = [(x_axis(x) + _BAR_OFFSET * place, y_axis(y)) for x, y, _, _ in segment]
        if len(spots) > 1:
            yield f'<path class="line thin" d="{_path(spots)}" {_stroke(index)}/>'
        for (at, y), (_, _, bottom, top) in zip(spots, segment, strict=True):
            if math.isfinite(top):
                ends = _path([(at, y_axis(top)), (at, y_axis(bottom))])
                yield f'<path class="line" d="{ends}" style="stroke: {colour(index)}"/>'
            yield f'<circle cx="{at:.1f}" cy="{y:.1f}" r="3.5" style="fill: {colour(index)}"/>'


def _unbroken(points: Sequence[_Point], keep: Callable[[_Point], bool]) -> Iterator[list[_Point]]:
    return (list(group) for kept, group in groupby(points, keep) if kept)


def _drawable(y: float, axis: scales.Scale) -> bool:
    return math.isfinite(y) and (y > 0 or not axis.log)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _hover(
    series: Sequence[Series],
    x_label: str,
    axis: scales.Scale,
    low: float,
    high: float,
    names: Sequence[str] | None = None,
) -> Iterator[str]:
    """A hover area with a tooltip for every x; none if there are too many points."""
    places = sorted({x for one in series for x in one.x if math.isfinite(x)})
    if len(places) > _MAX_HOVER:
        return
    middles = [(axis(a) + axis(b)) / 2 for a, b in pairwise(places)]
    starts, stops = [axis.start, *middles], [*middles, axis.stop]
    tables = [dict(zip(one.x, zip(one.y, one.margins, strict=True), strict=True)) for one in series]
    for x, start, stop in zip(places, starts, stops, strict=False):
        values = []
        for index, (one, table) in enumerate(zip(series, tables, strict=True)):
            if x in table:
                y, margin = table[x]
                values.append((index, f"{_shortened(one.name, 34)}: {_short_with_margin(y, margin)}"))
        strip = (
            f'<rect class="hover" x="{start:.1f}" y="{high:g}" width="{max(stop - start, 1):.1f}" '
            f'height="{low - high:g}"/>'
        )
        yield f'<g class="place">{strip}{_tip(f"{x_label} {_x_text(x, names)}", values, (start + stop) / 2, high)}</g>'


def _short_with_margin(value: float, margin: float) -> str:
    return short(value) + (f" ± {short(margin)}" if math.isfinite(margin) else "")


def _shortened(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _tip(heading: str, values: Sequence[tuple[int, str]], middle: float, top: float) -> str:
    """A tooltip on the side with space: a heading, and one line per series with its stroke."""
    lines = [heading, *(text for _, text in values)]
    width = min(_LETTER * max(map(len, lines)) + 44, _WIDTH - 4)
    x = middle + 8 if middle + 8 + width <= _WIDTH - 2 else max(2.0, middle - 8 - width)
    x = min(x, _WIDTH - 2 - width)
    parts = [
        f'<rect x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{16 * len(lines) + 8:g}" rx="5"/>',
        f'<text x="{x + 8:.1f}" y="{top + 16:g}">{escape(heading)}</text>',
    ]
    for row, (index, text) in enumerate(values, 2):
        y = top + 16 * row
        parts.append(
            f'<g class="of-{index + 1}"><path class="line" d="{_path([(x + 8, y - 4), (x + 28, y - 4)])}" '
            f'{_stroke(index)}/><text x="{x + 34:.1f}" y="{y:g}">{escape(text)}</text></g>'
        )
    return f'<g class="tip">{"".join(parts)}</g>'


def _line_summary(series: Sequence[Series], names: Sequence[str] | None = None) -> str:
    """The first and last value of every line, as text."""
    summary = []
    for one in series:
        finite = [(x, y) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]
        if finite:
            (x0, y0), (x1, y1) = finite[0], finite[-1]
            first, last = (_x_text(x, names) for x in (x0, x1))
            summary.append(f"{one.name}: {short(y0)} at {first}, {short(y1)} at {last}.")
        else:
            summary.append(f"{one.name}: no values.")
    return " ".join(summary)


def _strip(one: Sample, index: int, top: float, axis: scales.Scale) -> Iterator[str]:
    """The name, the dots (stacked where they would overlap), and the mean with its interval at the bottom."""
    yield f'<text class="name" x="14" y="{top + 16:g}">{escape(one.name)}</text>'
    places = [(value, axis(value)) for value in sorted(one.values) if math.isfinite(value)]
    levels = _stacked([x for _, x in places], apart=8)
    rise = min(5.0, 26 / max([1, *levels]))
    for (value, x), level in zip(places, levels, strict=True):
        yield (
            f'<circle class="dot" cx="{x:.1f}" cy="{top + 56 - rise * level:.1f}" r="4" style="fill: {colour(index)}">'
            f"<title>{escape(short(value))}</title></circle>"
        )
    if not math.isfinite(one.mean):
        return
    y = top + 72
    if math.isfinite(one.margin):
        ends = [(axis(one.mean - one.margin), y), (axis(one.mean + one.margin), y)]
        yield f'<path class="line" d="{_path(ends)}" style="stroke: {colour(index)}; stroke-width: 3.5"/>'
    x = axis(one.mean)
    diamond = _path([(x - 6, y), (x, y - 6), (x + 6, y), (x, y + 6)])
    yield (
        f'<path d="{diamond} Z" style="fill: {colour(index)}"><title>'
        f"{escape(with_margin(one.mean, one.margin, sign=True))}</title></path>"
    )


def _stacked(places: Sequence[float], apart: float) -> list[int]:
    """For every position, in ascending order, the lowest level where the previous one is at least `apart` away."""
    last: list[float] = []  # the last position on every level
    levels = []
    for place in places:
        level = next((n for n, taken in enumerate(last) if place - taken >= apart), len(last))
        last[level : level + 1] = [place]
        levels.append(level)
    return levels
