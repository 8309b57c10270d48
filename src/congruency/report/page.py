"""Self-contained HTML pages, without external resources, in light and dark, for phones and wide screens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from string import Template

from congruency.report import charts
from congruency.report.numbers import counted
from congruency.report.tables import Table, to_html

_CHARTS, _FINDINGS = 12, 8  # numbers shown; further ones are folded


@dataclass(frozen=True)
class Figure:
    """A chart (markup from `charts` or `pictures`) with a heading and a note on how to read it."""

    title: str
    chart: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """The content of a page, top to bottom. All text is plain text; only `Figure.chart` is markup.

    `findings` are sentences under the main table, `tables` further tables with headings, `commands` the commands of the
    runs by name (None if started from Python) or other code lines under `commands_title`, `notes` a glossary at the
    end, and `made` the footer.
    """

    title: str
    lead: str
    command: str
    table: Table
    findings: Sequence[str]
    figures: Sequence[Figure] = ()
    figures_note: str = ""
    figures_title: str = "Curves"
    tables: Sequence[tuple[str, Table]] = ()
    commands: Sequence[tuple[str, str | None]] = ()
    commands_title: str = "What was run"
    notes: Sequence[tuple[str, str]] = field(default=())
    made: str = ""


def render(page: Page) -> str:
    """Render a page as an HTML document."""
    body = _BODY.substitute(
        title=_text(page.title),
        lead=_text(page.lead),
        command=escape(page.command),
        table=to_html(page.table),
        jump='<nav><a href="#charts">Charts</a> <a href="#reading">How to read this</a></nav>' if page.figures else "",
        findings=_findings(page.findings),
        curves=_curves(page),
        tables="\n".join(_table(title, table) for title, table in page.tables),
        commands=_commands(page),
        notes="\n".join(f"<dt>{_text(term)}</dt><dd>{_text(text)}</dd>" for term, text in page.notes),
        made=_text(page.made),
    )
    script = f"<script>\n{charts.script()}</script>" if page.figures else ""
    return document(page.title, _STYLE + (charts.style() if page.figures else ""), f"{body}{script}")


def document(title: str, style: str, body: str) -> str:
    """Return an HTML document in the common colours, light or dark by the reader's preference.

    Lone surrogates, which cannot be encoded, become question marks.
    """
    made = _DOCUMENT.substitute(
        title=_text(title), style=style, body=body, light=charts.theme(charts.LIGHT), dark=charts.theme(charts.DARK)
    )
    return made.encode("utf-8", "replace").decode("utf-8")


def _findings(findings: Sequence[str]) -> str:
    """Render the first findings as a list, with the others folded."""
    first, rest = (
        "\n".join(f"<li>{_text(text)}</li>" for text in part) for part in (findings[:_FINDINGS], findings[_FINDINGS:])
    )
    shown = f'<ul class="findings">\n{first}\n</ul>'
    count = len(findings) - _FINDINGS
    return shown + (_folded(f"{count} more", f'<ul class="findings">\n{rest}\n</ul>') if rest else "")


def _folded(summary: str, markup: str) -> str:
    return f'\n<details class="more"><summary>{_text(summary)}</summary>\n{markup}\n</details>'


def _text(plain: str) -> str:
    """Escape plain text, with a non-breaking space before percent signs."""
    return escape(plain).replace(" %", "&nbsp;%")


def _curves(page: Page) -> str:
    """Render the first charts, with the others folded."""
    if not page.figures:
        return ""
    first, rest = ("\n".join(map(figure_html, part)) for part in (page.figures[:_CHARTS], page.figures[_CHARTS:]))
    note = f"<p>{_text(page.figures_note)}</p>" if page.figures_note else ""
    shown = f'<h2 id="charts">{_text(page.figures_title)}</h2>\n{note}\n<div class="figures">\n{first}\n</div>'
    more = ""
    if rest:
        folded = f'<div class="figures">\n{rest}\n</div>'
        more = _folded(counted(len(page.figures) - _CHARTS, "more chart"), folded)
    return f"<section>\n{shown}{more}\n</section>"


def _table(title: str, table: Table) -> str:
    return f'<section>\n<h2>{_text(title)}</h2>\n<div class="card">\n{to_html(table)}\n</div>\n</section>'


def _commands(page: Page) -> str:
    if not page.commands:
        return ""
    parts = []
    for name, command in page.commands:
        shown = "Started from Python, not by a command." if command is None else f"<code>{escape(command)}</code>"
        parts.append(f"<dt>{_text(name)}</dt><dd>{shown}</dd>")
    listed = "\n".join(parts)
    return f'<section>\n<h2>{_text(page.commands_title)}</h2>\n<dl class="commands">\n{listed}\n</dl>\n</section>'


def figure_html(figure: Figure) -> str:
    """Render a figure as HTML."""
    note = f"<p>{_text(figure.note)}</p>" if figure.note else ""
    return f"<figure>\n<figcaption><h3>{_text(figure.title)}</h3>{note}</figcaption>\n{figure.chart}\n</figure>"


_DOCUMENT = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root {
  color-scheme: light dark;
  --paper: #f4f6f9; --card: #ffffff; --ink: #16202b; --ink-soft: #4a5663; --line: #dde3ea; --accent: #0b5cc4;
  $light
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #10161d; --card: #18212b; --ink: #e8edf3; --ink-soft: #aab6c3; --line: #2d3946; --accent: #6fb3ff;
    $dark
  }
}
$style</style>
</head>
<body>
$body
</body>
</html>
""")

