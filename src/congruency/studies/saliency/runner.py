"""Executing the saliency studies: the data sets, the runner, floor and ceiling, and everything from data to page."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console

from congruency.files import write_together
from congruency.saliency.baselines import baseline_scores
from congruency.saliency.ceiling import MIN_VIEWERS, human_ceiling
from congruency.saliency.data.loaders import is_osie, mit1003, osie, salicon
from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.prepared import Prepared, load_prepared, prepare_in_memory
from congruency.saliency.models import create, load_model
from congruency.saliency.predict import example_page, saliency_of
from congruency.saliency.scorer import METRICS
from congruency.saliency.task import SCORES_FILE, split_prepared, train_network
from congruency.studies.conduct import conduct
from congruency.studies.executor import Batch, Place, Stopped, Within
from congruency.studies.plan import Run, Study
from congruency.studies.results import Results
from congruency.studies.saliency.study import SaliencyJob, StudyName
from congruency.studies.store import RunResult
from congruency.training import Origin, read_record
from congruency.training.config import Accelerator, Precision
from congruency.training.processes import first_process

__all__ = [
    "DATA_SETS", "EXAMPLES", "EXAMPLES_CAPTION", "SaliencyRunner", "Sets", "bounds", "conduct_saliency", "find_set",
    "read_bounds", "run_folder", "write_examples",
]  # fmt: skip

DATA_SETS: dict[StudyName, tuple[str, ...]] = {"salicon": ("SALICON",), "osie": ("OSIE", "MIT1003")}
"""The data sets of the paper's tables."""

_LAYOUTS = {  # the folder's name, and a folder in it by which the set is recognised
    "SALICON": ("salicon", ("fixations", "annotations")),
    "OSIE": ("osie", ("stimuli",)),
    "MIT1003": ("mit1003", ("ALLSTIMULI",)),
}
_BOUNDS = "bounds.json"
EXAMPLES = "examples.jpg"
EXAMPLES_CAPTION = "Test images, where people looked, and what networks predict"
_NETWORKS = 5  # columns of the page


def find_set(name: str, data: Path | None) -> Path:
    """Return the folder of a saliency set: one of its own name in the data folder, or the data folder itself.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: no data folder was given, and CONGRUENCY_DATA is not set.
    """
    folder, inside = _LAYOUTS[name]
    given = data if data is not None else os.environ.get("CONGRUENCY_DATA")
    if given is None:
        raise ValueError(f"{name} is needed: give --data, the folder that holds it, or set CONGRUENCY_DATA")
    root = Path(given).expanduser()
    for place in (root / folder, root / name, root):
        if any((place / each).is_dir() for each in inside) and (name != "OSIE" or is_osie(place)):
            return place
    raise FileNotFoundError(f"{name} is not in {root}; put its official folders ({' or '.join(inside)}) into {folder}/")


@dataclass(frozen=True)
class Sets:
    """Where a study's images are.

    Attributes:
        study: ``"salicon"`` trains on SALICON's training set and scores its validation set; ``"osie"`` trains on OSIE
            and scores MIT1003; ``"osie_study"`` divides OSIE.
        places: the folders of these sets; for ``"osie_study"`` the file that ``congruency saliency prepare`` wrote.
        size: (height, width) that images are resized to for the network; scores are at the images' own sizes.
        train: images to train on, where OSIE is divided.
    """

    study: StudyName
    places: tuple[Path, ...]
    size: tuple[int, int] = (240, 320)
    train: int = 500

    def read(self) -> tuple[Prepared, Prepared]:
        """Return what networks are trained on and what they are scored on, read once per process."""
        return _read(self)


@lru_cache(maxsize=1)
def _read(sets: Sets) -> tuple[Prepared, Prepared]:
    first, last = sets.places[0], sets.places[-1]
    if sets.study == "osie_study":
        return split_prepared(load_prepared(first), sets.train)
    if sets.study == "salicon":
        parts = salicon(first, "train"), salicon(first, "val")
    else:
        parts = osie(first), mit1003(last)
    return prepare_in_memory(parts[0], sets.size), prepare_in_memory(parts[1], sets.size)


def run_folder(out: Path, job: SaliencyJob, seed: int) -> Path:
    """Return where a run keeps its record, its scores and its network."""
    return out / "runs" / job.recipe.folder / f"seed-{seed}"


