"""The command `congruency`.

Everything it needs beyond torch is imported when a command runs, so that an installation of the core alone answers with
one line that says what to install.
"""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from congruency._version import __version__

if TYPE_CHECKING:
    import typer

_EXTRA = {  # what [experiments] installs
    "PIL", "click", "lightning", "matplotlib", "numpy", "quadprog", "rich", "scipy", "sklearn", "tensorboard", "timm",
    "torchmetrics", "torchvision", "typer",
}  # fmt: skip
_INTERRUPTED = 130  # what a shell expects of a command ended by Ctrl-C


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
        sys.exit(_INTERRUPTED)


def build() -> "typer.Typer":
    """The command line with all its commands."""
    import typer

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
        _check_folder(out, "--out")
        with _interruptible("stopped; nothing was written"):
            from rich.console import Console

            from congruency.experiments import demo

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
            _check_device(name, "--device")
        if not all(map(math.isfinite, size or [])):
            raise typer.BadParameter("must be a finite number of parameters", param_hint="--size")
        if out is not None:
            _check_folder(out, "--out")
        with _interruptible("stopped; nothing was written"):
            from congruency.experiments import bench

            bench.run(
                devices=devices, sizes=size or None, references=references or [1, 3, 10, 20], out=out, quick=quick
            )

    @app.command()
    def reproduce(
        table: Annotated[str, typer.Argument(metavar="TABLE", help="Which table: mnist_r, mnist_p or icifar100.")],
        seeds: Annotated[
            int, typer.Option(min=1, metavar="N", help="Runs of every row, on different streams and first weights.")
        ] = 5,
        rows: Annotated[
            list[str] | None,
            typer.Option(
                "--rows",
                metavar="NAME",
                help="Only this row, or all whose names begin so; may be given several times. (default: all)",
            ),
        ] = None,
        data: Annotated[
            Path | None,
            typer.Option(metavar="FOLDER", help="Where the data sets are. (default: $CONGRUENCY_DATA)"),
        ] = None,
        device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, ...")] = "cpu",
        out: Annotated[
            Path | None,
            typer.Option(
                metavar="FOLDER",
                help="For the page, the figures and results.json; runs that are finished there are not run again. "
                "(default: congruency-TABLE)",
            ),
        ] = None,
        first_seed: Annotated[int, typer.Option(min=0, max=2**31, metavar="N", help="Use the seeds from this on.")] = 0,
        base: Annotated[
            str | None,
            typer.Option(metavar="SET", help="Another image set to make the tasks of: digits (embedded), or a path."),
        ] = None,
        labels: Annotated[
            str,
            typer.Option(
                metavar="WHICH",
                help="For CIFAR-100 with noisy training labels: clean divides the clean test images, noisy uses the "
                "set as it is and says so.",
            ),
        ] = "given",
        network: Annotated[
            str | None, typer.Option(metavar="NAME", help="Another network: mlp, resnet, or a name that timm knows.")
        ] = None,
        tasks: Annotated[int, typer.Option(min=1, metavar="N", help="Tasks of the stream.")] = 20,
        samples: Annotated[
            int | None, typer.Option(min=1, metavar="N", help="Samples of a task. (default: the paper's)")
        ] = None,
        memory: Annotated[int, typer.Option(min=1, metavar="N", help="Samples kept of every task.")] = 256,
        policy: Annotated[
            str, typer.Option(metavar="WHICH", help="Which samples are kept: first or ring (last).")
        ] = "first",
        tune: Annotated[
            str | None,
            typer.Option(
                metavar="KIND",
                help="Instead of the table: search learning rate and strength of ewc or icarl on held-out seeds.",
            ),
        ] = None,
    ) -> None:
        """Run a table of the paper, with as many seeds as you like.

        Every row is learned from every seed; the table shows means, intervals
        and paired differences beside the paper's numbers. Interrupted runs go
        on where they stopped when the same command is given again.
        """
        folder = out if out is not None else Path(f"congruency-{table}")
        _check_folder(folder, "--out")
        _check_device(device, "--device")
        with _interruptible("stopped; the same command goes on where it stopped"):
            from congruency.experiments.continual import command

            try:
                command.run(
                    table=table, seeds=range(first_seed, first_seed + seeds), rows=rows or (), data=data,
                    device=device, out=folder, base=base, labels=labels, network=network, tasks=tasks,
                    samples=samples, memory=memory, policy=policy, tune=tune,
                )  # fmt: skip
            except (ValueError, FileNotFoundError) as error:
                raise typer.BadParameter(str(error)) from None

    return app


@contextmanager
def _interruptible(message: str) -> Iterator[None]:
    """Ctrl-C ends the command with a line that says so."""
    import typer

    try:
        yield
    except KeyboardInterrupt:
        typer.echo(message, err=True)
        raise typer.Exit(_INTERRUPTED) from None


def _check_folder(folder: Path, option: str) -> None:
    """Refuse, before any work, a folder that could not be written to after it."""
    import typer

    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise typer.BadParameter(f"{existing} is a file, a folder is needed", param_hint=option)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"{existing} cannot be written to", param_hint=option)


def _devices() -> list[str]:
    import torch

    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _check_device(name: str, option: str) -> None:
    """Refuse, before any work, a device that PyTorch cannot put a tensor on."""
    import torch
    import typer

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        reason = str(error).splitlines()[0]
        raise typer.BadParameter(f"PyTorch cannot use {name!r} here: {reason}", param_hint=option) from None
