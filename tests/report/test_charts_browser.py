"""The charts in a real browser: what is drawn, read, zoomed, smoothed, hidden and saved."""

import csv
import io
import math
import re
import time
from xml.etree import ElementTree

import pytest
from browser import Browser, needs_browser

from congruency.report.charts import Sample, Series, heat_map, line_chart, strip_chart
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table

pytestmark = needs_browser
ODD = {
    "one point": Series("one point", [1], [2.0], [0.5]),
    "no band": Series("no band", [1], [2.0]),
    "constant": Series("constant", [1, 2, 3], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]),
    "zero": Series("zero", [1, 2, 3], [0.0, 0.0, 0.0]),
    "all nan": Series("all nan", [1, 2], [math.nan, math.nan], [math.nan, math.nan]),
    "holes": Series("holes", [1, 2, 3], [1.0, math.nan, 3.0], [math.nan, math.nan, 1.0]),
    "infinite": Series("infinite", [1, 2, 3], [1.0, math.inf, 3.0], [0.1, math.inf, math.inf]),
    "below zero": Series("below zero", [1, 2], [1.0, 0.1], [5.0, 5.0]),
    "tiny": Series("tiny", [1, 2], [1e-320, 1e-310]),
    "huge": Series("huge", [1, 2], [1e305, -1e305]),
    "close": Series("close", [1, 2], [1.0, 1.0 + 1e-15]),
    "decades": Series("decades", [1, 2], [1e-8, 1e8]),
    "bars": Series("bars", [0, 1], [1.0, math.nan], [0.5, math.nan], bars=True),
    "empty": Series("empty", [], []),
    "long": Series("long", list(range(2000)), [1.0 + x % 7 for x in range(2000)]),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a page with these charts; the browser with helpers for its first chart."""

    def opened(*charts, **options):
        figures = [Figure(f"chart {n}", chart) for n, chart in enumerate(charts)]
        path = tmp_path / "page.html"
        path.write_text(render(Page("t", "l", "c", Table("", ["a"], [["b"]]), [], figures=figures)), "utf-8")
        browser.complaints.clear()
        browser.open(path, **options)
        assert browser.complaints == []
        return browser

    return opened


def line(*series, **options):
    return line_chart(series, title="T", **{"x_label": "epoch", "y_label": "loss"} | options)


def every(chart, kind):
    return f"[...document.querySelectorAll('.chart')[{chart}].querySelectorAll('{kind}')]"


def texts(browser, chart=0, kind="svg text"):
    return browser.run(f"{every(chart, kind)}.map(e => e.textContent)")


def y_marks(browser, chart=0):
    return [float(mark) for mark in texts(browser, chart, "svg text[text-anchor=end]")]


def paths(browser, kind="path.line", chart=0):
    return browser.run(f"{every(chart, f'svg[role=img] {kind}')}.map(e => e.getAttribute('d'))")


def points(path):
    return [tuple(map(float, point.split())) for point in path[1:].split("L")]


def box(browser, selector=".chart .overlay"):
    browser.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    return browser.run(
        f"(() => {{ const b = document.querySelector('{selector}').getBoundingClientRect();"
        " return [b.left, b.top, b.width, b.height]; })()"
    )


def drag(browser, start, end):
    for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)


def legend(browser, chart=0):
    return dict(zip(texts(browser, chart, ".legend .name"), texts(browser, chart, ".legend .value"), strict=True))


def click(browser, selector):
    left, top, width, height = box(browser, selector)
    browser.click(left + width / 2, top + height / 2)


def test_a_line_its_band_and_its_gap(show):
    browser = show(line(Series("one", [1, 2, 3, 4, 5], [5.0, 4.0, math.nan, 2.0, 1.0], [0.5] * 5)))
    first, second = map(points, paths(browser))
    for (x0, y0), (x1, y1) in (first, second):
        assert x0 < x1
        assert y0 < y1, "a falling series falls on the screen, where y grows downwards"
    assert len(paths(browser, ".band")) == 2
    assert {"epoch", "loss"} <= set(texts(browser))


def test_any_series_can_be_drawn_with_both_scales(show):
    """Every mark and text lies within its chart, no coordinate is nan, and the axes have a few tick marks."""
    charts = [line(one, log=log) for one in ODD.values() for log in (False, True)]
    browser = show(*charts, line())
    browser.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    time.sleep(0.2)
    for place, name in enumerate([name for name in ODD for _ in range(2)]):
        svg = f"document.querySelectorAll('.chart')[{place}].querySelector('svg')"
        markup = browser.run(f"{svg}.outerHTML")
        assert "NaN" not in markup, name
        assert "Infinity" not in markup, name
        ticks = texts(browser, place, "svg text[text-anchor=end]")
        assert 2 <= len(ticks) <= 13, name
        outside = browser.run(
            f"(() => {{ const svg = {svg}, b = svg.getBoundingClientRect();"
            "return [...svg.querySelectorAll('text, .line, circle')].filter(e => { const r = e.getBoundingClientRect();"
            "return r.left < b.left - 1 || r.right > b.right + 1 || r.top < b.top - 3 || r.bottom > b.bottom + 1; })"
            ".map(e => e.outerHTML); })()"
        )
        assert outside == [], name
    nothing = [n for n in range(len(charts)) if "nothing to show" in texts(browser, n)]
    shown = {list(ODD)[n // 2] for n in nothing}
    assert shown == {"all nan", "empty", "zero", "huge"}, "zero on a logarithmic axis, huge on none"


def test_axes_end_on_round_marks(show):
    browser = show(line(Series("a", [1, 2], [0.3, 9.1])), line(Series("a", [1, 2], [2.2, 60.0]), log=True))
    assert y_marks(browser, 0) == [0, 2, 4, 6, 8, 10]
    assert y_marks(browser, 1) == [2, 5, 10, 20, 50, 100]
    assert "loss, log scale" in texts(browser, 1)


def test_bands_are_clipped_to_possible_values(show):
    """Two seeds give intervals of many times the mean; the axis is limited to possible values."""
    wide = Series("a", [1, 2], [40.0, 60.0], [400.0, 30.0])
    browser = show(line(wide, possible=(0.0, 100.0)), line(wide))
    assert (min(y_marks(browser, 0)), max(y_marks(browser, 0))) == (0, 100)
    assert min(y_marks(browser, 1)) < -300
    left, top, _, height = box(browser)
    browser.move(left + 3, top + height / 2)
    assert legend(browser)["a"] == "40 ± 400", "the legend shows the whole margin"


def test_charts_of_a_group_share_their_scale(show):
    small, large = Series("a", [1, 2], [1.0, 2.0]), Series("b", [1, 2], [1.0, 50.0])
    browser = show(line(small, group="g"), line(large, group="g"), line(small))
    assert y_marks(browser, 0) == y_marks(browser, 1) != y_marks(browser, 2)
    low, high = Sample("low", [-1.0], -1.0, 0.1), Sample("high", [3.0, 4.0], 3.5, 6.0)
    strips = [strip_chart([one], title="T", x_label="points", group="g") for one in (low, high)]
    browser = show(*strips)
    marks = [set(texts(browser, n, "svg text[text-anchor=middle]")) for n in (0, 1)]
    assert marks[0] == marks[1]


def test_the_values_under_the_pointer_stand_in_the_legend(show):
    """So they cover no curve; at rest the last values stand there."""
    browser = show(line(Series("one", [1, 2], [3.0, 2.0], [0.25, math.nan]), Series("two", [2], [4.0])))
    assert legend(browser) == {"one": "2", "two": "4"}
    assert texts(browser, 0, ".at") == ["epoch 2 (last)"]
    left, top, _, height = box(browser)
    browser.move(left + 5, top + height / 2)
    assert legend(browser) == {"one": "3 ± 0.25", "two": "–"}
    assert texts(browser, 0, ".at") == ["epoch 1"]
    browser.move(2, 2)
    assert texts(browser, 0, ".at") == ["epoch 2 (last)"]
    browser.run("document.querySelector('.chart > svg').focus()")
    browser.press("ArrowLeft", 37)
    browser.press("ArrowLeft", 37)
    assert texts(browser, 0, ".at") == ["epoch 1"]


def test_what_a_finger_taps_stays(show):
    browser = show(line(Series("one", [1, 2], [3.0, 2.0])), width=420, phone=True)
    left, top, _, height = box(browser)
    point = {"x": left + 10, "y": top + height / 2}
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[point])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert texts(browser, 0, ".at") == ["epoch 1"]
    assert legend(browser) == {"one": "3"}


def test_drag_zooms_and_a_double_click_resets(show):
    browser = show(line(Series("a", list(range(101)), [float(x) for x in range(101)])))
    whole = texts(browser)
    left, top, width, height = box(browser)
    drag(browser, (left + width / 2, top + height / 2), (left + width, top + height / 2 + 5))
    marks = y_marks(browser)
    assert (min(marks), max(marks)) == (50, 100), "along x alone: the values that are left fill the height"
    assert browser.run("document.querySelector('.reset').hidden") is False
    left, top, width, height = box(browser)
    drag(browser, (left + 5, top + 5), (left + 60, top + height / 2))
    assert min(y_marks(browser)) >= 75, "a box zooms both axes"
    left, top, width, height = box(browser)
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            browser.call("Input.dispatchMouseEvent", type=kind, x=left + 9, y=top + 9, button="left", clickCount=count)
    assert texts(browser) == whole
    assert browser.run("document.querySelector('.reset').hidden") is True


def test_smoothing_and_seeds(show):
    noisy = [float(x % 2) for x in range(40)]
    runs = {3: [y - 1 for y in noisy], 4: [y + 1 for y in noisy]}
    browser = show(line(Series("a", list(range(40)), noisy, [0.1] * 40, runs=runs)))
    assert len(paths(browser)) == 1
    assert len(paths(browser, ".band")) == 1
    rough = points(paths(browser)[0])
    browser.run(
        "(() => { const s = document.querySelector('input[type=range]'); s.value = 0.9;"
        " s.dispatchEvent(new Event('input')); })()"
    )
    raw, smooth = (points(path) for path in paths(browser))
    assert raw == rough
    spread = [max(y for _, y in part[20:]) - min(y for _, y in part[20:]) for part in (raw, smooth)]
    assert spread[1] < spread[0] / 5
    weight, mean = 0.9, 0.0  # by hand: the average of the values so far with weights that fall by 0.9 a step
    for y in noisy:
        mean = weight * mean + (1 - weight) * y
    assert float(legend(browser)["a"]) == pytest.approx(mean / (1 - weight**40), abs=1e-3)
    click(browser, ".chart-controls input[type=checkbox]")
    assert len(paths(browser, ".seed")) == 2
    assert paths(browser, ".band") == []
    assert min(y_marks(browser)) <= -1
    assert max(y_marks(browser)) >= 2


@pytest.mark.parametrize("way", ["pointer", "keyboard"])
def test_a_hidden_line_leaves_nothing_behind(show, way):
    large, small = Series("large", [1, 2], [100.0, 200.0]), Series("small", [1, 2], [1.0, 2.0])
    browser = show(line(large, small), line(large, small))
    before = [texts(browser, n) for n in (0, 1)]
    browser.run("document.querySelector('.shown').open = true")

    def switch():
        if way == "pointer":
            click(browser, ".shown input")
        else:
            browser.run("document.querySelector('.shown input').focus()")
            browser.press(" ", 32)

    switch()
    for chart in (0, 1):
        assert list(legend(browser, chart)) == ["small"]
        assert len(paths(browser, chart=chart)) == 1
        assert max(y_marks(browser, chart)) <= 2, "the scale is that of what is shown"
    switch()
    assert [texts(browser, n) for n in (0, 1)] == before


def test_a_strip_chart_shows_every_value_once_and_crosses_no_name(show):
    samples = [
        Sample("one", [0.1, 0.1, -0.2], 0.0, 0.4),
        Sample("a long name of a row that must wrap " * 3, [1.0, 2.0], 1.5, 6.0),
    ]
    browser = show(strip_chart(samples, title="T", x_label="points"), width=420, phone=True)
    dots = browser.run(
        "[...document.querySelectorAll('.dot')].map(e => e.getAttribute('cx') + ' ' + e.getAttribute('cy'))"
    )
    assert len(set(dots)) == 5, "equal values are stacked, not hidden"
    assert len(texts(browser, 0, "text.name")) > 2
    crossed = browser.run("""(() => {
        const boxes = kind => [...document.querySelectorAll(kind)].map(each => each.getBoundingClientRect());
        const svg = document.querySelector('.chart svg').getBoundingClientRect();
        return boxes('text').filter(a => a.left < svg.left - 1 || a.right > svg.right + 1
            || boxes('.chart line, .dot').some(b =>
                a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top < a.bottom - 2)).length;
    })()""")
    assert crossed == 0


@pytest.mark.parametrize("sample", [
    Sample("one", [1.0], 1.0, math.nan), Sample("nan", [math.nan, 1.0], math.nan, math.nan),
    Sample("none", [], math.nan, math.nan), Sample("same", [0.0] * 200, 0.0, math.nan),
])  # fmt: skip
def test_any_sample_can_be_drawn(show, sample):
    browser = show(strip_chart([sample], title="T", x_label="points"))
    markup = browser.run("document.querySelector('.chart svg').outerHTML")
    assert "NaN" not in markup
    assert "-" not in re.findall(r'c[xy]="(-?)', markup)


def colours(browser):
    return browser.run(f"{every(0, 'svg > rect[fill]')}.map(e => e.getAttribute('fill').match(/\\d+/g).map(Number))")


@pytest.mark.parametrize("dark", [False, True])
def test_colours_diverge_around_zero_and_start_at_the_background(show, dark):
    browser = show(heat_map([[-1.0, -0.1, 0.0, 1.0]], title="T", x_label="x", y_label="y", low=-1.0), dark=dark)
    card = [
        int(part)
        for part in re.findall(
            r"\d+", browser.run("getComputedStyle(document.querySelector('figure')).backgroundColor")
        )
    ]
    minus, little, zero, plus = colours(browser)[:4]
    assert zero == card, "no white picture in the dark"
    assert minus[0] > minus[2]
    assert plus[0] < plus[2]
    assert sum(abs(a - b) for a, b in zip(little, card, strict=True)) < 60
    browser.move(*[side + 20 for side in box(browser, ".chart svg > rect")[:2]])
    assert texts(browser, 0, ".at") == ["y 1, x 1: -1"]


def saved(browser, folder, kind):
    """Press a chart's button and return the file that the browser saves."""
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    name = {"SVG": 0, "PNG": 1, "CSV": 2}[kind]
    browser.run(f"document.querySelectorAll('.chart .bar button:not(.reset)')[{name}].click()")
    for _ in range(250):
        files = list(folder.glob(f"*.{kind.lower()}"))
        if files and files[0].stat().st_size:
            return files[0]
        time.sleep(0.02)
    raise AssertionError(f"no {kind} was saved")