@dataclass(frozen=True, kw_only=True)
class SaliencyRunner:
    """Trains and scores one network per run; each has a folder of its own and continues from its checkpoint.

    Attributes:
        accelerator: ``"auto"`` takes a GPU where there is one.
        capture: see :func:`congruency.saliency.task.train_network`.
        keep_models: the seeds whose networks are kept, as ``model.pt``.
        origin: what the records of the runs say about where they come from; the row is filled in.
    """

    sets: Sets
    out: Path
    accelerator: Accelerator = "auto"
    precision: Precision = "32"
    capture: bool | None = None
    keep_models: tuple[int, ...] = (0,)
    origin: Origin = field(default_factory=Origin)

    @property
    def device(self) -> str:
        return "cuda" if self.accelerator != "cpu" and torch.cuda.is_available() else "cpu"

    def prepare(self, runs: Sequence[Run[SaliencyJob]]) -> None:
        self.sets.read()
        recipes = [run.job.recipe for run in runs]
        for weights in {recipe.weights for recipe in recipes if recipe.weights is not None}:
            if not Path(weights).is_file():
                raise FileNotFoundError(f"the file of weights {weights} is missing")
        with torch.device("meta"):  # a network that cannot be a backbone is refused here, without its memory
            for model, backbone in {(recipe.model, recipe.backbone) for recipe in recipes}:
                create(model, backbone)

    def batches(self, runs: Sequence[Run[SaliencyJob]]) -> list[Batch[SaliencyJob]]:
        return [(run,) for run in runs]

    def run(self, batch: Batch[SaliencyJob], within: Within | None) -> Iterator[tuple[Run[SaliencyJob], RunResult]]:
        (run,) = batch
        recipe = run.job.recipe

        def notice(step: int, steps: int) -> None:
            if within is not None:
                within(run.title, step / steps)

        trained = train_network(
            recipe, run.seed, *self.sets.read(), run_folder(self.out, run.job, run.seed), device=self.accelerator,
            precision=self.precision, capture=self.capture, keep_model=run.seed in self.keep_models, notice=notice,
            origin=replace(self.origin, row=recipe.paper_row if self.origin.table else recipe.name),
        )  # fmt: skip
        gc.collect()  # hooks and graphs refer to each other, and hold a network's memory
        if trained.scores is not None:
            yield run, RunResult(trained.scores)
        if trained.stopped:
            raise Stopped


def bounds(sets: Sets, out: Path, device: str) -> Results:
    """Return floor and ceiling as rows with one value each, computed once per folder."""
    path = out / _BOUNDS
    if not path.is_file():
        train_set, test_set = sets.read()
        found = baseline_scores(train_set.data, test_set.data, METRICS, device=device)
        if min(len(v.fixations) for v in test_set.data.viewings) >= MIN_VIEWERS:
            found["human ceiling"] = human_ceiling(test_set.data, METRICS, device=device)
        write_together(out, {_BOUNDS: json.dumps(found, indent=2) + "\n"})
    return read_bounds(out)


def read_bounds(out: Path) -> Results:
    """Return the floor and ceiling that a folder holds."""
    found: Mapping[str, Mapping[str, float]] = json.loads((out / _BOUNDS).read_text(encoding="utf-8"))
    return {name: {metric: [value] for metric, value in scores.items()} for name, scores in found.items()}


def conduct_saliency(
    study: Study[SaliencyJob],
    runner: SaliencyRunner,
    seeds: Sequence[int],
    *,
    place: Place,
    command: str,
    examples: int = 0,
    console: Console | None = None,
) -> int:
    """Execute a study's runs, and write its table, its page and examples.jpg; return the exit code.

    Args:
        examples: Test images on examples.jpg, which needs the networks of seed 0; 0 for none.
    """
    console, out = console or Console(), runner.out
    parts = runner.sets.read()
    if first_process():
        for title, part in zip(("to train on", "to score"), parts, strict=True):
            console.print(f"{title}: {part.data.summary()}", markup=False, highlight=False)

    def pictures() -> dict[str, str]:
        recipes = [job.recipe for row in study.rows for job in row.jobs]
        networks = {recipe.name: run_folder(out, SaliencyJob(recipe), 0) / "model.pt" for recipe in recipes}
        if examples and 0 in seeds and all(path.is_file() for path in networks.values()):
            first = sorted(recipes, key=lambda recipe: recipe.method != "baseline")
            write_examples(out, {recipe.name: networks[recipe.name] for recipe in first}, parts[1], examples)
        return {EXAMPLES: EXAMPLES_CAPTION} if (out / EXAMPLES).is_file() else {}

    return conduct(
        study, runner, seeds, out, place=place, settings={"study": study.name, "precision": runner.precision},
        command=command, made=lambda: _made(study, out), bounds=bounds(runner.sets, out, runner.device),
        pictures=pictures, console=console,
    )  # fmt: skip


def write_examples(out: Path, networks: Mapping[str, Path], test_set: Prepared, count: int) -> Path:
    """Write a page of evenly spaced test images: where people looked, and the maps of the first few networks.

    ``networks`` are files of trained networks by the title of their column.
    """
    chosen = torch.linspace(0, len(test_set.data) - 1, min(count, len(test_set.data))).round().long().tolist()
    images = [test_set.images[i] for i in chosen]
    height, width = test_set.images.shape[-2:]
    viewings = [test_set.data[i] for i in chosen]
    counts = fixation_counts(
        [v.points for v in viewings], (height, width), frames=[(v.height, v.width) for v in viewings]
    )
    frame = viewings[0].width
    people = "15 people" if len(viewings[0].fixations) == 15 else "people"
    columns = {people: list(density(counts, test_set.data.sigma(frame) * width / frame))}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for title, path in islice(networks.items(), _NETWORKS):
        model = load_model(path, device)
        columns[title] = [saliency_of(model, image, max(height, width)).cpu() for image in images]
    return example_page(images, columns, out / EXAMPLES)


def _made(study: Study[SaliencyJob], out: Path) -> str:
    """On what the study's runs were computed, as their records say."""
    found = set()
    for row in study.rows:
        for job in row.jobs:
            for done in run_folder(out, job, 0).parent.glob(f"seed-*/{SCORES_FILE}"):
                if (done.parent / "record.jsonl").is_file():
                    run = read_record(done.parent).run
                    how = f"in precision {run['config']['precision']}, with PyTorch {run['versions']['torch']}"
                    found.add(f"{run['device']} {how}")
    return f"from runs on {'; '.join(sorted(found))}" if found else ""