_STYLE = """* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 82rem; margin: 0 auto; padding: 2.5rem 1.25rem 3rem; }
h1 { font-size: clamp(1.6rem, 4.5vw, 2.3rem); line-height: 1.2; margin: 0 0 0.6rem; letter-spacing: -0.015em; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 0.4rem; }
h3 { font-size: 1rem; margin: 0; }
p { margin: 0 0 0.8rem; max-width: 46rem; }
.lead { font-size: 1.08rem; color: var(--ink-soft); }
nav { margin-top: 0.6rem; display: flex; gap: 1.2rem; }
a { color: var(--accent); }
.command { display: flex; flex-wrap: wrap; gap: 0.3rem 0.8rem; align-items: baseline; color: var(--ink-soft); }
code { font: 0.92rem/1.5 ui-monospace, Menlo, Consolas, monospace; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; padding: 0.2rem 0.6rem; overflow-wrap: anywhere; }
.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.card { padding: 0.6rem 1.2rem; margin: 1rem 0; overflow-x: auto; max-width: max-content; }
table { font-size: 0.94rem; border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; color: var(--ink-soft); font-size: 0.9rem; padding: 0.7rem 0 0.2rem; }
th, td { padding: 0.4rem 0 0.4rem 1.4rem; text-align: right; vertical-align: bottom; }
th:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--ink-soft); font-weight: 600; font-size: 0.9rem; line-height: 1.3; }
tbody th, tbody td { border-top: 1px solid var(--line); }
tbody th { font-weight: 500; min-width: min(16rem, 30vw); }
tbody td { white-space: nowrap; }
tbody td.text { white-space: normal; min-width: 12rem; overflow-wrap: anywhere; }
.more { margin: 0.6rem 0; }
.more > summary { cursor: pointer; color: var(--accent); padding: 0.3rem 0; }
.more table + table { margin-top: 1.4rem; }
.findings { margin: 0; max-width: 60rem; padding: 0; list-style: none; }
.findings li { border-left: 3px solid var(--accent); padding: 0.1rem 0 0.1rem 0.9rem; margin: 0 0 0.7rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: 1rem 1rem 0.7rem; display: flex; flex-direction: column; }
figcaption p { color: var(--ink-soft); font-size: 0.9rem; line-height: 1.45; margin: 0.15rem 0 0.8rem; }
dl { margin: 0.8rem 0; max-width: 52rem; }
dt { font-weight: 600; margin-top: 0.8rem; }
dd { margin: 0.1rem 0 0; color: var(--ink-soft); }
.commands { max-width: none; }
.commands dd { margin: 0.3rem 0 0; }
.commands code { display: block; white-space: pre-wrap; }
footer { margin-top: 2.5rem; color: var(--ink-soft); font-size: 0.9rem; }
@media (max-width: 44rem) {
  main { padding: 1.5rem 0.9rem 2rem; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .card { max-width: none; }
  table { display: flex; flex-direction: column; }
  tbody, tr, caption { display: block; }
  caption { order: 1; border-top: 1px solid var(--line); margin-top: 0.7rem; }
  tbody tr + tr { border-top: 1px solid var(--line); margin-top: 0.7rem; padding-top: 0.4rem; }
  tbody th { display: block; border: 0; padding: 0.2rem 0; font-weight: 600; }
  tbody td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: 0.1rem 0; }
  tbody td.text { text-align: right; }
  tbody td.none { display: none; }
  tbody td::before { content: attr(data-column); color: var(--ink-soft); text-align: left; white-space: normal; }
  figure { padding: 0.8rem 0.6rem 0.5rem; }
}
@media print { body { background: none; } figure { break-inside: avoid; } }
"""

_BODY = Template("""<main>
<header>
<h1>$title</h1>
<p class="lead">$lead</p>
<div class="command"><span>Repeat it with</span> <code>$command</code></div>
$jump
</header>
<section>
<h2>Results</h2>
<div class="card">
$table
</div>
$findings
</section>
$curves
$tables
$commands
<section>
<h2 id="reading">How to read this</h2>
<dl>
$notes
</dl>
</section>
<footer>$made</footer>
</main>
""")
