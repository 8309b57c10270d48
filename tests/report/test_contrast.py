"""Text and lines have enough contrast in the light and the dark theme (WCAG ratios)."""

import re

import pytest

from congruency.report import charts
from congruency.report.page import Page, render
from congruency.report.tables import Table


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes():
    """The CSS properties of both themes; the dark one inherits from the light one."""
    style = render(Page("t", "l", "c", Table("", ["a"], [["b"]]), []))
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in (light, dark)]
    return {"light": found[0], "dark": found[0] | found[1]}


def test_black_on_white():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", ["light", "dark"])
@pytest.mark.parametrize("behind", ["card", "paper"])
def test_text_and_lines_can_be_read(name, behind):
    colours = themes()[name]
    for text in ("ink", "ink-soft", "accent"):
        assert contrast(colours[text], colours[behind]) >= 4.5, text
    for place in range(len(charts.LIGHT)):
        assert contrast(colours[f"series-{place + 1}"], colours[behind]) >= 4.5, place  # text in tips, lines at 3
