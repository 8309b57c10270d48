"""A saliency network as a task of the training loop: recipe, training and scores."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from congruency.constraints.references import DEFAULT_FLOOR
from congruency.files import write_together
from congruency.saliency.batches import SaliencyBatches
from congruency.saliency.data.loaders import osie_split
from congruency.saliency.data.prepared import Prepared
from congruency.saliency.data.preprocessing import Aspect, Preprocessing
from congruency.saliency.losses import make_loss
from congruency.saliency.models import MODELS, create, save_model
from congruency.saliency.scorer import METRICS, mean_scores, score
from congruency.training import Build, Correction, Notice, Origin, Place, SampleOrder, Task, TrainingConfig, train
from congruency.training.config import Accelerator, Precision, order_seed
from congruency.training.processes import process_count

Optimizer = Literal["adam", "rmsprop"]
Loss = Callable[[Tensor, Mapping[str, Tensor]], Tensor]

METHODS: dict[str, Correction] = {
    "baseline": Correction(),
    "GEM": Correction(name="gem"),
    "Cautious": Correction(name="cautious", scope="all"),
}
"""The methods besides DCL; Cautious corrects the updates of all layers.

GEM remembers the last layer's input features of the first sample of each epoch (the paper's section 5.1.5).
"""

SCORES_FILE = "scores.json"

_DCL = re.compile(r"DCL-(inf|[1-9]\d*)-([1-9]\d*)( anchor| floor| update)?")
_FORMS: dict[str | None, Correction] = {
    None: Correction(name="dcl"),
    " anchor": Correction(name="dcl", mode="anchor", margin=0.5, offset=1),
    " floor": Correction(name="dcl", floor=DEFAULT_FLOOR),
    " update": Correction(name="dcl", correct="update"),
}
_RATES: dict[str, float] = {"adam": 2e-4, "rmsprop": 5e-4}
_OPTIMIZER_NAMES = {"adam": "Adam", "rmsprop": "RMSP"}
_MODEL_NAMES = {"salicon": "SALICON", "dinet": "published DINet", "dinet4": "DINet"}
_BACKBONE_NAMES = {"resnet50": "ResNet-50", "tf_efficientnet_lite0": "EfficientNet-Lite0", "vgg16": "VGG-16"}
_EVALUATION_PIXELS = 40 * 240 * 320  # pixels per evaluation batch, to bound memory for large inputs
_SHORT = 10_000  # images over all epochs; on a GPU shorter runs are not worth checkpointing


def method_named(name: str) -> Correction:
    """Return a method by its name: one of :data:`METHODS`, or ``"DCL-W-N"`` with window W and N references.

    ``DCL-W-N`` is DCL by the paper's equations. It may be followed by ``anchor`` (the paper's published code),
    ``floor`` (the default floor of :class:`congruency.DCL`) or ``update`` (project the optimizer's step instead of the
    gradient).
    """
    if name in METHODS:
        return METHODS[name]
    found = _DCL.fullmatch(name)
    if found is None:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, or DCL-W-N, such as DCL-inf-1, got {name!r}")
    window, references, form = found.groups()
    return replace(_FORMS[form], window=None if window == "inf" else int(window), references=int(references))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained; the defaults are the paper's, None stands for the network's default."""

    model: str = "dinet"  # this and the next three: see congruency.saliency.models.create
    backbone: str | None = None
    weights: str | None = None
    pretrained: bool = False
    optimizer: Optimizer = "adam"  # or "rmsprop" with momentum 0.9; weight decay 1e-5 in both
    method: str = "baseline"  # see method_named; corrects the last layer (Cautious: all layers)
    epochs: int = 10  # the paper's 12,500 steps on SALICON
    halve_every: int = 1  # epochs between halvings of the learning rate
    delay: int = 1  # epochs before the first of these periods; 1 as in the paper: two epochs at the first rate
    batch: int = 8  # images per step
    loss: str | None = None  # see congruency.saliency.losses.make_loss
    height: int | None = None  # this and the next two: see congruency.saliency.data.Preprocessing
    width: int | None = None
    aspect: Aspect | None = None
    lr: float | None = None  # None for the optimizer's default, 2e-4 (Adam) or 5e-4 (RMSprop)
    sample_order: SampleOrder = "seed"  # which runs share their sample order
    order_seed: int = 0  # seed of the fixed order

    def __post_init__(self) -> None:
        if self.model not in _MODEL_NAMES:
            raise ValueError(f"there is no saliency model {self.model!r}; choose one of {', '.join(_MODEL_NAMES)}")
        if self.optimizer not in _RATES:
            raise ValueError(f"optimizer must be 'adam' or 'rmsprop', got {self.optimizer!r}")
        if self.backbone is None:
            object.__setattr__(self, "backbone", MODELS[self.model].usual_backbone)
        if (self.height is None) != (self.width is None):
            raise ValueError(f"height and width belong together, got {self.height} and {self.width}")
        if self.halve_every < 1:
            raise ValueError(f"halve_every must be at least 1 epoch, got {self.halve_every}")
        if self.delay < 0:
            raise ValueError(f"delay must be at least 0 epochs, got {self.delay}")
        if self.order_seed and self.sample_order != "fixed":
            raise ValueError("order_seed is for the sample order 'fixed'; the other orders follow the seed")
        self.seed_of_order(0)  # raises for an unknown order or method

    @property
    def correction(self) -> Correction:
        """The correction of gradients or updates."""
        return method_named(self.method)

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of images, in training and prediction."""
        usual = MODELS[self.model].usual_preprocessing(str(self.backbone))
        size = usual.size if self.height is None or self.width is None else (self.height, self.width)
        return Preprocessing(size, self.aspect or usual.aspect)

    @property
    def effective_loss(self) -> str:
        """The loss, or the network's default if None."""
        return self.loss or MODELS[self.model].usual_loss(str(self.backbone))

    def seen_as(self, preprocessing: Preprocessing) -> Recipe:
        """Return the recipe with the given preprocessing."""
        height, width = preprocessing.size
        return replace(self, height=height, width=width, aspect=preprocessing.aspect)

    @property
    def from_scratch(self) -> bool:
        """Whether the backbone starts from random weights."""
        return not (self.weights or self.pretrained)

    @property
    def name(self) -> str:
        """The row's name: model, backbone, optimizer, method."""
        order = "" if self.sample_order == "seed" else f", {self.sample_order} order"
        return f"{self.network} {self._optimizer_and_method}{order}"

    @property
    def network(self) -> str:
        """Model and backbone as named in rows; SALICON on a ResNet-50 is ``"ResNet-50"``, as in the paper."""
        backbone = _BACKBONE_NAMES.get(str(self.backbone), self.backbone)
        model = "" if (self.model, self.backbone) == ("salicon", "resnet50") else f"{_MODEL_NAMES[self.model]} "
        return f"{model}{backbone}{'' if self.from_scratch else ' pretrained'}"

    @property
    def paper_row(self) -> str:
        """The row of the paper's table that this recipe repeats, with the form of DCL appended."""
        return f"{'ResNet-50' if self.model == 'salicon' else 'DINet'} {self._optimizer_and_method}"

    @property
    def _optimizer_and_method(self) -> str:
        return f"{_OPTIMIZER_NAMES[self.optimizer]}{'' if self.method == 'baseline' else f' {self.method}'}"

    @property
    def folder(self) -> str:
        """A folder name with everything that changes the result, except the choice of pretrained weights."""
        kind, backbone = MODELS[self.model], str(self.backbone)
        usual = {field.name: field.default for field in fields(self)} | {"delay": 0, "loss": kind.usual_loss(backbone)}
        keys = ("epochs", "halve_every", "delay", "batch", "loss", "lr", "order_seed")
        values = {key: self.effective_loss if key == "loss" else getattr(self, key) for key in keys}
        changed = [f"{key}-{value}" for key, value in values.items() if value != usual[key]]
        if self.preprocessing != kind.usual_preprocessing(backbone):
            height, width = self.preprocessing.size
            changed.append(f"{height}x{width}-{self.preprocessing.aspect}")
        return "_".join([self.name.lower().replace(", ", "-").replace(" ", "-"), *changed]).replace("*", "x")

    def seed_of_order(self, seed: int) -> int:
        """Return the seed of the sample order of a run with the given seed."""
        return order_seed(self.sample_order, seed, self.correction, self.order_seed)

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0, relative to the first.

        By default the paper's ``eta_(k+1) = eta_0 0.5^(k-1)``, k from 1: two epochs at the first rate, then halved.
        """
        return 0.5 ** (max(0, epoch - self.delay) // self.halve_every)

    def make_optimizer(self, model: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
        """Return the optimizer of a network; ``fused`` runs Adam's step as one kernel."""
        lr = _RATES[self.optimizer] if self.lr is None else self.lr
        if self.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=1e-5, fused=fused or None)
        return torch.optim.RMSprop(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-5)


