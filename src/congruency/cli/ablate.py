"""``congruency ablate``: DCL over a grid of its settings, on one machine or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from congruency.cli import options

_grid = partial(options.option, panel="The grid (each takes several values: --window 5 10 none)")
_training = partial(options.option, panel="What is trained")
_NONE = ("none", "inf")
_choice = partial(options.several, panel=_grid.keywords["panel"])


def ablate(
    recipe: Annotated[str | None, typer.Argument(
        metavar="RECIPE", show_default=False,
        help="A row of a table of `congruency reproduce classification`, as TABLE/ROW, such as "
        "'tiny_imagenet/ResNet-101 SGD' or cifar10_grid. Otherwise give --dataset to train as `congruency train` does.",
    )] = None,
    window: Annotated[list[str] | None, _grid(
        "Steps after which DCL records new reference points; none: only once. (default: 5 10 20 50 none)", "STEPS|none",
    )] = None,
    references: Annotated[list[int] | None, _grid(
        "Numbers of DCL's reference points. (default: 1 2 3 5)", "N", min=1, max=64,
    )] = None,
    mode: Annotated[list[str] | None, _choice(
        "The paper's equations, or its published code. (default: concentrate)", "concentrate", "anchor",
    )] = None,
    margin: Annotated[list[float] | None, _grid(
        "Lower bound of the multiplier of every constraint. (default: 0 for concentrate, 0.5 for anchor)",
        "NUMBER", min=0.0,
    )] = None,
    scope: Annotated[list[str] | None, _choice(
        "Correct the last layer, as in the paper, or the whole network. (default: head)", "head", "all",
    )] = None,
    floor: Annotated[list[str] | None, _grid(
        "Floors of congruency, such as 0.1 0.3; none: the paper's form. (default: none)", "NUMBER|none",
    )] = None,
    returning: Annotated[list[str] | None, _choice(
        "With a floor: correct only steps whose previous step did not move away from the reference. (default: yes)",
        "yes", "no",
    )] = None,
    correct: Annotated[list[str] | None, _choice(
        "Correct the gradient, or the update that the optimizer makes from it. (default: gradient)", "gradient",
        "update",
    )] = None,
    blocks: Annotated[list[str] | None, _choice(
        "One problem for all parameters, or one per parameter group, tensor, row or element. (default: joint)",
        "joint", "group", "tensor", "row", "element",
    )] = None,
    seeds: options.Seeds = 5,
    first_seed: options.FirstSeed = 0,
    out: Annotated[Path, options.option(
        "Folder for the page, results.json and the record of every run. Runs that are finished there are not repeated; "
        "an interrupted run resumes from its checkpoint.", "FOLDER",
    )] = Path("congruency-ablation"),
    data: options.Data = None,
    dataset: Annotated[str | None, _training(
        f"{options.SETS}. With a RECIPE: replaces its images.", "SET|PATH",
    )] = None,
    model: options.Model = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    weight_decay: Annotated[float | None, _training(
        "Weight decay of SGD. (default: the recipe's, or 5e-4)", "NUMBER", min=0.0,
    )] = None,
    pretrained: options.Pretrained = None,
    per_class: options.PerClass = None,
    size: Annotated[int | None, _training(
        "Side length of the network's input images. (default: the set's)", "PIXELS", min=1,
    )] = None,
    device: options.Device = "auto",
    precision: options.Precision = "32",
    processes: options.Processes = 1,
    threads: Annotated[int, options.where(
        "CPU threads of each run; results are bit-identical for equal numbers.", "N", min=1, max=1024,
    )] = 1,
    ray: options.Ray = None,
) -> None:  # fmt: skip
    """Train over a grid of DCL's settings and draw the curves (the paper's Figure 9).

        congruency ablate --dataset digits --model convnet --epochs 3 --window 5 10 50 none --references 1 2

    Every setting is trained from every seed and compared with the baseline,
    seed by seed. The same command resumes after an interruption. A run that
    fails is reported and does not stop the others; the next call repeats it.
    """
    out = out.absolute()
    windows = _windows(window or ())
    _check(recipe, dataset, pretrained, size)
    changes = options.chosen(
        model=model, epochs=epochs, batch_size=batch_size, learning_rate=lr, weight_decay=weight_decay,
        per_class=per_class, pretrained=pretrained,
    )  # fmt: skip
    with options.studying(out, processes, threads, ray) as place:
        from dataclasses import asdict

        from congruency.classification.image_options import ImageOptions
        from congruency.studies.ablation import ablation_study, curves, from_options, from_recipe
        from congruency.studies.classification.cells import Axes
        from congruency.studies.classification.runner import ClassificationRunner
        from congruency.studies.conduct import conduct
        from congruency.studies.console import command_line, typed
        from congruency.studies.image_tables import choose_machine
        from congruency.studies.network_runs import made_by

        axes: dict[str, Any] = {
            "windows": windows, "references": tuple(references or ()), "margins": tuple(margin or ()),
            "modes": tuple(mode or ()), "scopes": tuple(scope or ()),
            "floors": tuple(map(options.floor_of, floor or ())),
            "returning": tuple(each == "yes" for each in returning or ()), "corrects": tuple(correct or ()),
            "blocks": tuple(blocks or ()),
        }  # fmt: skip
        if recipe is not None:
            base = from_recipe(recipe, dataset, changes)
        else:
            assert dataset is not None
            base = from_options(ImageOptions(source=dataset, folder=data, size=size), changes)
        study = ablation_study(base, Axes(**{name: each for name, each in axes.items() if each}))
        machine = choose_machine("ablation", device, precision)
        settings = {
            "recipe": base.name, "base": None if dataset is None else Path(dataset).name,
            "changes": changes, "machine": asdict(machine), "threads": threads,
        }  # fmt: skip
        runner = ClassificationRunner(
            folder=out,
            machine=machine,
            images=options.image_source(out, place, data, dataset, channels=None if recipe is None else 3, size=size),
            study="ablation",
            command=typed(),
        )  # fmt: skip
        code = conduct(
            study, runner, range(first_seed, first_seed + seeds), out, place=place, settings=settings,
            remembered=machine.remembered, command=command_line(), figures=curves,
            made=made_by,
        )  # fmt: skip
    raise typer.Exit(code)


def _check(recipe: str | None, dataset: str | None, pretrained: str | None, size: int | None) -> None:
    """Raise BadParameter for options that would have no effect, or if nothing to train is given."""
    if recipe is not None:
        if size is not None:
            raise typer.BadParameter("is for --dataset without a RECIPE, which has its own", param_hint="--size")
        return
    if dataset is None:
        raise typer.BadParameter(
            "say what to train: a RECIPE (TABLE/ROW of `congruency reproduce classification`), or --dataset SET"
        )
    if pretrained is not None:
        raise typer.BadParameter(
            "is for a RECIPE that is fine-tuned; `congruency train` takes weights for any", param_hint="--pretrained"
        )


def _windows(words: Sequence[str]) -> tuple[int | None, ...]:
    """Parse windows: numbers of steps, None for infinity."""
    made: list[int | None] = []
    for word in words:
        if word.lower() in _NONE:
            made.append(None)
        elif word.isascii() and word.isdigit() and int(word) > 0:
            made.append(int(word))
        else:
            raise typer.BadParameter(
                f"must be positive numbers of steps, or none for a single start, got {word!r}", param_hint="--window"
            )
    return tuple(made)
