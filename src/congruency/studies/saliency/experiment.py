"""The paper's saliency comparison: networks, optimizers and methods, several seeds of each, with floor and ceiling."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from congruency.files import write_together
from congruency.saliency.baselines import baseline_scores, human_scores
from congruency.saliency.batches import SaliencyBatches
from congruency.saliency.data.prepared import Prepared
from congruency.saliency.losses import make_loss
from congruency.saliency.models import SaliencyModel, create, finish, load_model, save_model
from congruency.saliency.scorer import METRICS, mean_scores, score
from congruency.studies.saliency.recipes import Recipe, method_named
from congruency.training import Origin, Place, Task, TrainingConfig, train
from congruency.training.processes import process_count

__all__ = ["Results", "Stopped", "build_task", "collect", "experiment", "run", "saved_model", "scores_of"]

Results = dict[str, dict[str, list[float]]]
Loss = Callable[[Tensor, Mapping[str, Tensor]], Tensor]

_EVALUATED = 40  # images of a batch without gradients
_SOON_OVER = 10_000  # images; on a GPU a training on no more of them is over before a checkpoint would pay


class Stopped(Exception):
    """SIGTERM asked the comparison to stop; the same call goes on."""


def build_task(
    recipe: Recipe, prepared: Prepared, seed: int, *, held_out: Prepared | None = None, on_device: bool = True
) -> Callable[[Place], Task]:
    """What the training loop asks for: the network, its data on the device, its loss, its schedule.

    With ``held_out`` the loss on that set is the evaluation: the paper's validation loss (its Figure 14).
    """
    loss = make_loss(recipe.loss)

    def head_loss(logits: Tensor, target: Mapping[str, Tensor]) -> Tensor:
        height, width = target["density"].shape[-2:]
        return loss(finish(logits, (height, width)), target)

    def build(place: Place) -> Task:
        model = create(recipe.model, recipe.backbone, weights=recipe.weights, pretrained=recipe.pretrained)
        device = place.device if on_device else "cpu"
        data = SaliencyBatches(
            prepared,
            recipe.batch,
            seed=recipe.seed_of_order(seed),
            device=device,
            rank=place.rank,
            world_size=place.world_size,
        )
        validation = None if held_out is None else SaliencyBatches(held_out, _EVALUATED, device=device)
        return Task(
            model=model,
            optimizer=lambda model: recipe.make_optimizer(model, fused=_fused(place)),
            loss=loss,
            data=data,
            schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, recipe.halve_every, gamma=0.5),
            head_loss=head_loss,
            evaluate=None if validation is None else lambda model: _validation_loss(model, validation, loss, place),
            description={"task": "saliency", "data": prepared.data.summary(), **asdict(recipe)},
        )

    return build


def run(
    recipe: Recipe,
    seed: int,
    train_set: Prepared,
    test_set: Prepared,
    folder: str | Path,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["32", "bf16", "16"] = "32",
    capture: bool | None = None,
    keep_model: bool = True,
    progress: bool = False,
    origin: Origin | None = None,
) -> dict[str, float]:
    """Train one network and score it; its folder keeps ``record.jsonl``, ``scores.json`` and, if wanted, ``model.pt``.

    A run that was finished is read, one that was interrupted goes on from its last checkpoint; on a GPU short trainings
    have none but SIGTERM's. ``capture`` is None for replaying passes as CUDA graphs where that is possible.

    Raises:
        Stopped: SIGTERM came.
    """
    folder = Path(folder)
    done = folder / "scores.json"
    if done.is_file():
        scores: dict[str, float] = json.loads(done.read_text(encoding="utf-8"))["scores"]
        return scores
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    short = recipe.epochs * len(train_set.images) <= _SOON_OVER
    config = TrainingConfig(
        epochs=recipe.epochs,
        seed=seed,
        method=method_named(recipe.method),
        accelerator=device,
        precision=precision,
        channels_last=cuda,
        capture=cuda and precision != "16" and process_count() == 1 if capture is None else capture,
        tf32=cuda,
        checkpoint_epochs=0 if short and cuda else max(1, recipe.epochs // 2),
        record_steps=10,
        progress=progress,
    )
    kept: list[nn.Module] = []

    def build(place: Place) -> Task:
        task = build_task(recipe, train_set, seed, held_out=test_set)(place)
        kept.append(task.model)
        return task

    result = train(build, config, folder, resume=True, origin=origin)
    if not result.finished:
        raise Stopped(f"stopped in {folder}; the same command goes on from there")
    if keep_model:
        save_model(kept[0], folder / "model.pt")
    scores = scores_of(kept[0], test_set, precision=precision)
    content = {"recipe": asdict(recipe), "row": recipe.name, "seed": seed, "scores": scores}
    _write(done, content)
    for checkpoint in (folder / "checkpoints").glob("*.pt"):
        checkpoint.unlink()  # those of a grid of runs would fill a disk
    if result.asked_to_stop:
        raise Stopped(f"stopped after {folder}; the same command goes on from there")
    return scores


def _fused(place: Place) -> bool:
    """Whether the optimizer may be one kernel; in precision 16 that would see gradients before they are unscaled."""
    return place.device.type == "cuda" and place.world_size == 1 and place.precision != "16"


def _validation_loss(model: nn.Module, batches: SaliencyBatches, loss: Loss, place: Place) -> dict[str, float]:
    """The mean over all images; every process has it whole, for a network in shards is called by all alike."""
    total, count = torch.zeros((), dtype=torch.float64, device=place.device), 0
    for images, target in batches.evaluation_batches():
        there = {name: value.to(place.device) for name, value in target.items()}
        total += len(images) * loss(model(images.to(place.device)), there)
        count += len(images)
    return {"loss": total.item() / count}


@torch.no_grad()
def scores_of(
    model: nn.Module,
    prepared: Prepared,
    *,
    metrics: Sequence[str] = METRICS,
    precision: str = "32",
    batch: int = 25,
) -> dict[str, float]:
    """The mean scores of a network on a set, at the images' own size, on the network's device."""
    device = next(model.parameters()).device
    model.eval()
    images = prepared.images

    def predict(indices: Sequence[int]) -> Tensor:
        chosen = images[torch.tensor(indices)].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            saliency: Tensor = model(chosen)
        return saliency

    return mean_scores(score(predict, prepared.data, metrics, device=device, batch=batch), prepared.data)


def experiment(
    recipes: Sequence[Recipe],
    seeds: Sequence[int],
    train_set: Prepared,
    test_set: Prepared,
    out: str | Path,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["32", "bf16", "16"] = "32",
    capture: bool | None = None,
    keep_models: Sequence[int] = (0,),
    origin: Origin | None = None,
    say: Callable[[str], None] = print,
) -> Results:
    """All recipes with all seeds, seed by seed; ``results.json`` in ``out`` is whole after every run.

    Several of these may work on one folder at once, each on seeds of its own: results are gathered from the runs.

    Args:
        recipes: The rows.
        seeds: One run of every row each.
        train_set: What networks are trained on.
        test_set: What they are scored on.
        out: The folder; the same call goes on where it stopped.
        device: ``"auto"`` takes a GPU where there is one.
        precision: Of the training.
        capture: See :func:`run`.
        keep_models: The seeds whose networks are kept, as ``model.pt``.
        origin: What the records of the runs say about where they come from; the row is filled in.
        say: Told what was done.

    Returns:
        What :func:`collect` finds.
    """
    out = Path(out)
    place = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    for name, scores in _bounds(train_set, test_set, out, place).items():
        say(f"{name}: {_told(scores)}")
    for seed in seeds:
        for recipe in recipes:
            folder = out / "runs" / recipe.folder / f"seed-{seed}"
            keep = seed in keep_models
            found = run(
                recipe, seed, train_set, test_set, folder, device=device, precision=precision, capture=capture,
                keep_model=keep,
                origin=replace(origin or Origin(), row=recipe.paper_row if origin and origin.table else recipe.name),
            )  # fmt: skip
            gc.collect()  # hooks and graphs refer to each other, and hold a network's memory
            say(f"{recipe.name}, seed {seed}: {_told(found)}")
            _write(out / "results.json", collect(out))
    return collect(out, recipes)


def collect(out: str | Path, recipes: Sequence[Recipe] | None = None) -> Results:
    """Row -> metric -> one value a seed, in the order of the seeds, of the finished runs in a folder.

    The metric ``"seed"`` says which. Floor and ceiling are rows with one value: there is nothing random in them.

    Args:
        out: The folder.
        recipes: Only their runs; all if None, where rows of one name with other settings, such as more epochs, stand
            apart.
    """
    out = Path(out)
    results: Results = {}
    if (out / "bounds.json").is_file():
        bounds = json.loads((out / "bounds.json").read_text(encoding="utf-8"))
        results = {name: {metric: [value] for metric, value in scores.items()} for name, scores in bounds.items()}
    chosen = sorted(out.glob("runs/*")) if recipes is None else [out / "runs" / recipe.folder for recipe in recipes]
    found = {folder.name: runs for folder in chosen if (runs := _finished(folder))}
    names = Counter(runs[0]["row"] for runs in found.values())
    for folder, runs in found.items():
        row = runs[0]["row"]
        if names[row] > 1:
            row = f"{row} ({folder.partition('_')[2] or 'usual settings'})"
        results[row] = {"seed": [run["seed"] for run in runs]}
        for metric in runs[0]["scores"]:
            results[row][metric] = [run["scores"][metric] for run in runs]
    return results


def _finished(folder: Path) -> list[dict[str, Any]]:
    """What the runs of a row have left, by seed."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("seed-*/scores.json")]
    return sorted(runs, key=lambda run: int(run["seed"]))


def _bounds(train_set: Prepared, test_set: Prepared, out: Path, device: str) -> dict[str, dict[str, float]]:
    """Floor and ceiling, computed once."""
    path = out / "bounds.json"
    if path.is_file():
        known: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
        return known
    bounds = baseline_scores(train_set.data, test_set.data, METRICS, device=device)
    if min(len(v.fixations) for v in test_set.data.viewings) > 1:
        bounds |= human_scores(test_set.data, METRICS, device=device)
    _write(path, bounds)
    return bounds


def saved_model(out: str | Path, recipe: Recipe, seed: int, device: torch.device | str = "cpu") -> SaliencyModel:
    """The network of a finished run of :func:`experiment`."""
    return load_model(Path(out) / "runs" / recipe.folder / f"seed-{seed}" / "model.pt", device)


def _told(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _write(path: Path, content: Any) -> None:
    """There whole or not at all."""
    write_together(path.parent, {path.name: json.dumps(content, indent=2) + "\n"})