def split_prepared(prepared: Prepared, train: int = 500) -> tuple[Prepared, Prepared]:
    """Split a prepared set into training and test images, as :func:`osie_split`."""
    parts = osie_split(prepared.data, train=train)
    first, second = (prepared.subset([v.name for v in part.viewings]) for part in parts)
    return first, second


def describe(recipe: Recipe, train_set: Prepared, test_set: Prepared | None, seed: int) -> dict[str, object]:
    """Return the description of a run for its record."""
    sets = {"data": train_set.data} if test_set is None else {"data": train_set.data, "scored_on": test_set.data}
    about: dict[str, object] = {"task": "saliency", "seed": seed, **asdict(recipe)}
    for name, data in sets.items():
        about |= {name: data.summary(), f"{name}_pixels_per_degree": data.pixels_per_degree}
    return about


def build_task(
    recipe: Recipe, prepared: Prepared, seed: int, *, held_out: Prepared | None = None, on_device: bool = True
) -> Build:
    """Return the builder of the task for :func:`congruency.training.train`.

    With ``held_out`` the evaluation is the loss on that set: the paper's validation loss (Figure 14).
    """
    loss, kind = make_loss(recipe.effective_loss), MODELS[recipe.model]

    def head_loss(logits: Tensor, target: Mapping[str, Tensor]) -> Tensor:
        height, width = target["density"].shape[-2:]
        return loss(kind.finish(logits, (height, width)), target)

    def build(place: Place) -> Task:
        model = create(
            recipe.model, recipe.backbone, weights=recipe.weights, pretrained=recipe.pretrained,
            preprocessing=prepared.preprocessing,
        )  # fmt: skip
        device = place.device if on_device else "cpu"
        data = SaliencyBatches(
            prepared, recipe.batch, seed=recipe.seed_of_order(seed), device=device, rank=place.rank,
            world_size=place.world_size,
        )  # fmt: skip
        validation = None if held_out is None else SaliencyBatches(held_out, _at_once(held_out), device=device)
        return Task(
            model=model,
            optimizer=lambda model: recipe.make_optimizer(model, fused=place.fused_optimizer),
            loss=loss,
            data=data,
            schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.rate),
            head_loss=head_loss,
            evaluate=None if validation is None else lambda model: _validation_loss(model, validation, loss, place),
            description=describe(recipe, prepared, held_out, seed),
        )

    return build


