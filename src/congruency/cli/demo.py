"""``congruency demo``: a demonstration of a minute or two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from congruency.cli.options import option
from congruency.cli.terminal import writing


def demo(
    seeds: Annotated[int, option("Runs of each method, from different weights.", "N", min=1)] = 6,
    steps: Annotated[int, option("Steps of each language model; a multiple of 10.", "N", min=10)] = 200,
    epochs: Annotated[int, option("Epochs of each digits classifier.", "N", min=1)] = 25,
    window: Annotated[int, option("Number of steps after which DCL records a new reference.", "STEPS", min=2)] = 50,
    first_seed: Annotated[int, option("The first of the consecutive seeds.", "N", min=0, max=2**31)] = 0,
    out: Annotated[Path, option(
        "The folder for the page (index.html) and its numbers (results.json).", "FOLDER",
    )] = Path("congruency-demo"),
) -> None:  # fmt: skip
    """Compare Cautious, DCL and GEM with plain training in a minute or two.

    Trains a small language model with AdamW and a digits classifier with SGD,
    from several seeds: without a correction, with Cautious, and with DCL; and
    the classifier on rotated digits, one angle after the other, with GEM.
    Prints a table of the results and writes a page with the curves.
    """
    with writing(out):
        from rich.console import Console

        from congruency.studies import demo

        demo.run(demo.Settings(seeds, steps, epochs, window, first_seed), out, Console())
