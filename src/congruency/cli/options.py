"""Options shared by several commands, each with one name and one help text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from congruency.cli.terminal import check_folder, interruptible, plain_errors

if TYPE_CHECKING:
    from congruency.studies.classification.runner import ImageSource
    from congruency.studies.executor import Place
    from congruency.training import Correction


def option(
    help: str, metavar: str | None = None, *, name: str | None = None, panel: str | None = None,
    min: float | None = None, max: float | None = None, callback: Callable[[Any], Any] | None = None,
) -> Any:  # fmt: skip
    """Return a typer option, named after its parameter unless ``name`` is given.

    Flags need a ``name``, and so do options whose metavar equals their name: some releases of typer (0.27) would call
    them ``--DEVICE``.
    """
    names = () if name is None else (name,)
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, min=min, max=max, callback=callback)


where = partial(option, panel="Where runs are executed")
method = partial(option, panel="The method")
runs = partial(option, panel="How each run is trained")
machine = partial(option, panel="The machine")

Mode = Literal["concentrate", "anchor"]
Scope = Literal["head", "all"]
OrderName = Literal["seed", "fixed", "independent"]
PrecisionName = Literal["32", "bf16", "16"]
SETS = (
    "digits (embedded), mnist, fashion_mnist, cifar10, cifar100, tiny_imagenet, imagenet; or a folder or archive with "
    "train/<class>/ and test/<class>/ images"
)
"""Values of --dataset."""
ORDERS = (
    "Which runs use the same order of the samples: seed: all runs of one seed; fixed: all runs (the paper's fixed "
    "permutations); independent: none, each method has its own order (the paper's stochastic permutations)."
)
"""Values of --order."""


def several(help: str, *choices: str, panel: str | None = None) -> Any:
    """Return a repeatable option with the given choices; typer does not support lists of literals."""

    def check(words: list[str] | None) -> list[str] | None:
        for word in words or []:
            if word not in choices:
                raise typer.BadParameter(f"{word!r} is not one of {', '.join(map(repr, choices))}")
        return words

    return option(help, "|".join(choices), panel=panel, callback=check)


Floor = Annotated[str | None, method(
    "DCL corrects a step only if its congruency is negative but at least minus this number, such as 0.1: strong "
    "disagreement brings the weights back and is kept. none is the paper's form, which can diverge with momentum. "
    "(default: 0.3, or that of a named method)",
    "NUMBER|none",
)]  # fmt: skip
Returning = Annotated[bool | None, method(
    "With a floor, DCL corrects a step only if the previous step did not move the weights away from the reference. "
    "(default: --returning)",
)]  # fmt: skip
Correct = Annotated[Literal["gradient", "update"] | None, method(
    "DCL corrects the gradient, or the update that the optimizer makes from it. (default: gradient)",
)]  # fmt: skip
Blocks = Annotated[Literal["joint", "group", "tensor", "row", "element"] | None, method(
    "DCL solves one problem for all parameters, or one per parameter group, tensor, row or element. (default: joint)",
)]  # fmt: skip
CautiousFlag = Annotated[bool | None, method(
    "Make the optimizer cautious too: set elements of the update that oppose the gradient to 0, after any correction "
    "of the gradient.", name="--cautious",
)]  # fmt: skip
Rescale = Annotated[bool | None, method(
    "Divide the elements that a cautious optimizer keeps by their share of the tensor. (default: --rescale)",
)]  # fmt: skip
MaxRescale = Annotated[float | None, method(
    "Upper bound of a cautious optimizer's rescaling factor, such as 10. (default: no bound)", "FACTOR", min=1.0,
)]  # fmt: skip
MaskDecay = Annotated[bool | None, method(
    "Apply a cautious optimizer's weight decay only to elements where it agrees with the update.", name="--mask-decay",
)]  # fmt: skip

Seeds = Annotated[int, option("Runs per row, from different initial weights.", "N", min=1)]
FirstSeed = Annotated[int, option("The first of the consecutive seeds.", "N", min=0, max=2**31)]
Rows = Annotated[list[str] | None, option(
    "Run only this row, such as GEM or 'DINet Adam GEM', or all rows that begin with it; may be repeated. (default: "
    "all)",
    "NAME", name="--row",
)]  # fmt: skip
TableOut = Annotated[Path | None, option(
    "Folder for the page, table.md and results.json; runs that are finished there are not repeated. (default: "
    "congruency-TABLE)",
    "FOLDER",
)]  # fmt: skip


def _check_data(folder: Path | None) -> Path | None:
    """Raise BadParameter if ``--data`` is not a folder; a data set itself is given by --dataset."""
    if folder is not None and not folder.expanduser().is_dir():
        raise typer.BadParameter(
            f"{folder} is not a folder; --data is the folder where named data sets are looked for, and --dataset the "
            "set itself (its name or path)"
        )
    return folder


Data = Annotated[Path | None, option(
    "The folder where named data sets are looked for. (default: $CONGRUENCY_DATA)", "FOLDER", callback=_check_data,
    panel="The data",
)]  # fmt: skip
Dataset = Annotated[str | None, option(f"Use another image set: {SETS}.", "SET|PATH", panel="The data")]
Model = Annotated[str | None, runs("Network of all runs, such as resnet18. (default: the row's)", "NAME")]
Epochs = Annotated[int | None, runs("Epochs of all runs, such as 30. (default: the row's)", "N", min=1)]
BatchSize = Annotated[int | None, runs("Batch size of all runs, such as 128. (default: the row's)", "N", min=1)]
TuningSeeds = Annotated[int, option("Number of seeds on which learning rates are tuned.", "N", min=1)]
MethodRows = Annotated[list[str] | None, option(
    "Run only this method, such as dcl-50, and the baseline; may be repeated. (default: all of the table)", "NAME",
    name="--row",
)]  # fmt: skip
Rates = Annotated[list[float] | None, option(
    "A learning rate of the grid; may be repeated. A single rate is used without tuning. (default: five rates of the "
    "table)", "NUMBER",
)]  # fmt: skip
LearningRate = Annotated[float | None, runs("Learning rate of all runs, such as 0.1. (default: the row's)", "RATE")]
Pretrained = Annotated[str | None, runs(
    "A file with weights for runs that are fine-tuned, or 'installed' for weights from a package. (default: "
    "downloaded)", "WEIGHTS",
)]  # fmt: skip
PerClass = Annotated[int | None, runs("Number of training images per class, such as 10. (default: all)", "N", min=1)]
Device = Annotated[Literal["auto", "cpu", "cuda"], option(
    "auto uses a GPU if there is one; select one of several GPUs with CUDA_VISIBLE_DEVICES.",
)]  # fmt: skip
Precision = Annotated[PrecisionName, machine("Number format of training; bf16 and 16 are mixed precision.")]
CaptureFlag = Annotated[bool, machine(
    "Replay the network's passes as a CUDA graph; small networks train faster.", name="--capture",
)]  # fmt: skip
CompileFlag = Annotated[bool, machine("Run the network through torch.compile.", name="--compile")]
TF32Flag = Annotated[bool, machine("Let a GPU round float32 products to TF32.", name="--tf32")]
Corpus = Annotated[str, option(
    "Text to train on: stdlib (the sources of Python's standard library), a folder of text files, or one file.",
    "stdlib|PATH",
)]  # fmt: skip
ModelSize = Annotated[Literal["tiny", "medium", "10m", "100m"], option(
    "Size of the GPT: 0.1, 0.6, 10.8 or 99.7 million parameters.",
)]  # fmt: skip
Resume = Annotated[bool, option(
    "Resume from the last checkpoint in --out; start from the beginning if there is none.", name="--resume",
)]  # fmt: skip
RunOut = Annotated[Path, option("Folder for the record and the checkpoints of this run; use one per run.", "FOLDER")]
Strategy = Annotated[Literal["auto", "ddp", "fsdp"], machine(
    "How several processes share the model; start them with torchrun -m congruency COMMAND.",
)]  # fmt: skip
Measure = Annotated[Literal["head", "all", "none"], machine(
    "The parameters whose congruency and magnitude are recorded.",
)]  # fmt: skip
CheckpointSteps = Annotated[int | None, machine(
    "Steps between checkpoints, in addition to one at every evaluation.", "STEPS", min=1,
)]  # fmt: skip
TensorBoard = Annotated[bool, machine("Also write TensorBoard logs.", name="--tensorboard")]
ProgressFlag = Annotated[bool | None, machine("Show a progress bar. (default: in a terminal)")]
Processes = Annotated[int, where("Runs at once on this machine.", "N", min=1, max=64)]
Threads = Annotated[int | None, where(
    "CPU threads of each run; results are bit-identical for equal numbers. (default: all cores, shared by the runs; 1 "
    "with --ray)", "N", min=1,
)]  # fmt: skip
Ray = Annotated[str | None, where(
    "Execute the runs on the Ray cluster at this address, such as auto or 10.0.0.5:6379; local starts Ray on this "
    "machine. All machines need access to --out and the data.", "ADDRESS",
)]  # fmt: skip


def floor_of(word: str) -> float | None:
    """Parse a congruency floor; None is the paper's form."""
    if word.lower() == "none":
        return None
    try:
        floor = float(word)
    except ValueError:
        floor = 0.0
    if not 0.0 < floor <= 1.0:
        raise typer.BadParameter(
            f"must be above 0 and at most 1, or none for the paper's form, got {word!r}", param_hint="--floor"
        )
    return floor


