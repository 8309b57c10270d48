"""``congruency demo``: what DCL does, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruency.cli.options import option
from congruency.cli.terminal import check_folder, interruptible

__all__ = ["demo"]


def demo(
    seeds: Annotated[int, option("Runs of each method, from different weights.", "N", min=1)] = 12,
    epochs: Annotated[int, option("Epochs of each run.", "N", min=1)] = 25,
    window: Annotated[int, option("DCL records a new reference point every so many steps.", "STEPS", min=2)] = 50,
    references: Annotated[int, option(
        "How many reference points DCL keeps; fewer than the window.", "N", min=1, max=64,
    )] = 1,
    first_seed: Annotated[int, option("The first of the consecutive seeds.", "N", min=0, max=2**31)] = 0,
    out: Annotated[Path, option(
        "The folder for the page (index.html) and its numbers (results.json).", "FOLDER",
    )] = Path("congruency-demo"),
) -> None:  # fmt: skip
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
