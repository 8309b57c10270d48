"""The command `congruency`.

Everything it needs beyond torch is imported when a command runs, so that an installation of the core alone answers with
one line that says what to install.
"""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from congruency._version import __version__
from congruency.cli.terminal import INTERRUPTED, check_device, check_folder, interruptible

if TYPE_CHECKING:
    import typer

_EXTRA = {  # what [experiments] installs
    "PIL", "click", "lightning", "matplotlib", "numpy", "quadprog", "rich", "scipy", "sklearn", "tensorboard", "timm",
    "torchmetrics", "torchvision", "typer",
}  # fmt: skip


def main() -> None:
    """Run the command line."""
    try:
        build()()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(f"congruency: {error.name} is missing; install congruency[experiments]", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("congruency: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def build() -> "typer.Typer":
    """The command line with all its commands."""
    import typer

    from congruency.cli.ablate import ablate
    from congruency.cli.analysis import register as add_analyses
    from congruency.cli.many_values import ManyValuesCommand
    from congruency.cli.reproduce import reproduce
    from congruency.cli.saliency import app as saliency
    from congruency.cli.train import train

    app = typer.Typer(
        help="Measure how far gradients agree with the way training has come, and correct those that disagree (DCL).",
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_show_locals=False,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            print(f"congruency {__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        pass

    @app.command()
    def demo(
        seeds: Annotated[
            int,
            typer.Option(min=1, metavar="N", help="How many times to train each way, from different first weights."),
        ] = 12,
        epochs: Annotated[
            int, typer.Option(min=1, metavar="N", help="How often each training goes through the digits.")
        ] = 25,
        window: Annotated[
            int,
            typer.Option(min=2, metavar="STEPS", help="DCL takes a new reference point every so many training steps."),
        ] = 50,
        references: Annotated[
            int,
            typer.Option(
                min=1, max=64, metavar="N", help="How many reference points DCL keeps; fewer than the window."
            ),
        ] = 1,
        first_seed: Annotated[
            int,
            typer.Option(
                min=0,
                max=2**31,
                metavar="N",
                help="Use the seeds from this one on, to see whether a result holds on others.",
            ),
        ] = 0,
        out: Annotated[
            Path,
            typer.Option(metavar="FOLDER", help="The folder for the page (index.html) and its numbers (results.json)."),
        ] = Path("congruency-demo"),
    ) -> None:
        """See what DCL does, in about a minute.

        Trains a small network on 8x8 pictures of digits, from several seeds:
        plainly, and with Direction Concentration Learning in its two modes.
        Prints a table of what came out and writes a page with the curves.
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

    @app.command()
    def bench(
        device: Annotated[
            list[str] | None,
            typer.Option(
                "--device",  # said, because typer 0.27 would take the metavar for the name
                metavar="DEVICE",
                help="Where to measure: cpu, cuda, cuda:1, ...; may be given several times. "
                "(default: the CPU, and the GPU if there is one)",
            ),
        ] = None,
        size: Annotated[
            list[float] | None,
            typer.Option(
                min=1,
                metavar="PARAMETERS",
                help="Measure one tensor of so many parameters, as in 1e6; may be given several times. "
                "Without it: many sizes, and the shapes of real networks.",
            ),
        ] = None,
        references: Annotated[
            list[int] | None,
            typer.Option(
                min=1,
                max=64,
                metavar="N",
                help="Reference points DCL keeps; may be given several times. (default: 1, 3, 10 and 20)",
            ),
        ] = None,
        out: Annotated[
            Path | None, typer.Option(metavar="FOLDER", help="A folder to write the measurements to, as JSON.")
        ] = None,
        quick: Annotated[
            bool, typer.Option("--quick", help="Small sizes and short runs: to see that it works.")
        ] = False,
    ) -> None:
        """Measure what DCL costs.

        Times the correction of a gradient beside the optimizer's own step and
        beside the time that reading the memory alone would take.
        """
        devices = device or _devices()
        for name in devices:
            check_device(name, "--device")
        if not all(map(math.isfinite, size or [])):
            raise typer.BadParameter("must be a finite number of parameters", param_hint="--size")
        if out is not None:
            check_folder(out, "--out")
        with interruptible("stopped; nothing was written"):
            from congruency.studies import bench

            bench.run(
                devices=devices, sizes=size or None, references=references or [1, 3, 10, 20], out=out, quick=quick
            )

    app.command()(train)
    app.command()(reproduce)
    app.command(cls=ManyValuesCommand)(ablate)
    add_analyses(app)
    app.add_typer(saliency, name="saliency")
    return app


def _devices() -> list[str]:
    import torch

    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