def test_a_chart_is_saved_as_svg_png_and_its_data_as_csv(show, tmp_path):
    runs = {3: [2.0, 1.5], 4: [4.0, 2.5]}
    shown = line(Series('a, "b"', [1, 2], [3.0, 2.0], [0.5, math.nan], runs=runs), Series("c", [2], [1.0]))
    browser = show(shown)
    svg = ElementTree.parse(saved(browser, tmp_path, "SVG")).getroot()
    words = {text.text for text in svg.iter() if text.text and text.tag.endswith("text")}
    assert {"T", 'a, "b"', "c", "epoch", "loss"} <= words
    strokes = [each for each in svg.iter() if "stroke: rgb" in each.get("style", "")]
    assert strokes, "colours are written out: outside of the page there are no properties"
    assert "var(" not in ElementTree.tostring(svg, "unicode")
    png = saved(browser, tmp_path, "PNG").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == 2 * int(svg.get("width"))
    table = list(csv.reader(io.StringIO(saved(browser, tmp_path, "CSV").read_text("utf-8"))))
    assert table == [
        ["epoch", 'a, "b"', 'a, "b", 95 % margin', 'a, "b", seed 3', 'a, "b", seed 4', "c"],
        ["1", "3", "0.5", "2", "4", ""],
        ["2", "2", "", "1.5", "2.5", "1"],
    ]


