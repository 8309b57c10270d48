"""``congruency demo``: what DCL does, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruency.cli.terminal import check_folder, interruptible

__all__ = ["demo"]


def demo(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each method, from different weights.")] = 12,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs of each run.")] = 25,
    window: Annotated[
        int, typer.Option(min=2, metavar="STEPS", help="DCL records a new reference point every so many steps.")
    ] = 50,
    references: Annotated[
        int,
        typer.Option(min=1, max=64, metavar="N", help="How many reference points DCL keeps; fewer than the window."),
    ] = 1,
    first_seed: Annotated[
        int, typer.Option(min=0, max=2**31, metavar="N", help="The first of the consecutive seeds.")
    ] = 0,
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="The folder for the page (index.html) and its numbers (results.json)."),
    ] = Path("congruency-demo"),
) -> None:
    """See what DCL does, in about a minute.

    Trains a small network on 8x8 pictures of digits, from several seeds:
    plainly, and with Direction Concentration Learning in its two modes.
    Prints a table of the results and writes a page with the curves.
    """
    check_folder(out, "--out")
    with interruptible("stopped; nothing was written"):
        from rich.console import Console

        from congruency.studies import demo

        try:
            settings = demo.Settings(seeds, epochs, window, references, first_seed)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        demo.run(settings, out, Console())
