"""Charts as data: a `div` with the chart's numbers as JSON, which ``charts.js`` draws as SVG in the browser.

The script draws all charts of a page in the page's colours (`--ink`, `--series-1`, ...), with zoom, smoothing, lines of
single seeds and downloads. Without scripting, the `div` shows a summary in words.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from congruency.report.numbers import short, with_margin

LIGHT = ("#4a5663", "#0b5cc4", "#b93c06", "#0a6e63", "#6f35d8", "#a8124f")
DARK = ("#aab6c3", "#6fb3ff", "#ff9d5c", "#4fd0bf", "#bba2ff", "#ff8fc0")


@dataclass(frozen=True)
class Series:
    """One line: `y` over `x`, with a band of `y` ± `margin`; nan breaks the line.

    With `bars` the margins are drawn as error bars, for lines whose bands would overlap. `runs` are the values of every
    seed, of which `y` is the mean; the page shows them on demand.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    margin: Sequence[float] | None = None
    bars: bool = False
    runs: Mapping[int, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(len(values) != len(self.x) for values in (self.y, self.margin or self.y, *self.runs.values())):
            raise ValueError(f"series {self.name!r}: x, y, margin and every run must be equally long")


@dataclass(frozen=True)
class Sample:
    """One row of a strip chart: all values, their mean, and the margin of its confidence interval."""

    name: str
    values: Sequence[float]
    mean: float
    margin: float


def script() -> str:
    """Return the JavaScript that draws the charts."""
    return Path(__file__).with_name("charts.js").read_text("utf-8")


def style() -> str:
    """Return the CSS of the charts; the page sets the colours."""
    return Path(__file__).with_name("charts.css").read_text("utf-8")


def theme(colours: Sequence[str]) -> str:
    """Return the CSS properties for the colours of the series, LIGHT or DARK."""
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
    group: str = "",
) -> str:
    """Return a line chart with shaded bands; `log` makes the y axis logarithmic and skips non-positive values.

    `x_names` are tick labels for x = 0, 1, .... Bands are clipped to the range of `possible` values, since the interval
    of two seeds may reach far beyond it; the legend shows the whole margin. Charts of one `group` share their y axis.
    """
    lines = [
        {
            "name": one.name,
            "x": _plain(one.x),
            "y": _plain(one.y),
            "margin": None if one.margin is None else _plain(one.margin),
            "bars": one.bars,
            "runs": {str(seed): _plain(values) for seed, values in one.runs.items()},
        }
        for one in series
    ]
    scale = f"{y_label}, log scale" if log else y_label
    return _markup(
        f"{title}. {scale} over {x_label}. {_line_summary(series, x_names)}", kind="line", title=title, x_label=x_label,
        y_label=y_label, log=log, names=x_names, possible=_plain(possible), group=group, series=lines,
    )  # fmt: skip


def strip_chart(samples: Sequence[Sample], *, title: str, x_label: str, group: str = "") -> str:
    """Return a strip chart: per sample its values as dots, mean and confidence interval as a bar, and a line at zero.

    Charts of one `group` share their axis.
    """
    rows = [
        {"name": one.name, "values": _plain(one.values), "mean": _number(one.mean), "margin": _number(one.margin)}
        for one in samples
    ]
    summary = "; ".join(f"{one.name}: {with_margin(one.mean, one.margin, sign=True)}" for one in samples)
    return _markup(
        f"{title}. {x_label}. {summary}.", kind="strip", title=title, x_label=x_label, group=group, samples=rows
    )


def heat_map(
    values: Sequence[Sequence[float]], *, title: str, x_label: str, y_label: str, low: float = 0.0, high: float = 100.0
) -> str:
    """Return a heat map, rows from the top; if `low` is negative, each sign has a colour, and zero has none."""
    count = sum(map(len, values))
    mean = sum(value for row in values for value in row) / max(1, count)
    size = f"{len(values)} by {max(map(len, values), default=0)}"
    return _markup(
        f"{title}. {size} values, mean {short(mean)}.", kind="heat", title=title, x_label=x_label, y_label=y_label,
        low=low, high=high, values=[_plain(row) for row in values],
    )  # fmt: skip


def _markup(summary: str, **data: object) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    quoted = escape(text, quote=False).replace("'", "&#39;")
    return f"<div class=\"chart\" data-chart='{quoted}'><p>{escape(summary)}</p></div>"


def _number(value: float) -> float | None:
    """Round to six digits, more than a chart can show; non-finite values, which JSON lacks, become None."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _plain(values: Iterable[float]) -> list[float | int | None]:
    return [value if isinstance(value, int) else _number(value) for value in values]


def _line_summary(series: Sequence[Series], names: Sequence[str] | None = None) -> str:
    """State the first and last value of every line."""
    summary = []
    for one in series:
        finite = [(x, y) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]
        if finite:
            (first, y0), (last, y1) = finite[0], finite[-1]
            at = [f"{x:g}" if names is None else names[round(x)] for x in (first, last)]
            summary.append(f"{one.name}: {short(y0)} at {at[0]}, {short(y1)} at {at[1]}.")
        else:
            summary.append(f"{one.name}: no values.")
    return " ".join(summary)
