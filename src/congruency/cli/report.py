"""``congruency report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruency.cli.options import option
from congruency.cli.terminal import check_folder, show, writing
from congruency.studies.console import command_line


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...", help="Folders of runs, or folders with runs anywhere below them, or records (.jsonl)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    json_file: Annotated[Path | None, option(
        "Also write the numbers of every seed to this file, row by row.", "FILE", name="--json",
    )] = None,
    unfinished: Annotated[bool, option("Include runs that are not finished.", name="--unfinished")] = False,
) -> None:  # fmt: skip
    """Compare any set of runs on one page.

    Reads the records of runs (record.jsonl) and groups runs that differ only in
    their seeds. The page has a table with intervals and paired tests, and curves
    of loss, error, congruency and magnitude. A record that cannot be read is
    reported and skipped, as is a second run with the same settings and seed.
    """
    if json_file is not None:
        check_folder(json_file.parent, "--json")
    with writing(out.parent):
        from congruency.files import write_apart
        from congruency.report.page import render
        from congruency.studies.analysis import report as work
        from congruency.studies.analysis.runs import find_records, group, load
        from congruency.studies.results import to_json

        if out.is_dir():
            raise ValueError(f"--out is a folder; a page is a file, as in {out / 'report.html'}")
        if json_file is not None and (json_file.is_dir() or json_file.resolve() == out.resolve()):
            raise ValueError(f"--json must be a file, and not the page itself, got {json_file}")
        loaded = load(find_records(runs), unfinished=unfinished)
        if not loaded.runs:
            raise ValueError("; ".join([*loaded.messages, "no run is left to report on"]))
        groups = group(loaded.runs)
        page = work.compose(loaded, command_line())
        contents: dict[Path, str | bytes] = {out: render(page)}
        if json_file is not None:
            contents[json_file] = to_json(work.results_of(groups))
        written = write_apart(contents)[0]
        messages = [*work.left_out(groups), *loaded.messages]
        for message in messages:
            typer.echo(message, err=True)
        show(page.table, [text for text in page.findings if text not in messages], written)