def test_charts_that_are_folded_away_are_drawn_when_they_are_opened(show):
    browser = show(*(line(Series("a", [1, 2], [1.0, 2.0])) for _ in range(14)))
    assert browser.run("document.querySelectorAll('section > .figures .chart').length") == 12
    assert browser.run("document.querySelectorAll('details.more .chart').length") == 2
    browser.run("document.querySelector('details.more').open = true")
    time.sleep(0.2)
    assert "epoch" in texts(browser, 13)
    _, _, width, height = box(browser, "details.more .chart svg")
    assert width > 300
    assert height > 200


def test_hostile_names_are_text(show):
    bad = "</script><img src=x onerror=alert(1)>\"'&<b>"
    labels = {"title": bad, "x_label": bad, "y_label": bad}
    browser = show(
        line_chart([Series(bad, [0, 1], [1.0, 2.0], runs={0: [1.0, 2.0]})], x_names=[bad, bad], **labels),
        strip_chart([Sample(bad, [1.0], 1.0, 0.1)], title=bad, x_label=bad),
        heat_map([[1.0]], **labels),
    )
    assert browser.run("document.querySelectorAll('script').length") == 1
    assert browser.run("document.querySelectorAll('img, b, [onerror]').length") == 0
    assert list(legend(browser)) == [bad]
    assert browser.fetched == [browser.run("location.href")]
