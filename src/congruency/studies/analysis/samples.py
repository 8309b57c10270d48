"""Load a trained network and samples to compare, from a checkpoint and a data set."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from congruency.classification.augmentation import Augmentation
from congruency.classification.batches import Batches
from congruency.classification.models import create
from congruency.datasets import SETS, Catalogue, LabelledImages, catalogue
from congruency.datasets import load as load_images
from congruency.training import load_checkpoint, read_record
from congruency.training.record import RECORD_NAME
from congruency.training.state import load_model


@dataclass(frozen=True, eq=False)
class Samples:
    """n samples, and the network, in evaluation mode, whose gradients are compared.

    Attributes:
        inputs: (n, ...), the network's inputs.
        seen: (n, ...), the normalised images, for the similarity.
        pictures: one PNG per sample.
    """

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    seen: Tensor
    targets: Tensor
    labels: Sequence[str]
    pictures: Sequence[bytes]
    about: str


def is_saliency(checkpoint: Path) -> bool:
    """Whether a file is a checkpoint of a saliency model."""
    if not checkpoint.is_file():
        return False
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # torch raises many types on foreign files; the later read reports what is wrong
        return False
    return isinstance(content, dict) and str(content.get("format", "")).startswith("congruency saliency model")


def classifier_samples(
    checkpoint: Path, data: str, classes: Sequence[str], count: int, *, split: str = "test", folder: Path | None = None
) -> Samples:
    """Load a classifier trained by ``congruency train``, from its folder or a checkpoint, and images of a data set.

    Takes ``count`` images of each of ``classes``; without ``classes``, ``count`` images in total over all classes.
    """
    run, path = _run_of(checkpoint)
    task, augmentation = _described(run)
    images = _images(data, split, folder, len(augmentation.mean))
    if len(images.classes) != task.get("classes"):
        raise ValueError(f"{data} has {len(images.classes)} classes, the network was trained on {task.get('classes')}")
    some = images.subset(_of_classes(images, classes, count) if classes else _mixed(images, count))
    size = augmentation.size if data not in SETS or data == "imagenet" else None  # other known sets have one size
    chosen = some.decoded(size, len(augmentation.mean)) if isinstance(some, Catalogue) else some
    inputs, targets = next(iter(Batches(chosen, len(chosen), augmentation).evaluation_batches()))
    channels, height, width = inputs.shape[1:]
    model = _trained_network(task, load_checkpoint(path), (channels, height, width))
    smoothing = float(task.get("smoothing") or 0.0)
    return Samples(
        model,
        lambda outputs, labels: functional.cross_entropy(outputs, labels, label_smoothing=smoothing),
        inputs,
        inputs,
        targets,
        [images.classes[label] for label in chosen.labels.tolist()],
        [_png(image) for image in chosen.images],
        f"{task['model']}, {path.name}, on {len(chosen)} {split} images of {data}",
    )


def trained_by(checkpoint: Path) -> str | None:
    """Return the command that trained a classifier; None if it is not recorded."""
    if is_saliency(checkpoint):
        return None
    typed = read_record(_run_of(checkpoint)[0]).run.get("command")
    return None if typed is None else f"congruency {typed}"


def _run_of(checkpoint: Path) -> tuple[Path, Path]:
    """Return a run's folder and a checkpoint file, given either; of a folder the last checkpoint."""
    if not checkpoint.exists():
        raise FileNotFoundError(f"the checkpoint {checkpoint} is missing; give a run's folder or a checkpoint in it")
    run = checkpoint if checkpoint.is_dir() else checkpoint.resolve().parent.parent
    found = sorted((run / "checkpoints").glob("checkpoint-*.pt")) if checkpoint.is_dir() else [checkpoint]
    if not found:
        raise FileNotFoundError(f"{checkpoint} holds no checkpoint of a run (checkpoints/checkpoint-*.pt)")
    if not (run / RECORD_NAME).is_file():
        raise FileNotFoundError(
            f"{checkpoint} has no {RECORD_NAME}, which says which network its checkpoints are of; give the whole "
            "folder of a run, or a checkpoint in it"
        )
    return run, found[-1]


def all_different(checkpoints: Sequence[Path]) -> None:
    """Check that no run is given twice, which would count one network as two.

    Raises:
        ValueError: two checkpoints belong to the same run.
    """
    known: dict[Path, Path] = {}
    for checkpoint in checkpoints:
        run = checkpoint.resolve() if is_saliency(checkpoint) else _run_of(checkpoint)[0].resolve()
        if run in known:
            raise ValueError(f"{known[run]} and {checkpoint} are of one run; give each network once")
        known[run] = checkpoint


