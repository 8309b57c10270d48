import re
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
    assert {"h1", "table", "figure", "code"} <= tags
    assert not tags & {"link", "img", "iframe", "object"}
    assert html.count("<script>") == 1, "the one that draws the charts, written out"
    assert set(re.findall(r"\w+://[\w./]+", html)) == {"http://www.w3.org/2000/svg"}, "a name, and no address"
    assert not re.search(r"\b(fetch|XMLHttpRequest|import)\b", html.partition("<script>")[2])
    assert re.findall(r"url\(.", html) == ["url(#"]
    assert "@import" not in html
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_text_is_escaped():
    parser = parse(render(page(HOSTILE)))
    assert "b" not in parser.tags
    assert render(page(HOSTILE)).count("<script") == 1, "our own"
    assert sum(HOSTILE in text for text in parser.text) >= 18


def test_a_page_without_figures():
    html = render(Page("t", "l", "c", Table("", ["a"], [["b"]]), []))
    parser = parse(html)
    assert not parser.tags & {"figure", "script"}
    assert "$" not in html


def test_a_dozen_charts_and_eight_findings_come_before_the_fold():
    chart = line_chart([Series("a", [1], [1.0])], title="t", x_label="x", y_label="y")
    figures = [Figure(f"chart {n}", chart) for n in range(14)]
    table = Table("", ["a"], [["b"]])
    html = render(Page("t", "l", "c", table, [f"finding {n}" for n in range(10)], figures=figures))
    above, _, below = html.partition("2 more charts</summary>")
    assert (above.count("<figure>"), below.count("<figure>")) == (12, 2)
    above, _, below = html.partition("2 more</summary>")
    assert "finding 7<" in above
    assert "finding 8<" in below
    few = render(Page("t", "l", "c", table, ["finding"], figures=figures[:12]))
    assert "<details" not in few.partition("<script>")[0]


def columns(html):
    return [re.findall(r"<th scope=\"col\"[^>]*>([^<]+)<", table) for table in html.split("<table")[1:]]


def test_a_wide_table_is_shown_in_brief_with_the_rest_folded():
    metrics = (f"{metric}{part}" for metric in "ABC" for part in ("", " against", ", paper"))
    header = ["Row", "Seeds", *metrics, "images/s"]
    groups = [range(2, 5), range(5, 8), range(8, 11)]

    def table(cell):
        return Table("", header, [["one", "5", *[cell] * 9, "7"]], groups)

    assert columns(to_html(table("1"))) == [header], "what fits is shown whole"
    wide = to_html(table("-0.0045 ± 0.0037"))
    assert columns(wide) == [
        ["Row", "Seeds", "A", "A against", "A, paper", "B", "C", "images/s"],
        ["Row", "B", "B against", "B, paper"], ["Row", "C", "C against", "C, paper"],
    ]  # fmt: skip
    assert "<summary>More columns: B, C</summary>" in wide
    wider = columns(to_html(table("-0.0045 ± 0.0037 (p < 0.001)")))
    assert wider[0] == ["Row", "Seeds", "A", "A against", "B", "C", "images/s"]
    assert wider[1] == ["Row", "A", "A against", "A, paper"]
    assert columns(to_html(Table("", header, table("x" * 40).rows))) == [header], "nothing says what belongs together"


def test_cells_carry_their_column():
    html = to_html(Table("c", ["Method", "Error, %"], [["one", "2 %"]]))
    assert '<td role="cell" data-column="Error, %">2 %</td>' in html
    html = to_html(Table("c", ["a", "b", "c"], [["one", "-", "words that are too long for a number"]]))
    assert '<td role="cell" class="none" data-column="b">-</td>' in html, "a phone leaves it out"
    assert '<td role="cell" class="text" data-column="c">words' in html, "it may wrap"


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
