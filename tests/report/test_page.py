from html.parser import HTMLParser

import pytest

from congruency.report.charts import Series, line_chart
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table, to_html, to_rich

HOSTILE = "</title><script>alert('1')</script>&amp;<b> $table ${x} [red]"
VOID = {"meta", "link", "br", "img", "input"}


class Strict(HTMLParser):
    """Collects tags and text, and fails on tags that do not nest."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parse(html):
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser


def page(text="plain"):
    chart = line_chart([Series(text, [1, 2], [1.0, 2.0])], title=text, x_label=text, y_label=text)
    return Page(
        title=text,
        lead=text,
        command=text,
        table=Table(text, [text, text], [[text, text]]),
        findings=[text],
        headline=Figure(text, chart, text),
        figures=[Figure(text, chart, text), Figure(text, chart)],
        figures_note=text,
        tables=[(text, Table(text, [text], [[text]]))],
        commands=[(text, text), (text, None)],
        notes=[(text, text)],
        made=text,
    )


def test_the_page_is_complete_and_self_contained():
    html = render(page())
    tags = parse(html).tags
    assert {"h1", "table", "svg", "figure", "code"} <= tags
    assert not tags & {"script", "link", "img", "iframe", "object"}
    assert "://" not in html
    assert "url(" not in html
    assert "@import" not in html
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_text_is_escaped():
    parser = parse(render(page(HOSTILE)))
    assert "script" not in parser.tags
    assert "b" not in parser.tags
    assert sum(HOSTILE in text for text in parser.text) >= 18


def test_a_page_without_figures():
    html = render(Page("t", "l", "c", Table("", ["a"], [["b"]]), []))
    parser = parse(html)
    assert "figure" not in parser.tags
    assert "$" not in html


def test_cells_carry_their_column():
    html = to_html(Table("c", ["Method", "Error, %"], [["one", "2 %"]]))
    assert '<td role="cell" data-column="Error, %">2 %</td>' in html


def test_rows_must_fit_the_columns():
    with pytest.raises(ValueError, match="2 cells, got 1"):
        Table("c", ["a", "b"], [["one"]])


def test_terminal_shows_markup_literally():
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as captured:
        console.print(to_rich(Table("[red]caption", ["[b]column", "n"], [["[red]row[/red]", "1"]])))
    shown = captured.get()
    assert "[red]row[/red]" in shown
    assert "[b]column" in shown
    assert "[red]caption" in shown