def refined(base: Correction, floor: str | None, **given: Any) -> Correction:
    """Return a correction changed by the given options (not None); raise BadParameter for one without effect."""
    from dataclasses import replace

    changes = chosen(**given)
    changes |= {} if floor is None else {"floor": floor_of(floor)}
    found = replace(base, **changes)
    dcl, concentrates = found.name == "dcl", found.mode == "concentrate" and found.blocks != "element"
    cautious = found.cautious or found.name == "cautious"
    wanted = {  # what each option needs, and whether that is fulfilled
        "window": ("DCL", dcl),
        "floor": ("DCL in mode concentrate, by joint, group, tensor or row", dcl and concentrates),
        "returning": ("DCL in mode concentrate with a floor", dcl and concentrates and found.floor is not None),
        "correct": ("DCL", dcl),
        "blocks": ("DCL", dcl),
        "cautious": ("DCL or GEM", found.name in ("dcl", "gem")),
        "rescale": ("a cautious optimizer", cautious),
        "mask_decay": ("a cautious optimizer", cautious),
        "max_rescale": ("a cautious optimizer that rescales", cautious and found.rescale),
    }
    for name, value in changes.items():
        needs, has = wanted[name]
        if not has:
            flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            raise typer.BadParameter(f"needs {needs}; choose another --method, or omit the option", param_hint=flag)
    return found if concentrates else replace(found, floor=None)