def _at_once(prepared: Prepared) -> int:
    """Return the number of images to evaluate at once."""
    height, width = prepared.preprocessing.size
    return max(1, _EVALUATION_PIXELS // (height * width))


def _validation_loss(model: nn.Module, batches: SaliencyBatches, loss: Loss, place: Place) -> dict[str, float]:
    """Return the mean loss over all images, in every process: a sharded network needs all processes in each call."""
    total, count = torch.zeros((), dtype=torch.float64, device=place.device), 0
    for images, target in batches.evaluation_batches():
        there = {name: value.to(place.device) for name, value in target.items()}
        total += len(images) * loss(model(images.to(place.device)), there)
        count += len(images)
    return {"loss": total.item() / count}


@torch.no_grad()
def scores_of(model: nn.Module, prepared: Prepared, *, precision: str = "32") -> dict[str, float]:
    """Return the mean scores of a network on a set, at the images' original size, on the network's device."""
    device = next(model.parameters()).device
    model.eval()

    def predict(indices: Sequence[int]) -> Tensor:
        parts = prepared.images[torch.tensor(indices)].split(_at_once(prepared))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            saliency = torch.cat([model(part.to(device)) for part in parts])
        one = prepared.data[indices[0]]  # the scorer asks for images of one size at a time
        return prepared.preprocessing.crop(saliency, (one.height, one.width))

    batch = 25 if device.type == "cpu" else 64  # enough to use a GPU fully
    return mean_scores(score(predict, prepared.data, METRICS, device=device, batch=batch), prepared.data)


@dataclass(frozen=True)
class Trained:
    """The scores of a trained network; None if SIGTERM stopped the run before its end."""

    scores: dict[str, float] | None
    stopped: bool = False


def train_network(
    recipe: Recipe,
    seed: int,
    train_set: Prepared,
    test_set: Prepared,
    folder: str | Path,
    *,
    device: Accelerator = "auto",
    precision: Precision = "32",
    capture: bool | None = None,
    keep_model: bool = True,
    evaluate_every: int = 1,
    progress: bool = False,
    notice: Notice | None = None,
    origin: Origin | None = None,
) -> Trained:
    """Train a network and score it; ``folder`` gets ``record.jsonl``, ``scores.json`` and, on request, ``model.pt``.

    A finished run is read from its folder, an interrupted one resumes from its last checkpoint; on a GPU short runs
    seldom write one before SIGTERM. With ``capture=None`` the passes are replayed as CUDA graphs where possible. The
    loss on ``test_set`` is recorded every ``evaluate_every`` epochs and after the last one. The preprocessing of both
    sets replaces the recipe's.
    """
    if test_set.preprocessing != train_set.preprocessing:
        raise ValueError(
            f"the images to train on are prepared at {train_set.preprocessing}, those to score at "
            f"{test_set.preprocessing}; prepare both at one size"
        )
    folder, recipe = Path(folder), recipe.seen_as(train_set.preprocessing)
    finished = folder / SCORES_FILE
    if finished.is_file():
        return Trained(json.loads(finished.read_text(encoding="utf-8"))["scores"])
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    short = recipe.epochs * len(train_set.images) <= _SHORT
    config = TrainingConfig(
        epochs=recipe.epochs, seed=seed, method=recipe.correction, accelerator=device, precision=precision,
        channels_last=cuda, tf32=cuda, record_steps=10, progress=progress, evaluate_every=evaluate_every,
        capture=cuda and precision != "16" and process_count() == 1 if capture is None else capture,
        checkpoint_epochs=0 if short and cuda else max(1, recipe.epochs // 2),
    )  # fmt: skip
    networks: list[nn.Module] = []

    def build(place: Place) -> Task:
        task = build_task(recipe, train_set, seed, held_out=test_set)(place)
        networks.append(task.model)
        return task

    result = train(build, config, folder, resume=True, origin=origin, notice=notice)
    if not result.finished:
        return Trained(None, stopped=True)
    if keep_model:
        save_model(networks[0], folder / "model.pt")
    scores = scores_of(networks[0], test_set, precision=precision)
    content = {"recipe": asdict(recipe), "row": recipe.name, "seed": seed, "scores": scores}
    write_together(folder, {SCORES_FILE: json.dumps(content, indent=2) + "\n"})
    for checkpoint in (folder / "checkpoints").glob("*.pt"):
        checkpoint.unlink()  # checkpoints of many runs would fill the disk
    return Trained(scores, stopped=result.asked_to_stop)
