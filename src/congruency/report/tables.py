"""Tables of text as HTML, Markdown and for the terminal."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from congruency.report.numbers import NOTHING

if TYPE_CHECKING:
    import rich.table


_FITS = 150  # characters per line that fit a page 1400 pixels wide
_LONG = 32  # longer cells are treated as text and wrap


@dataclass(frozen=True)
class Table:
    """Rows of cells under `columns`; the first column is the row header.

    `groups` are the indices of columns that belong together, such as a metric, its difference and its p-value. If a
    table is too wide, a page shows the first column of each group, more of the first group if it fits, and folds the
    rest.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    groups: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"every row needs {len(self.columns)} cells, got {len(row)}: {list(row)}")


def to_html(table: Table) -> str:
    """Return the table as HTML; a wide table is shown in a brief form, with the rest folded.

    Every cell has its column's name as an attribute, so that phones can show rows as cards.
    """
    shown = _brief(table)
    brief = _whole(table, shown)
    groups = [group for group in table.groups if not set(group) <= set(shown)]
    if not groups:
        return brief
    names = escape(", ".join(table.columns[group[0]] for group in groups))
    parts = "\n".join(_whole(table, (0, *group), caption=False) for group in groups)
    return f'{brief}\n<details class="more"><summary>More columns: {names}</summary>\n{parts}\n</details>'


def _brief(table: Table) -> list[int]:
    """Choose the columns to show: all if they fit; else drop more and more of the groups' columns but the first."""
    every = range(len(table.columns))
    others = {place for group in table.groups[1:] for place in group[1:]}
    all_but_two = others | {place for group in table.groups[:1] for place in group[2:]}
    tails = others | {place for group in table.groups for place in group[1:]}
    choices = [[place for place in every if place not in folded] for folded in (set(), others, all_but_two, tails)]
    return next((chosen for chosen in choices if _width(table, chosen) <= _FITS), choices[-1])


def _width(table: Table, places: Sequence[int]) -> int:
    """Estimate the table's width in characters, with column spacing; headings, row names and text wrap."""
    widths = []
    for place in places:
        cells = [min(len(row[place]), _LONG) for row in table.rows]
        widths.append(max([*cells, *map(len, table.columns[place].split()), 0]))
    return sum(widths) + 3 * len(widths)


def _whole(table: Table, places: Sequence[int], caption: bool = True) -> str:
    columns = [table.columns[place] for place in places]
    head = "".join(f'<th scope="col" role="columnheader">{escape(name)}</th>' for name in columns)
    body = "\n".join(f'<tr role="row">{_cells(columns, [row[place] for place in places])}</tr>' for row in table.rows)
    below = f"<caption>{escape(table.caption)}</caption>\n" if caption and table.caption else ""
    return (
        f'<table role="table">\n{below}<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody>\n</table>'
    )


def to_markdown(table: Table) -> str:
    """Return the table as Markdown, with its caption below."""
    lines = [table.columns, ["---"] + ["---:"] * (len(table.columns) - 1), *table.rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{body}\n\n{table.caption}"


def to_rich(table: Table) -> "rich.table.Table":
    """Return the table for a terminal; markup in cells is shown literally."""
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
        kind = ' class="none"' if cell == NOTHING else ' class="text"' if len(cell) > _LONG else ""
        cells.append(f'<td role="cell"{kind} data-column="{escape(column)}">{escape(cell)}</td>')
    return "".join(cells)
