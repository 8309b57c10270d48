"""The comparisons: the paper's two tables from the official sets, and the one on OSIE alone with its examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from congruency.experiments.saliency.examples import write_examples
from congruency.experiments.saliency.experiment import Results, experiment
from congruency.experiments.saliency.recipes import Recipe, paper_recipes, pick
from congruency.saliency.data.loaders import mit1003, osie, osie_split, salicon
from congruency.saliency.data.prepared import Prepared, load_prepared, prepare_in_memory
from congruency.saliency.data.viewings import SaliencyData
from congruency.training import Origin, SampleOrder

__all__ = [
    "osie_recipes",
    "osie_study",
    "paper_sets",
    "reproduce_table",
    "split_prepared",
    "table_recipes",
]

Table = Literal["salicon", "osie"]


def table_recipes(
    table: Table,
    rows: Sequence[str] = (),
    *,
    weights: str | Path | None = None,
    pretrained: bool = True,
    **changes: Any,
) -> list[Recipe]:
    """The rows of one of the paper's saliency tables, with DCL in both modes.

    Args:
        table: ``"salicon"`` or ``"osie"``.
        rows: Names of rows as the paper has them, or their beginnings; empty for all.
        weights: A file of ImageNet weights for the backbone.
        pretrained: Without such a file, fetch timm's; False trains from scratch, which the paper did not.
        changes: Other attributes of :class:`Recipe`, such as ``epochs``.
    """
    start: dict[str, Any] = {"weights": None if weights is None else str(weights)}
    start["pretrained"] = pretrained and weights is None
    return [replace(recipe, **start, **changes) for recipe in pick(paper_recipes(table), rows)]


def reproduce_table(
    table: Table,
    places: Sequence[str | Path],
    out: str | Path,
    *,
    seeds: Iterable[int] = range(3),
    recipes: Sequence[Recipe] | None = None,
    size: tuple[int, int] = (240, 320),
    device: Any = "auto",
    precision: Any = "32",
    capture: bool | None = None,
    origin: Origin | None = None,
    say: Callable[[str], Any] = print,
) -> Results:
    """One of the paper's saliency tables: ``results.json`` in ``out``, row by row.

    Args:
        table: ``"salicon"``: trained on SALICON's training set, scored on its validation set. ``"osie"``: trained on
            OSIE, scored on MIT1003.
        places: The folders of these sets: SALICON's; OSIE's and MIT1003's.
        out: Where runs and results go; the same call goes on where it stopped.
        seeds: One run of every row each; the paper has three.
        recipes: The rows, all that :func:`table_recipes` gives if not said.
        size: What images are resized to for the network; scores are at the images' own sizes.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        precision: ``"32"``, ``"bf16"`` or ``"16"``.
        capture: See :func:`congruency.experiments.saliency.experiment.run`.
        origin: For the records of the runs.
        say: Told what was done.
    """
    train_data, test_data = paper_sets(table, places)
    say(train_data.summary())
    say(test_data.summary())
    sets = prepare_in_memory(train_data, size), prepare_in_memory(test_data, size)
    rows = table_recipes(table) if recipes is None else recipes
    return experiment(
        rows, list(seeds), *sets, out, device=device, precision=precision, capture=capture, origin=origin, say=say
    )


def paper_sets(table: Table, places: Sequence[str | Path]) -> tuple[SaliencyData, SaliencyData]:
    """What a table's networks are trained on, and what they are scored on."""
    if table == "salicon":
        (place,) = places
        return salicon(place, "train"), salicon(place, "val")
    train, test = places
    return osie(train), mit1003(test)


def osie_recipes(
    *,
    models: Sequence[str],
    optimizers: Sequence[Any],
    methods: Sequence[str],
    lite: str | Path | None,
    scratch: bool,
    epochs: int,
    scratch_epochs: int,
    sample_order: SampleOrder = "seed",
    order_seed: int = 0,
) -> list[Recipe]:
    """Every model, optimizer and method, on a pretrained EfficientNet-Lite0 and on a ResNet-50 from scratch.

    The learning rate is halved every epoch, as in the paper; in longer trainings every tenth of them.
    """
    starts: list[dict[str, Any]] = []
    if lite is not None:
        starts.append({"backbone": "tf_efficientnet_lite0", "weights": str(lite), "epochs": epochs})
    if scratch:
        starts.append({"backbone": "resnet50", "epochs": scratch_epochs})
    if not starts:
        raise ValueError("there is nothing to train: give EfficientNet-Lite0's weights, or train from scratch")
    return [
        Recipe(
            model=model, optimizer=optimizer, method=method, halve_every=max(1, start["epochs"] // 10),
            sample_order=sample_order, order_seed=order_seed, **start,
        )
        for start in starts
        for model in models
        for optimizer in optimizers
        for method in methods
    ]  # fmt: skip


def split_prepared(prepared: Prepared, train: int = 500) -> tuple[Prepared, Prepared]:
    """The fixed split of a prepared OSIE."""
    parts = osie_split(prepared.data, train=train)
    first, second = (prepared.subset([v.image.name for v in part.viewings]) for part in parts)
    return first, second


def osie_study(
    data: str | Path,
    recipes: Sequence[Recipe],
    seeds: Iterable[int],
    out: str | Path,
    *,
    device: Any = "auto",
    precision: Any = "32",
    capture: bool | None = None,
    examples: int = 8,
    train: int = 500,
    origin: Origin | None = None,
    say: Callable[[str], Any] = print,
) -> Results:
    """Run the recipes on a prepared OSIE, and write ``results.json`` and ``examples.jpg`` into ``out``."""
    prepared = load_prepared(data)
    say(prepared.data.summary())
    train_set, test_set = split_prepared(prepared, train)
    say(f"{len(train_set.data)} images to train on, {len(test_set.data)} to score")
    seeds = list(seeds)
    results = experiment(
        recipes,
        seeds,
        train_set,
        test_set,
        out,
        device=device,
        precision=precision,
        capture=capture,
        origin=origin,
        say=say,
    )
    made = all((Path(out) / "runs" / recipe.folder / "seed-0" / "model.pt").is_file() for recipe in recipes)
    if examples and made and 0 in seeds:
        page = write_examples(out, recipes, 0, test_set, examples)
        say(f"examples: {page}")
    return results
