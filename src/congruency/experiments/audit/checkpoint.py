"""A network that ``congruency train`` left, looked at once: its scores of every sample at that checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from congruency.classification.batches import Batches
from congruency.classification.models import create
from congruency.datasets import LabelledImages
from congruency.experiments.analysis.samples import (
    described_augmentation,
    described_run,
    is_saliency,
    read_checkpoint,
    run_of,
    trained_network,
)
from congruency.experiments.audit.following import Followed, last_layer, matrix, measure, observe
from congruency.experiments.audit.images import ImageSource, Named, read
from congruency.experiments.audit.scoring import extended
from congruency.training.correction import parameters_of
from congruency.training.state import seed_everything

__all__ = ["Looked", "look"]

_BATCH = 256


@dataclass(frozen=True, eq=False)
class Looked:
    """What one checkpoint says of a set.

    Attributes:
        images: the set, with its names.
        followed: one "epoch" of scores.
        about: a sentence on network and data.
        remarks: what a reader has to know about where the numbers come from.
    """

    images: Named
    followed: Followed
    about: str
    remarks: tuple[str, ...]


def look(checkpoint: Path, source: ImageSource) -> Looked:
    """Score every image of a set with the network of a checkpoint.

    Args:
        checkpoint: a run's folder (its last checkpoint is taken), or a checkpoint in one.
        source: which images; the network's record says their size and channels.
    """
    if is_saliency(checkpoint):
        raise ValueError(
            f"{checkpoint} is a saliency model: its images have no labels to audit; give a run of congruency train"
        )
    run, path = run_of(checkpoint)
    task, config = described_run(run)
    augmentation = described_augmentation(task, run)
    named = read(source, size=augmentation.size, channels=len(augmentation.mean))
    images = named.images
    if len(images.classes) != task.get("classes"):
        raise ValueError(
            f"{source.name} has {len(images.classes)} classes, the network was trained on {task.get('classes')}"
        )
    state = read_checkpoint(path)
    side = augmentation.size
    shape = (images.images.shape[1], side or images.images.shape[2], side or images.images.shape[3])
    model = trained_network(task, state, shape)
    start, origin = _start(task, config, state, shape)
    layer = last_layer(model)
    seen = observe(model, layer, Batches(images, _BATCH, augmentation).evaluation_batches())
    way = None if start is None else matrix(layer) - start
    scores = measure(seen, images.labels, way, float(task.get("smoothing") or 0.0))
    followed = Followed({name: values[None] for name, values in scores.items()}, seen.logits.softmax(1))
    about = f"{task['model']}, {path.name}, on {len(images)} {source.kind}images of {source.title}"
    return Looked(named, followed, about, (origin, *_differing(task, images, source)))


def _differing(task: Mapping[str, Any], images: LabelledImages, source: ImageSource) -> tuple[str, ...]:
    trained = task.get("training_images")
    if source.split != "train" or trained is None or trained == len(images):
        return ()
    return (f"The network was trained on {trained} images; {len(images)} are looked at here.",)


def _start(
    task: Mapping[str, Any], config: Mapping[str, Any], state: Mapping[str, Any], shape: tuple[int, int, int]
) -> tuple[Tensor | None, str]:
    """The last layer as it was before the first step, and where that is known from.

    A run that measures congruency keeps those weights in its checkpoints. Of any other they can be made again: the
    seed was set just before the network was made.
    """
    classes = int(task["classes"])
    gauge = state.get("gauge")
    if gauge is not None:
        network = create(task["model"], classes, shape=shape)
        kept = _kept(network, config["measure"], gauge)
        if kept is not None:
            return kept, "The way come begins at the first weights of the run, which the checkpoint holds."
    if task.get("pretrained"):
        return None, (
            "Congruency with the way come is left out: the checkpoint does not hold the first weights, and those of a "
            "network that began with pretrained ones cannot be made again from the seed."
        )
    seed_everything(int(config["seed"]))
    network = create(task["model"], classes, shape=shape)
    return matrix(last_layer(network)), (
        "The way come begins at the first weights of the run, made again from its seed: they are the same only with "
        "the same version of PyTorch."
    )


def _kept(network: nn.Module, measured: str, gauge: Mapping[str, Any]) -> Tensor | None:
    """The last layer at the start of the run, from what the run's gauge holds; None where it does not fit."""
    params = list(parameters_of(network, measured))
    entries = gauge["weights"]
    if len(entries) != len(params):
        return None
    starts = {id(param): entry["start"] for param, entry in zip(params, entries, strict=True)}
    layer = last_layer(network)
    weight = starts.get(id(layer.weight))
    bias = None if layer.bias is None else starts.get(id(layer.bias))
    if weight is None or weight.shape != layer.weight.shape or (layer.bias is not None and bias is None):
        return None
    return extended(weight, bias)
