"""The charts' numbers on their way to the page; what the script draws of them is tested in test_charts_browser.py."""

import math

import pytest
from chart_data import chart_data, lines

from congruency.report.charts import Sample, Series, heat_map, line_chart, strip_chart


def draw(*series, **options):
    return line_chart(series, title="T", x_label="epoch", y_label="loss", **options)


def test_a_line_keeps_its_numbers():
    made = chart_data(draw(Series("one", [1, 2], [3.0, math.nan], [0.5, math.inf], runs={7: [1.0, 1 / 3]})))
    (one,) = made["series"]
    assert one == {
        "name": "one", "x": [1, 2], "y": [3.0, None], "margin": [0.5, None], "bars": False,
        "runs": {"7": [1.0, 0.333333]},
    }  # fmt: skip
    assert (made["log"], made["names"], made["possible"], made["group"]) == (False, None, [None, None], "")


def test_what_a_reader_without_a_script_sees():
    text = draw(Series("one", [1, 2], [3.0, 2.0]), Series("two", [1, 2], [math.nan, math.nan]))
    assert "<p>T. loss over epoch. one: 3 at 1, 2 at 2. two: no values.</p>" in text
    assert "<p>T. loss, log scale over epoch. </p>" in draw(log=True)
    named = draw(Series("one", [0, 1], [3.0, 2.0]), x_names=["5", "inf"])
    assert "one: 3 at 5, 2 at inf." in named
    strip = strip_chart([Sample("one", [0.1, -0.2], -0.05, 0.4)], title="T", x_label="points")
    assert "<p>T. points. one: -0.05 ± 0.40.</p>" in strip
    heat = heat_map([[1.0, 3.0]], title="T", x_label="x", y_label="y")
    assert "<p>T. 1 by 2 values, mean 2.</p>" in heat


def test_lines_are_read_back_by_name():
    assert lines(draw(Series("one", [0, 1], [3.0, math.nan]), x_names=["5", "inf"])) == {"one": {"5": 3.0, "inf": None}}


@pytest.mark.parametrize("name", ["\"><script>alert('1')</script>&", "it's", "&#39;", "]]>", "\x00\u2028"])
def test_names_are_escaped(name):
    for made in (
        draw(Series(name, [1], [1.0])),
        strip_chart([Sample(name, [1.0], 1.0, math.nan)], title=name, x_label=name),
        heat_map([[1.0]], title=name, x_label=name, y_label=name),
    ):
        assert name in str(chart_data(made).values()) or repr(name)[1:-1] in str(chart_data(made).values())
        assert "<script" not in made
        assert made.count("'") == 2, "only the quotes of the attribute"


@pytest.mark.parametrize(
    "series",
    [{"y": [1.0]}, {"y": [1.0, 2.0], "margin": [1.0]}, {"y": [1.0, 2.0], "runs": {0: [1.0]}}],
)
def test_unequal_lengths_are_refused(series):
    with pytest.raises(ValueError, match="equally long"):
        Series("one", [1, 2], **series)


def test_a_diverging_range_and_missing_values_of_a_heat_map():
    data = chart_data(heat_map([[-0.5, math.nan]], title="T", x_label="x", y_label="y", low=-1.0, high=1.0))
    assert (data["low"], data["high"], data["values"]) == (-1.0, 1.0, [[-0.5, None]])