def chosen(**options: Any) -> dict[str, Any]:
    """Return the options that were given, i.e. are not None."""
    return {name: value for name, value in options.items() if value is not None}


def image_source(
    folder: Path, place: Place, data: Path | None, dataset: str | None, *, cache: Path | None = None, **settings: Any
) -> ImageSource:
    """Return the image source of a study in ``folder``, with absolute paths, since cluster workers start elsewhere."""
    import os

    from congruency.datasets import SETS as KNOWN
    from congruency.studies.classification.runner import ImageSource

    found = data or os.environ.get("CONGRUENCY_DATA")
    known = dataset is None or dataset in KNOWN
    if cache is None and place.elsewhere:
        cache = folder / "images"
    return ImageSource(
        data=Path(found).expanduser().absolute() if found else None,
        dataset=dataset if known else str(Path(str(dataset)).expanduser().absolute()),
        cache=None if cache is None else cache.absolute(),
        **settings,
    )


@contextmanager
def studying(out: Path, processes: int, threads: int | None, ray: str | None) -> Iterator[Place]:
    """Check, before any work, where a study's runs are written and executed; report Ctrl-C and errors as one line."""
    from congruency.studies.executor import Place
    from congruency.training.processes import process_count

    check_folder(out, "--out")
    if ray not in (None, "local") and processes > 1:
        raise typer.BadParameter(
            "is for this machine; a Ray cluster executes as many runs as fit", param_hint="--processes"
        )
    if process_count() > 1:
        raise typer.BadParameter("a study starts its own processes, by --processes or --ray; leave torchrun out")
    with interruptible("stopped; the same command resumes where it stopped"), plain_errors():
        yield Place(processes=processes, threads=threads, ray=ray)
