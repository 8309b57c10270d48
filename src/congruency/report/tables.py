"""Tables of text as HTML, Markdown and for the terminal."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class Table:
    """Rows of cells under `columns`; the first column is the row header."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"every row needs {len(self.columns)} cells, got {len(row)}: {list(row)}")


def to_html(table: Table) -> str:
    """The table as HTML; every cell has its column's name as an attribute, to show rows as cards on a phone."""
    head = "".join(f'<th scope="col" role="columnheader">{escape(name)}</th>' for name in table.columns)
    body = "\n".join(f'<tr role="row">{_cells(table.columns, row)}</tr>' for row in table.rows)
    return (
        f'<table role="table">\n<caption>{escape(table.caption)}</caption>\n'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody>\n</table>'
    )


def to_markdown(table: Table) -> str:
    """The table as Markdown, with its caption below."""
    lines = [table.columns, ["---"] + ["---:"] * (len(table.columns) - 1), *table.rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{body}\n\n{table.caption}"


def to_rich(table: Table) -> "rich.table.Table":
    """The table for a terminal; markup in cells is shown literally."""
    from rich import box
    from rich.table import Table as Terminal
    from rich.text import Text

    shown = Terminal(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption=Text(table.caption), caption_justify="left"
    )
    for place, name in enumerate(table.columns):  # headings and row names wrap, numbers do not
        widest = max(map(len, [*name.split(), *(row[place] for row in table.rows)]))
        heading = Text(textwrap.fill(name, widest, break_long_words=False))
        if place:
            shown.add_column(heading, justify="right", vertical="bottom", width=widest, no_wrap=True)
        else:
            shown.add_column(heading, vertical="bottom", max_width=widest)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def _cells(columns: Sequence[str], row: Sequence[str]) -> str:
    cells = [f'<th scope="row" role="rowheader">{escape(row[0])}</th>'] if row else []
    for column, cell in zip(columns[1:], row[1:], strict=True):
        cells.append(f'<td role="cell" data-column="{escape(column)}">{escape(cell)}</td>')
    return "".join(cells)