def _trained_network(task: Mapping[str, Any], state: Mapping[str, Any], shape: tuple[int, int, int]) -> nn.Module:
    """Load a checkpoint's network in evaluation mode, for images of ``shape`` (channels, height, width)."""
    model = create(task["model"], int(task["classes"]), shape=shape)
    try:
        load_model(model, state["model"])
    except RuntimeError:  # mismatched shapes
        raise ValueError(
            f"the weights of {task['model']} do not fit images of {shape[0]} x {shape[1]} x {shape[2]}; "
            "give the images that it was trained on"
        ) from None
    return model.eval()


def _described(run: Path) -> tuple[Mapping[str, Any], Augmentation]:
    """Return the task in a run's record, and its augmentation."""
    task = read_record(run).run.get("task") or {}
    described = task.get("augmentation") if isinstance(task, Mapping) else None
    if not isinstance(described, Mapping) or "model" not in task:
        raise ValueError(f"the record in {run} does not describe a classifier; congruency train writes one that does")
    settings: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in described.items()}
    return task, Augmentation(**settings)


def _images(data: str, split: str, folder: Path | None, channels: int) -> LabelledImages | Catalogue:
    """Open a data set: image files undecoded, since only a few are needed; arrays as a whole."""
    try:
        return catalogue(data, split, data=folder)  # type: ignore[arg-type]
    except ValueError:  # a set of arrays; load_images reports other errors
        return load_images(data, split, None, channels, data=folder)  # type: ignore[arg-type]


def _of_classes(images: LabelledImages | Catalogue, classes: Sequence[str], count: int) -> list[int]:
    """Return the indices of the first ``count`` images of each class, in the order of ``classes``."""
    unknown = [name for name in classes if name not in images.classes]
    if unknown:
        known = ", ".join(images.classes[:12]) + (", ..." if len(images.classes) > 12 else "")
        raise ValueError(f"there is no class {unknown[0]!r} among {known}")
    if len(set(classes)) < len(classes):
        raise ValueError(f"the classes must differ, got {', '.join(classes)}")
    places = [_first(images, images.classes.index(name), count) for name in classes]
    empty = [name for name, found in zip(classes, places, strict=True) if not found]
    if empty:
        raise ValueError(f"the set has no image of class {empty[0]!r}")
    return [place for found in places for place in found]


def _mixed(images: LabelledImages | Catalogue, count: int) -> list[int]:
    """Return the indices of ``count`` images spread evenly over the classes, sorted by class."""
    each = -(-count // len(images.classes))
    places = [place for label in range(len(images.classes)) for place in _first(images, label, each)]
    return [places[i] for i in _evenly(len(places), count)]


def _first(images: LabelledImages | Catalogue, label: int, count: int) -> list[int]:
    found: list[int] = (images.labels == label).nonzero().flatten()[:count].tolist()
    return found


def _evenly(length: int, count: int) -> list[int]:
    """Return at most ``count`` evenly spaced indices from 0 to ``length - 1``, including both ends."""
    count = min(count, length)
    return [round(i * (length - 1) / max(1, count - 1)) for i in range(count)]


def saliency_samples(checkpoint: Path, data: Path, count: int, *, split: str = "train") -> Samples:
    """Load a saliency network, and ``count`` images with fixations, evenly spaced over a data set.

    Images of a folder are resized as in the network's training. The loss is DINet's, l1; pictures show an image above
    its fixation density.
    """
    from congruency.saliency.batches import SaliencyBatches
    from congruency.saliency.data import open_data
    from congruency.saliency.data.prepared import load_prepared, prepare_in_memory
    from congruency.saliency.losses import make_loss
    from congruency.saliency.models import load_model as load_saliency

    model = load_saliency(checkpoint)
    prepared = load_prepared(data) if data.is_file() else None
    whole = prepared.data if prepared is not None else open_data(data, split)
    chosen = _evenly(len(whole), count)
    names = [whole.viewings[i].image.name for i in chosen]
    seen = model.preprocessing
    held = (
        prepare_in_memory(whole.subset(chosen), seen.size, seen.aspect) if prepared is None else prepared.subset(names)
    )
    batches = SaliencyBatches(held, len(held.images))
    loss = make_loss("l1")
    return Samples(
        model,
        lambda maps, truth: loss(maps, {"density": truth[:, 0], "fixations": truth[:, 1]}),
        batches.images.float(),
        model.backbone.normalise(batches.images),
        torch.stack([batches.density.float(), batches.fixations.float()], 1),
        names,
        [_png(_with_map(image, blurred)) for image, blurred in zip(held.images, batches.density, strict=True)],
        f"{type(model).__name__} on {len(names)} images of {whole.name}",
    )


def _with_map(image: Tensor, density: Tensor) -> Tensor:
    """Stack an image, (3, h, w) uint8, above its map, (h, w) in [0, 1], as (3, 2h, w) uint8."""
    grey = (255 * density.float()).round().to(torch.uint8).expand(3, -1, -1)
    return torch.cat([image, grey], 1)


def _png(image: Tensor) -> bytes:
    """Encode an image, (C, H, W) uint8 with C of 1 or 3, as PNG."""
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
