"""The commands ``illustrate``, ``bound``, ``report`` and ``pairs``, for the command line to mount."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from congruency.cli.terminal import check_folder, interruptible, show, told_plainly
from congruency.studies.console import typed

__all__ = ["bound", "illustrate", "pairs", "register", "report"]


_MOST_SAMPLES = 100  # a matrix has their square


def register(app: typer.Typer) -> None:
    """Add the commands of the analyses to the command line."""
    for command in (illustrate, bound, report, pairs):
        app.command()(command)


def illustrate(
    function: Annotated[
        str,
        typer.Option(
            "--function",
            metavar="NAME|FORMULA",
            help="paper (its Figure 5), rosenbrock, himmelblau, ravine, waves; or a formula in x and y with + - * / ** "
            "and sin, cos, tanh, exp, log, sqrt, abs, pow, such as 'x**2 + 10*sin(y)**2' (needs --start).",
        ),
    ] = "paper",
    start: Annotated[
        tuple[float, float] | None,
        typer.Option("--start", metavar="X Y", help="Where to start. (default: the function's own place)"),
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            "--optimizer",
            metavar="NAME",
            help="gd, rmsprop, adam as in the paper's figure, or any of torch.optim (AdamW, NAdam, ...); may be given "
            "several times. (default: those three)",
        ),
    ] = None,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            "--lr", metavar="RATE", help="Learning rates to compare; give it several times. (default: the figure's two)"
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            metavar="NAME=VALUE",
            help="A keyword of the optimizer, as eps=0.1; may be given several times.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, max=100_000, metavar="N", help="How many. (default: the figure's)")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=0,
            metavar="STEPS",
            help="DCL takes a new reference point every so many steps; 0 for never. (default: the figure's)",
        ),
    ] = None,
    references: Annotated[
        int, typer.Option("--references", min=1, max=64, metavar="N", help="How many reference points DCL keeps.")
    ] = 1,
    offset: Annotated[
        int, typer.Option("--offset", min=0, metavar="STEPS", help="At which step of the window they are taken.")
    ] = 0,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, metavar="NUMBER", help="Of the anchor: how strongly it pulls back.")
    ] = 0.5,
    trigger: Annotated[
        str,
        typer.Option(
            "--trigger", metavar="violated|always", help="Of the anchor: pull only where it is violated, or always."
        ),
    ] = "violated",
    animated: Annotated[bool, typer.Option("--animation/--no-animation", help="Make the GIF too.")] = True,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="For the page (index.html), the pictures and results.json.")
    ] = Path("congruency-illustrate"),
) -> None:
    """See the way down a surface, with and without DCL.

    Follows optimizers over a function of two variables, at two learning rates
    each: plainly, and with DCL in its two modes. Says which mode makes the
    learning rates agree on one minimum, and draws the paths (Figure 5).
    """
    check_folder(out, "--out")
    with interruptible("stopped; nothing was written"), told_plainly():
        from congruency.studies.analysis import descent, surfaces
        from congruency.studies.analysis import illustrate as work

        if trigger not in ("violated", "always"):
            raise ValueError(f"--trigger must be violated or always, got {trigger!r}")
        surface = surfaces.find(function, start)
        chosen = [descent.find(name) for name in optimizer or descent.OPTIMIZERS]
        changes = _changes(lr, steps, window, setting)
        settings = work.Settings(
            surface,
            [replace(one, **changes) for one in chosen],
            descent.Correction(references=references, offset=offset, margin=margin, trigger=trigger),  # type: ignore[arg-type]
        )
        results = work.illustrate(settings)
        paths = work.write(settings, results, out, _command(), animated=animated)
        show(work.table(results), work.findings(results), paths[0])


def bound(
    problem: Annotated[
        list[str] | None,
        typer.Option(
            "--problem",
            metavar="quadratic|logistic",
            help="Which function; may be given several times. (default: both)",
        ),
    ] = None,
    step: Annotated[
        list[float] | None,
        typer.Option(
            "--step",
            metavar="NUMBER",
            help="A step size, times L: 1 is 1/L; may be given several times. (default: 0.02 to 1.9)",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=2, max=10_000, metavar="N", help="Iterations of gradient descent.")
    ] = 40,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="For the page (index.html) and results.json.")
    ] = Path("congruency-bound"),
) -> None:
    """Compare the lower bound of Theorem 1 with measured congruency.

    Gradient descent on a quadratic and on logistic regression, whose Lipschitz
    constants L are known, with steps below and above 1/L: where the bound is
    tight, where it says nothing, and whether it holds.
    """
    check_folder(out, "--out")
    with interruptible("stopped; nothing was written"), told_plainly():
        from congruency.studies.analysis import bound_page, bounds

        names = problem or list(bounds.PROBLEMS)
        unknown = [name for name in names if name not in bounds.PROBLEMS]
        if unknown:
            raise ValueError(f"--problem must be among {', '.join(bounds.PROBLEMS)}, got {unknown[0]!r}")
        relatives = sorted(step or (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.1, 1.25, 1.5, 1.75, 1.9))
        problems = {name: bounds.PROBLEMS[name]() for name in names}
        results = {name: (one, bounds.compare_all(one, relatives, steps)) for name, one in problems.items()}
        paths = bound_page.write(results, steps, out, _command())
        show(bound_page.summary(results), bound_page.findings(results), paths[0])


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...", help="Folders of runs, or folders with runs anywhere below them, or records (.jsonl)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the figures of every seed there too, row by row."),
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Take in runs that have not come to their end.")
    ] = False,
) -> None:
    """Make one page of any set of runs.

    Reads the records that trainings leave (record.jsonl) and puts runs together
    that differ in their seeds alone: a table with intervals and paired tests,
    and curves of loss, error, congruency and magnitude. A record that cannot be
    read is named and skipped, and so is a second run of a row and seed.
    """
    check_folder(out.parent, "--out")
    if json_file is not None:
        check_folder(json_file.parent, "--json")
    with interruptible("stopped; nothing was written"), told_plainly():
        from congruency.files import write_apart
        from congruency.report.page import render
        from congruency.studies.analysis import report as work
        from congruency.studies.analysis.figures import as_json
        from congruency.studies.analysis.runs import find_records, group, load

        if out.is_dir():
            raise ValueError(f"--out is a folder; a page is a file, as in {out / 'report.html'}")
        if json_file is not None and (json_file.is_dir() or json_file.resolve() == out.resolve()):
            raise ValueError(f"--json must be a file, and not the page itself, got {json_file}")
        loaded = load(find_records(runs), unfinished=unfinished)
        if not loaded.runs:
            raise ValueError("; ".join([*loaded.messages, "no run is left to report on"]))
        groups = group(loaded.runs)
        page = work.compose(loaded, _command())
        contents: dict[Path, str | bytes] = {out: render(page)}
        if json_file is not None:
            contents[json_file] = as_json(groups)
        written = write_apart(contents)[0]
        told = [*work.left_out(groups), *loaded.messages]
        for message in told:
            typer.echo(message, err=True)
        show(work.narrow(page.table), [text for text in page.findings if text not in told], written)


def pairs(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="CHECKPOINT...",
            help="A run of congruency train, or a checkpoint in it; or a saliency model (model.pt). Of several runs, "
            "such as those of several seeds: do samples of one class agree more than those of two?",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="SET|PATH",
            help="The images: digits (embedded), cifar10, ..., or a folder or archive; for a saliency model a folder "
            "of images with fixations, or a file that congruency saliency prepare wrote.",
        ),
    ],
    classes: Annotated[
        tuple[str, str] | None,
        typer.Option("--classes", metavar="A B", help="Two classes to compare, by name. (default: a mixture)"),
    ] = None,
    count: Annotated[
        int,
        typer.Option("--samples", min=2, max=100, metavar="N", help="Images of each class; in all, without --classes."),
    ] = 10,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="NAME", help="Which part of the set. (default: test; SALICON's: train)"),
    ] = None,
    data_folder: Annotated[
        Path | None,
        typer.Option("--data-folder", metavar="FOLDER", help="Where the named sets are. (default: $CONGRUENCY_DATA)"),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="For the page (index.html), matrices (CSV) and numbers.")
    ] = Path("congruency-pairs"),
) -> None:
    """Compare samples by what they would teach a trained network.

        congruency pairs runs/first --data digits --classes 3 8

    For every two samples: the congruency of their gradients in the last layer,
    beside the plain similarity of the images (Figures 7 and 8), as a matrix and
    as pictures.
    """
    check_folder(out, "--out")
    with interruptible("stopped; nothing was written"), told_plainly():
        from congruency.studies.analysis import pairs as work
        from congruency.studies.analysis import pairs_over_networks as several
        from congruency.studies.analysis import samples

        def chosen(checkpoint: Path) -> samples.Samples:
            if samples.is_saliency(checkpoint):
                if classes is not None:
                    raise ValueError("a saliency set has no classes; leave --classes out")
                found = samples.saliency_samples(checkpoint, Path(data), count, split=split or "train")
            else:
                found = samples.classifier_samples(
                    checkpoint, data, classes or (), count, split=split or "test", folder=data_folder
                )
            if len(found.labels) > _MOST_SAMPLES:
                raise ValueError(f"{len(found.labels)} samples are too many for a page; at most {_MOST_SAMPLES}")
            return found

        samples.all_different(checkpoints)
        first = chosen(checkpoints[0])
        results = [work.compare(first), *(work.compare(chosen(other)) for other in checkpoints[1:])]
        if len(results) == 1:
            paths = work.write(first, results[0], out, _command())
            show(work.summary(results[0]), work.findings(results[0]), paths[0])
            return
        trained = [command for checkpoint in checkpoints if (command := samples.trained_by(checkpoint)) is not None]
        paths = several.write(first, results, out, _command(), trained)
        found = several.results(results)
        show(several.summary(found), several.findings(found), paths[0])


def _changes(
    lr: list[float] | None, steps: int | None, window: int | None, setting: list[str] | None
) -> dict[str, Any]:
    """What the options change about an optimizer's descent."""
    changes: dict[str, Any] = {}
    if lr:
        changes["rates"] = tuple(lr)
    if steps is not None:
        changes["steps"] = steps
    if window is not None:
        changes["window"] = window or None
    if setting:
        changes["settings"] = dict(map(_setting, setting))
    return changes


def _setting(text: str) -> tuple[str, Any]:
    """``eps=0.1`` as a keyword; values are Python's literals, nothing else is evaluated."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or name == "lr":
        raise ValueError(f"--setting must look like eps=0.1 (learning rates are given by --lr), got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"--setting {name}: {value!r} is not a number, a tuple, True, False or None") from None


def _command() -> str:
    """The command as it was given, without the place of the program."""
    return f"congruency {typed() or ''}".rstrip()
