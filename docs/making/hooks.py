"""What mkdocs asks while it builds: the results that are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from congruency.report import charts
from congruency.report.numbers import counted
from congruency.report.page import figure_html
from congruency.report.tables import Table, to_html

sys.path.insert(0, str(Path(__file__).parents[2]))  # mkdocs does not put the checkout there
from replication.figures import result_figures

DOCS = Path(__file__).parent.parent
_WIDE = 200  # letters of a table's line, for which the table of contents makes room
_FIGURES = 4  # above the table of a result; the others are folded


_MARKDOWN_TABLE = re.compile(r"^\|.*\n\|[ :|-]+\n(?:\|.*\n)+", re.MULTILINE)
_PICTURE = re.compile(r"!\[([^]]*)\]\(([^)]*pictures/)([\w-]+)\.(svg|png)\)")
_ON_DARK = {  # colours of docs/pictures/draw.py in the dark scheme
    "#ffffff": "#1e2129", "#16202b": "#e8edf3", "#4a5663": "#aab6c3", "#b93c06": charts.DARK[2],
    "#0b5cc4": charts.DARK[1], "#dbe8fa": "#1d3557", "#f6d9c9": "#5a3524", "#c9d2dc": "#46535f", "#f1f4f7": "#2c343d",
    "#000000": "#e8edf3",
}  # fmt: skip
_SCHEMES = f"""
[data-md-color-scheme="default"] {{ --paper: #f4f6f9; --card: #ffffff; --ink: #16202b; --ink-soft: #4a5663;
  --line: #dde3ea; --accent: #0b5cc4; {charts.theme(charts.LIGHT)} }}
[data-md-color-scheme="slate"] {{ --paper: #10161d; --card: #1e2129; --ink: #e8edf3; --ink-soft: #aab6c3;
  --line: #3a434d; --accent: #6fb3ff; {charts.theme(charts.DARK)} }}
"""


def on_config(config: Any) -> Any:
    """Put every results page into the navigation, whichever there are; add the charts' style and script."""
    config.extra_css.append("making/charts.css")
    config.extra_javascript.append("making/charts.js")
    for entry in config.nav:
        if entry.get("Results") == ["results"]:
            entry["Results"] = results_pages()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the charts' style and script, and the pictures for the dark scheme."""
    made = {"making/charts.css": charts.style() + _SCHEMES, "making/charts.js": charts.script()}
    for path in (DOCS / "pictures").glob("*.svg"):
        made[f"pictures/{path.stem}-dark.svg"] = darkened(path.read_text("utf-8"))
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def darkened(svg: str) -> str:
    """A picture of draw.py with the colours of the dark scheme; texts without a colour are black by default."""
    recoloured = re.sub(r"#[0-9a-f]{6}", lambda found: _ON_DARK.get(found[0], found[0]), svg)
    return recoloured.replace("<svg ", f'<svg fill="{_ON_DARK["#000000"]}" ', 1)


def results_pages() -> list[dict[str, str]]:
    """The overview first, then all other pages; ``findings.md`` is part of the overview."""
    folder = DOCS / "results"
    overview = folder / ("index.md" if (folder / "index.md").exists() else "README.md")
    pages = [overview, *sorted(set(folder.rglob("*.md")) - {overview, folder / "findings.md"})]
    found = [title(path) for path in pages]
    titles = [
        f"{name} ({path.parent.name})" if found.count(name) > 1 else name
        for name, path in zip(found, pages, strict=True)
    ]
    titles[0] = "Overview"
    return [{name: path.relative_to(DOCS).as_posix()} for name, path in zip(titles, pages, strict=True)]


def title(path: Path) -> str:
    """The first heading of a page, its file's name where it has none."""
    found = re.search(r"^# (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else path.stem


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Show pictures by scheme, and results with figures and width."""
    markdown = _PICTURE.sub(r"![\1](\2\3.\4#only-light)@@![\1](\2\3-dark.\4#only-dark)@@", markdown)
    markdown = re.sub(r"(!\[.*?\]\([^)]*\))@@(!\[.*?\]\([^)]*\))@@(\{[^}]*\})?", r"\1\3\2\3", markdown)
    source = Path(page.file.src_uri)
    wide = any(line.startswith("|") and len(line) > _WIDE for line in markdown.splitlines())
    if wide or source.parts[0] == "results":
        page.meta["hide"] = ["toc"]
    if source.parts[0] == "results" and source.name == "table.md":
        markdown = _MARKDOWN_TABLE.sub(lambda found: shown(found[0], DOCS / source.parent), markdown, count=1)
    return markdown


def shown(markdown: str, folder: Path) -> str:
    """The table of a result in brief, with the first of its charts above it and the others folded."""
    header, _, *rows = (
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in markdown.splitlines()
    )
    parts = []
    figures = result_figures(folder)
    if figures:
        first, rest = figures[:_FIGURES], figures[_FIGURES:]
        parts.append(f'<div class="figures">{"".join(map(figure_html, first))}</div>')
        if rest:
            more = f'<div class="figures">{"".join(map(figure_html, rest))}</div>'
            parts.append(f'<details class="more"><summary>{counted(len(rest), "more chart")}</summary>{more}</details>')
    parts.append(to_html(Table("", header, rows, groups_of(header))))
    return "\n\n".join(part.replace("\n", " ") for part in parts) + "\n"


def groups_of(header: list[str]) -> list[list[int]]:
    """Columns that belong together: a metric and, after it, its difference, its p-value and the paper's number."""
    groups: list[list[int]] = []
    for place, name in enumerate(header[2:], 2):
        if groups and (name == "Holm's p" or name.endswith((" against", ", paper"))):
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups
