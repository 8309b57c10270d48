"""Execute the saliency studies: data sets, runner, floor and ceiling scores, page."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from torch import Tensor

from congruency.saliency.baselines import below_centre, kept_references
from congruency.saliency.data.images import read_image
from congruency.saliency.data.loaders import is_osie, is_salicon, mit1003, osie, osie_split, salicon
from congruency.saliency.data.points import blurred, fixation_counts
from congruency.saliency.data.prepared import Prepared, load_prepared, prepare_in_memory
from congruency.saliency.data.preprocessing import Preprocessing
from congruency.saliency.data.viewings import SaliencyData, Viewing
from congruency.saliency.models import create, load_model
from congruency.saliency.predict import example_page, saliency_of
from congruency.saliency.scorer import METRICS
from congruency.saliency.task import SCORES_FILE, split_prepared, train_network
from congruency.studies.conduct import conduct
from congruency.studies.executor import Batch, Place, Stopped, Within
from congruency.studies.network_runs import chosen_device
from congruency.studies.plan import Run, Study
from congruency.studies.results import Results
from congruency.studies.saliency.study import TRAINING_TIME, SaliencyJob, StudyName
from congruency.studies.store import RunResult
from congruency.training import Origin, read_record
from congruency.training.config import Accelerator, Precision

__all__ = [
    "DATA_SETS", "EXAMPLES", "EXAMPLES_CAPTION", "SaliencyRunner", "Sets", "below_floor", "bounds", "conduct_saliency",
    "diverged", "find_set", "run_folder", "write_examples",
]  # fmt: skip

DATA_SETS: dict[StudyName, tuple[str, ...]] = {"salicon": ("SALICON",), "osie": ("OSIE", "MIT1003")}
"""The data sets of the paper's tables."""

_LAYOUTS: dict[str, tuple[str, Callable[[Path], bool], str]] = {  # folder name, test of its layout, expected content
    "SALICON": ("salicon", is_salicon, "fixations or annotations"),
    "OSIE": ("osie", is_osie, "stimuli, with fixations.mat"),
    "MIT1003": ("mit1003", lambda place: (place / "ALLSTIMULI").is_dir(), "ALLSTIMULI"),
}
_BOUNDS = "bounds.json"
EXAMPLES = "examples.jpg"
EXAMPLES_CAPTION = "Test images, where people looked, and what networks predict"
_NETWORKS = 5  # columns of the example page


def find_set(name: str, data: Path | None) -> Path:
    """Return the folder of a saliency set: a folder with its name in the data folder, or the data folder itself.

    Raises:
        FileNotFoundError: it does not exist.
        ValueError: no data folder was given and CONGRUENCY_DATA is not set.
    """
    folder, known, inside = _LAYOUTS[name]
    given = data if data is not None else os.environ.get("CONGRUENCY_DATA")
    if given is None:
        raise ValueError(f"{name} is needed: give --data, the folder that holds it, or set CONGRUENCY_DATA")
    root = Path(given).expanduser()
    for place in (root / folder, root / name, root):
        if known(place):
            return place
    raise FileNotFoundError(f"{name} is not in {root}; put its official folders ({inside}) into {folder}/")


@dataclass(frozen=True)
class Sets:
    """The data sets of a study.

    Attributes:
        study: ``"salicon"`` trains on SALICON's training set and scores its validation set; ``"osie"`` trains on OSIE
            and scores MIT1003; ``"osie_study"`` splits OSIE.
        places: the folders of these sets; for ``"osie_study"`` possibly a file from ``congruency saliency prepare``,
            which fixes the image size of all networks.
        train: number of training images if OSIE is split.
    """

    study: StudyName
    places: tuple[Path, ...]
    train: int = 500

    @property
    def prepared(self) -> Preprocessing | None:
        """The preprocessing of a prepared file; None for folders, which can be read at any size."""
        return _read_file(self.places[0]).preprocessing if self.places[0].suffix == ".pt" else None

    def data(self) -> tuple[SaliencyData, SaliencyData]:
        """Return the training set and the test set, without their images."""
        return _open(self)

    def read(self, preprocessing: Preprocessing) -> tuple[Prepared, Prepared]:
        """Return the training set and the test set with images, read once per process and size.

        Scores are computed at the images' original sizes.
        """
        if self.prepared is None:
            return _read(self, preprocessing)
        if self.prepared != preprocessing:
            raise ValueError(f"{self.places[0]} was prepared at {self.prepared}, not at {preprocessing}")
        return split_prepared(_read_file(self.places[0]), self.train)


@lru_cache(maxsize=1)
def _read_file(path: Path) -> Prepared:
    return load_prepared(path)


@lru_cache(maxsize=1)
def _open(sets: Sets) -> tuple[SaliencyData, SaliencyData]:
    first, last = sets.places[0], sets.places[-1]
    if sets.study == "salicon":
        return salicon(first, "train"), salicon(first, "val")
    if sets.study == "osie":
        return osie(first), mit1003(last)
    whole = _read_file(first).data if first.suffix == ".pt" else osie(first)
    return osie_split(whole, train=sets.train)


@lru_cache(maxsize=2)
def _read(sets: Sets, preprocessing: Preprocessing) -> tuple[Prepared, Prepared]:
    first, second = (prepare_in_memory(part, preprocessing.size, preprocessing.aspect) for part in sets.data())
    return first, second


def run_folder(out: Path, job: SaliencyJob, seed: int) -> Path:
    """Return the folder for a run's record, scores and network."""
    return out / "runs" / job.recipe.folder / f"seed-{seed}"


@dataclass(frozen=True, kw_only=True)
class SaliencyRunner:
    """Trains and scores one network per run, each in its own folder; interrupted runs resume from a checkpoint.

    Attributes:
        accelerator: ``"auto"`` uses a GPU if there is one.
        capture: see :func:`congruency.saliency.task.train_network`.
        keep_models: seeds whose networks are saved as ``model.pt``.
        origin: the provenance written to the run records; the row is filled in.
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
        return chosen_device(self.accelerator)

    def prepare(self, runs: Sequence[Run[SaliencyJob]]) -> None:
        self.sets.data()
        recipes = [run.job.recipe for run in runs]
        for weights in {recipe.weights for recipe in recipes if recipe.weights is not None}:
            if not Path(weights).is_file():
                raise FileNotFoundError(f"the file of weights {weights} is missing")
        with torch.device("meta"):  # raises for an unusable backbone without allocating memory
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
            recipe, run.seed, *self.sets.read(recipe.preprocessing), run_folder(self.out, run.job, run.seed),
            device=self.accelerator, precision=self.precision, capture=self.capture,
            keep_model=run.seed in self.keep_models, notice=notice,
            evaluate_every=recipe.epochs if self.sets.study == "osie_study" else 1,  # per epoch: the paper's Figure 14
            origin=replace(self.origin, row=recipe.paper_row if self.origin.table else recipe.name),
        )  # fmt: skip
        gc.collect()  # reference cycles of hooks and graphs keep the network's memory alive
        if trained.scores is not None:
            seconds = _training_seconds(run_folder(self.out, run.job, run.seed))
            yield run, RunResult({**trained.scores, TRAINING_TIME: seconds})
        if trained.stopped:
            raise Stopped


def bounds(sets: Sets, out: Path, device: str) -> Results:
    """Return floor and ceiling scores as rows with one value each, computed once per folder."""
    path = out / _BOUNDS
    if not path.is_file():
        Console(stderr=True).print("scoring floors and people to compare with, once per folder", highlight=False)
    train_data, test_data = sets.data()
    references = kept_references(path, test_data, train_data, device=device)
    return {name: {metric: [value] for metric, value in scores.items()} for name, scores in references.items()}


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
    """Execute a study's runs and write its table, page and examples.jpg; return the exit code.

    Args:
        examples: Number of test images in examples.jpg, which needs the networks of seed 0; 0 for none.
    """
    console, out = console or Console(), runner.out
    parts = runner.sets.data()
    for title, part in zip(("to train on", "to score"), parts, strict=True):
        console.print(f"{title}: {part.summary()}", markup=False, highlight=False)

    def pictures() -> dict[str, str]:
        recipes = [job.recipe for row in study.rows for job in row.jobs]
        networks = {recipe.name: run_folder(out, SaliencyJob(recipe), 0) / "model.pt" for recipe in recipes}
        if examples and 0 in seeds and all(path.is_file() for path in networks.values()):
            first = sorted(recipes, key=lambda recipe: recipe.method != "baseline")
            test_set = None if runner.sets.prepared is None else runner.sets.read(runner.sets.prepared)[1]
            write_examples(
                out, {recipe.name: networks[recipe.name] for recipe in first}, test_set or parts[1], examples
            )
        return {EXAMPLES: EXAMPLES_CAPTION} if (out / EXAMPLES).is_file() else {}

    about = [[part.summary(), part.pixels_per_degree] for part in parts]
    settings = {"study": study.name, "precision": runner.precision, "data": about}
    return conduct(
        study, runner, seeds, out, place=place, settings=settings, command=command,
        made=lambda _: _made(study, out), bounds=bounds(runner.sets, out, runner.device),
        pictures=pictures, remarks=remarks, console=console,
    )  # fmt: skip


def remarks(results: Results) -> list[str]:
    """Return further findings: diverged runs, and rows below the centre bias."""
    return [*diverged(results), *below_floor(results)]


def diverged(results: Results) -> list[str]:
    """Return a sentence per row with runs whose maps are nan, which makes its means nan."""
    sentences = []
    for name, row in results.items():
        seeds = [f"{seed:.0f}" for seed, nss in zip(row.get("seed", ()), row["NSS"], strict=False) if math.isnan(nss)]
        if seeds:
            sentences.append(
                f"{name} diverged with {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}: its maps are nan, "
                "and it has no means; a lower learning rate may help."
            )
    return sentences


def below_floor(results: Results) -> list[str]:
    """Return a sentence per row whose mean scores are worse than the centre bias."""
    means = {
        name: {metric: fmean(values) for metric, values in row.items() if metric in METRICS and values}
        for name, row in results.items()
    }
    trained = [name for name, row in results.items() if "seed" in row]
    return [f"{name} is {text}." for name in trained if (text := below_centre(means[name], means))]


def write_examples(out: Path, networks: Mapping[str, Path], test_set: Prepared | SaliencyData, count: int) -> Path:
    """Write a picture of evenly spaced test images with human fixations and the maps of the first few networks.

    ``networks`` maps column titles to files of trained networks. Images are read from their files or from a prepared
    set.
    """
    data = test_set.data if isinstance(test_set, Prepared) else test_set
    chosen = torch.linspace(0, len(data) - 1, min(count, len(data))).round().long().tolist()
    viewings = [data[i] for i in chosen]
    if isinstance(test_set, Prepared):
        images = [test_set.preprocessing.crop(test_set.images[i], (data[i].height, data[i].width)) for i in chosen]
    else:
        images = [read_image(v.image) for v in viewings]
    people = "15 people" if len(viewings[0].fixations) == 15 else "people"
    columns = {
        people: [_people(v, (image.shape[1], image.shape[2])) for v, image in zip(viewings, images, strict=True)]
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for title, path in islice(networks.items(), _NETWORKS):
        model = load_model(path, device)
        columns[title] = [saliency_of(model, image).cpu() for image in images]
    return example_page(images, columns, out / EXAMPLES)


def _people(viewing: Viewing, size: tuple[int, int]) -> Tensor:
    """Return the fixation density of an image at the given size."""
    counts = fixation_counts([viewing.points], size, frames=[(viewing.height, viewing.width)])
    return blurred(counts, [viewing])[0]


def _made(study: Study[SaliencyJob], out: Path) -> str:
    """Describe the devices, precision and PyTorch versions of the study's runs, from their records."""
    found = set()
    for row in study.rows:
        for job in row.jobs:
            for done in run_folder(out, job, 0).parent.glob(f"seed-*/{SCORES_FILE}"):
                if (done.parent / "record.jsonl").is_file():
                    run = read_record(done.parent).run
                    how = f"in precision {run['config']['precision']}, with PyTorch {run['versions']['torch']}"
                    found.add(f"{run['device']} {how}")
    return f"from runs on {'; '.join(sorted(found))}" if found else ""


def _training_seconds(folder: Path) -> float:
    """Return the total time of a run's epochs in seconds, without scoring."""
    if not (folder / "record.jsonl").is_file():
        return math.nan
    return sum(float(epoch["seconds"]) for epoch in read_record(folder).epochs)
