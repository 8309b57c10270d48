"""What a study shows on a terminal: row names are whole, however narrow it is."""

import io
import re

import pytest
from rich.console import Console

from congruency.report.tables import Table
from congruency.studies.console import progress
from congruency.studies.summary import print_table

NAMES = ["DINet EfficientNet-Lite0 pretrained Adam DCL-inf-1 anchor", "published DINet ResNet-50 RMSP", "x" * 90]


@pytest.mark.parametrize("width", range(60, 180, 7))
@pytest.mark.parametrize("cell", ["-", "2.9789 ± 0.0055"])
def test_row_names_are_not_cut_or_broken(width, cell):
    columns = ["Row", "Seeds", "NSS", "Something against"]
    table = Table("A caption.", columns, [[name, "5", cell, "-"] for name in NAMES])
    written = io.StringIO()
    print_table(table, Console(file=written, width=width))
    assert all(name in written.getvalue() for name in NAMES)
    assert written.getvalue().count(cell) >= (0 if cell == "-" else 3)


def test_the_name_of_the_run_is_whole_in_the_progress_of_80_columns():
    written = io.StringIO()
    console = Console(file=written, width=80, force_terminal=True, color_system=None)
    with progress(console, "runs") as notify:
        notify(f"{NAMES[0]}, seed 3", 1, 80)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
    assert "…" not in text
    assert set(f"{NAMES[0]}, seed 3".split()) <= set(text.split())
