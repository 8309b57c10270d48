import math
import re
from xml.etree import ElementTree

import pytest

from congruency.report.charts import Sample, Series, line_chart, strip_chart


def draw(*series, **options):
    return ElementTree.fromstring(line_chart(series, title="T", x_label="epoch", y_label="loss", **options))


def strip(*samples):
    return ElementTree.fromstring(strip_chart(samples, title="T", x_label="points"))


def named(svg, kind):
    return [one for one in svg.iter() if one.get("class") == kind]


def positions(svg):
    """Every coordinate of the drawing."""
    found = []
    for element in svg.iter():
        found += [element.get(name) for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height")]
        found += re.findall(r"-?[\d.]+|nan|inf", element.get("d", ""))
    return [float(value) for value in found if value is not None and not value.endswith("%")]


def lines_of_data(svg):
    inside = {one for tip in named(svg, "tip") for one in tip.iter()}
    return [one for one in named(svg, "line") if one.tag == "path" and one not in inside]


def test_a_line_and_its_band():
    svg = draw(Series("one", [1, 2, 3], [3.0, 2.0, 1.0], [0.5, 0.5, 0.5]))
    assert len(named(svg, "band")) == 1
    (line,) = lines_of_data(svg)
    ys = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", line.get("d"))]
    assert ys == sorted(ys), "a falling series falls on paper too, where y grows downwards"


def test_labels_legend_and_summary():
    svg = draw(Series("one", [1, 2], [3.0, 2.0]), Series("two", [1, 2], [4.0, 5.0]))
    texts = {text.text for text in svg.iter("text")}
    assert {"one", "two", "epoch", "loss"} <= texts
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "T. loss over epoch. one: 3 at 1, 2 at 2. two: 4 at 1, 5 at 2."


def test_hover_shows_the_values():
    svg = draw(Series("one", [1, 2], [3.0, 2.0], [0.25, math.nan]), Series("two", [2], [4.0]))
    tips = [[text.text for text in tip.iter("text")] for tip in named(svg, "tip")]
    assert tips == [["epoch 1", "one: 3 ± 0.25"], ["epoch 2", "one: 2", "two: 4"]]
    assert [[part.get("class") for part in tip if part.tag == "g"] for tip in named(svg, "tip")] == [
        ["of-1"],
        ["of-1", "of-2"],
    ]


def test_nan_breaks_the_line():
    svg = draw(Series("one", [1, 2, 3, 4, 5], [1.0, 2.0, math.nan, 2.0, 1.0]))
    assert len(lines_of_data(svg)) == 2


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "series",
    [
        [Series("one point", [1], [2.0], [0.5])],
        [Series("one point, no band", [1], [2.0])],
        [Series("constant", [1, 2, 3], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0])],
        [Series("zero", [1, 2, 3], [0.0, 0.0, 0.0])],
        [Series("all nan", [1, 2], [math.nan, math.nan], [math.nan, math.nan])],
        [Series("holes", [1, 2, 3], [1.0, math.nan, 3.0], [math.nan, math.nan, 1.0])],
        [Series("infinite", [1, 2, 3], [1.0, math.inf, 3.0], [0.1, math.inf, math.inf])],
        [Series("band below zero", [1, 2], [1.0, 0.1], [5.0, 5.0])],
        [Series("empty", [], [])],
        [],
    ],
)
def test_any_series_can_be_drawn(series, log):
    svg = draw(*series, log=log)
    _, _, width, height = map(float, svg.get("viewBox").split())
    numbers = positions(svg)
    assert all(0 <= number <= max(width, height) for number in numbers)


def test_nothing_to_show_says_so():
    assert "nothing to show" in {text.text for text in draw(Series("a", [1], [math.nan])).iter("text")}
    assert "nothing to show" in {text.text for text in draw(Series("a", [1], [-1.0]), log=True).iter("text")}


def test_many_points_have_no_hover():
    count = 5000
    assert not named(draw(Series("long", list(range(count)), [1.0 + x % 7 for x in range(count)])), "hover")


def test_many_names_wrap_within_the_drawing():
    svg = draw(*(Series(f"a rather long name of series {n}", [1, 2], [1.0, n]) for n in range(9)))
    assert {float(text.get("y")) for text in named(svg, "name")} == {13.0 + 18 * n for n in range(9)}


def test_names_are_escaped():
    name = '"><script>alert(1)</script>&'
    svg = draw(Series(name, [1, 2], [1.0, 2.0]))
    assert named(svg, "name")[0].text == name
    assert not list(svg.iter("script"))
    assert named(strip(Sample(name, [1.0], 1.0, math.nan)), "name")[0].text == name


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="equally long"):
        Series("one", [1, 2], [1.0])


def test_strip_chart_shows_every_value():
    svg = strip(Sample("one", [0.1, 0.1, -0.2], 0.0, 0.4), Sample("two", [1.0, 2.0], 1.5, 6.0))
    dots = named(svg, "dot")
    assert len(dots) == 5
    assert len({(dot.get("cx"), dot.get("cy")) for dot in dots}) == 5, "equal values are stacked, not hidden"
    assert svg.get("aria-label") == "T. points. one: 0.00 ± 0.40; two: +1.50 ± 6.00."


@pytest.mark.parametrize("values", [[-0.0048, 0.0007], [-123456.0, 654321.0], [-3.0, 2.0]])
def test_the_outermost_ticks_of_a_strip_chart_are_not_cut_off(values):
    svg = strip(Sample("one", values, sum(values) / 2, 0.0))
    marks = [text for text in svg.iter() if text.tag.endswith("text") and re.fullmatch("-?[0-9.]+", text.text or "")]
    assert len(marks) >= 4
    for mark in marks:
        half = 7 * len(mark.text) / 2
        assert half <= float(mark.get("x")) <= 420 - half, mark.text


@pytest.mark.parametrize(
    "sample",
    [
        Sample("one", [1.0], 1.0, math.nan),
        Sample("nan", [math.nan, 1.0], math.nan, math.nan),
        Sample("none", [], math.nan, math.nan),
        Sample("same", [0.0] * 200, 0.0, math.nan),
    ],
)
def test_any_sample_can_be_drawn(sample):
    svg = strip(sample)
    _, _, width, height = map(float, svg.get("viewBox").split())
    assert all(0 <= number <= max(width, height) for number in positions(svg))


@pytest.mark.parametrize("bars", [False, True])
def test_bands_are_clipped_to_possible_values(bars):
    """Two seeds give intervals of many times the mean; the axis is limited to possible values."""
    wide = Series("a", [1, 2], [40.0, 60.0], [400.0, 30.0], bars=bars)
    marks = [float(text.text) for text in draw(wide, possible=(0.0, 100.0)).iter("text") if text.text.isdigit()]
    assert max(marks) == 100
    assert min(marks) >= 0
    assert "40 ± 400" in "".join(draw(wide, possible=(0.0, 100.0)).itertext()), "the hover text shows the whole margin"
    assert "-400" in {text.text for text in draw(wide).iter("text")}


def test_a_logarithmic_axis_says_so():
    line = Series("a", [1, 2], [1.0, 10.0])
    shown = [{text.text for text in draw(line, log=log).iter("text")} for log in (False, True)]
    assert ["loss, log scale" in texts for texts in shown] == [False, True]
