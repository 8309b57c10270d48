"""The report page of real runs in a real browser: it opens quietly, tells values, takes methods out."""

import re

import pytest
from browser import Browser, needs_browser
from typer.testing import CliRunner

from congruency import cli

pytestmark = needs_browser
NAMES = ("baseline", "DCL-3-1 concentrate, floor 0.3", "GEM")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three methods, two seeds each, on the embedded digits."""
    folder = tmp_path_factory.mktemp("report")
    small = ["--dataset", "digits", "--model", "convnet", "--per-class", "8", "--batch-size", "16", "--device", "cpu"]
    methods = {"base": [], "gem": ["--method", "gem"], "dcl": ["--method", "dcl", "--window", "3"]}
    for name, options in methods.items():
        for seed in ("0", "1"):
            out = str(folder / "runs" / f"{name}-{seed}")
            words = ["train", *small, *options, "--epochs", "2", "--seed", seed, "--out", out, "--no-progress"]
            result = CliRunner().invoke(cli.build(), words)
            assert result.exit_code == 0, result.output
    path = folder / "page.html"
    result = CliRunner().invoke(cli.build(), ["report", str(folder / "runs"), "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def middle(browser, script):
    """Where an element is on the screen, scrolled into view."""
    browser.run(f"({script}).scrollIntoView({{block: 'center'}})")
    return browser.run(
        f"(() => {{ const box = ({script}).getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )


def test_it_opens_without_a_complaint_and_fetches_nothing(browser, page):
    browser.open(page)
    assert browser.complaints == []
    assert browser.fetched == [page.as_uri()]
    titles = browser.run("[...document.querySelectorAll('.figures h3')].map(each => each.textContent)")
    assert {
        "Congruency with the accumulated gradient", "Congruency with the last step", "Magnitude",
        "Magnitude of the steps",
        "Training error, mean of each epoch", "Training error, std within each epoch",
        "Training error by iteration, epoch 1", "Validation loss",
    } <= set(titles)  # fmt: skip
    drawn = browser.run(
        "[...document.querySelectorAll('.figures svg')].map(each => each.getBoundingClientRect().height)"
    )
    assert len(drawn) == len(titles)
    assert min(drawn) > 150


def test_every_chart_and_box_has_a_name_for_those_who_do_not_see_it(browser, page):
    browser.open(page)
    labels = browser.run("[...document.querySelectorAll('svg')].map(each => each.getAttribute('aria-label') || '')")
    assert all(len(label) > 20 for label in labels)
    assert browser.run("[...document.querySelectorAll('svg')].every(each => each.getAttribute('role') == 'img')")
    boxes = browser.run("[...document.querySelectorAll('input')].map(each => each.labels[0].textContent.trim())")
    assert [box.lstrip("■ ") for box in boxes] == list(NAMES)
    assert browser.run("document.documentElement.lang") == "en"


def test_the_values_are_shown_under_the_pointer(browser, page):
    browser.open(page)
    strips = "document.querySelector('.figures svg').querySelectorAll('rect.hover')"
    seen = "[...document.querySelectorAll('.tip')].filter(each => getComputedStyle(each).visibility == 'visible')"
    assert browser.run(f"{seen}.length") == 0
    for place in (0, 1):
        browser.move(*middle(browser, f"{strips}[{place}]"))
        reported = browser.run(f"{seen}.map(each => [...each.querySelectorAll('text')].map(text => text.textContent))")
        assert len(reported) == 1
        heading, *lines = reported[0]
        assert heading == f"epoch {place + 1}"
        assert [re.fullmatch(r"(.+): [\d.]+ ± [\d.]+", line)[1] for line in lines] == list(NAMES)
    browser.move(2, 2)
    assert browser.run(f"{seen}.length") == 0


def test_a_tip_stays_within_its_chart(browser, page):
    browser.open(page)
    outside = browser.run("""[...document.querySelectorAll('.tip')].filter(tip => {
        const box = tip.getBoundingClientRect(), chart = tip.closest('svg').getBoundingClientRect();
        return box.left < chart.left - 1 || box.right > chart.right + 1 || box.bottom > chart.bottom + 1;
    }).length""")
    assert outside == 0


@pytest.mark.parametrize("way", ["pointer", "keyboard"])
def test_a_method_can_be_switched_off_and_on(browser, page, way):
    browser.open(page)
    line = "document.querySelector('.figures svg').querySelectorAll(':scope > path.line')[1]"
    tip = "document.querySelector('.figures svg .tip .of-2')"
    stroke, shown = f"getComputedStyle({line}).stroke", f"getComputedStyle({tip}).display"
    before = browser.run(stroke)
    assert before.startswith("rgb(")
    assert browser.run(shown) != "none"

    def switch():
        if way == "pointer":
            browser.click(*middle(browser, "document.getElementById('shown-1')"))
        else:
            browser.run("document.getElementById('shown-1').focus()")
            browser.press(" ", 32)

    switch()
    assert browser.run(stroke) == "rgba(0, 0, 0, 0)"
    assert browser.run(shown) == "none"
    others = "[...document.querySelector('.figures svg').querySelectorAll(':scope > path.line')]"
    assert "rgba(0, 0, 0, 0)" not in browser.run(f"getComputedStyle({others}[0]).stroke")
    switch()
    assert browser.run(stroke) == before
    assert browser.run(shown) != "none"


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_cut_off(browser, page, dark):
    browser.open(page, width=390, height=844, dark=dark, phone=True)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run("Math.min(...[...document.querySelectorAll('.figures svg')].map(e => e.clientWidth))") > 300
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    red = int(re.search(r"rgb\((\d+)", light)[1])
    assert (red < 60) == dark
