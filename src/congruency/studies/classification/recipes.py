"""The paper's classification tables as data: one recipe per training run that fills a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from congruency.classification.augmentation import AUGMENTATIONS, Augmentation
from congruency.classification.task import Setup
from congruency.studies.plan import PaperNumber

Measured = Literal["error", "top5_error", "ms", "parameters"]
"""Figures of a finished run that columns show."""

CLASSES = {"cifar10": 10, "cifar100": 100, "tiny_imagenet": 200, "imagenet": 1000}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run of the paper (its section 5.1.5), and what the paper reports for it.

    Attributes:
        row: as the paper writes it.
        data: a name of :data:`congruency.datasets.SETS`.
        model: a name of :func:`congruency.classification.models.create`.
        columns: the columns that this run fills, and with which figure.
        paper: the paper's numbers by column. Errors in percent, costs in ms per image, parameters in millions.
        label: what distinguishes it from the row's other runs; empty where there is one.
        window: DCL's beta_w, None for infinity.
        references: DCL's N_r.
        size: the side of the images that the network sees; None for that of the data set.
        batch_size: of all processes together.
        milestones: epochs, counted from 0, from which the learning rate is multiplied by ``decay`` once more.
        per_class: only so many training images of every class; None for all.
        quoted: the paper takes this row's numbers from elsewhere.
        assumed: what the paper leaves open, and what we chose.
        changes: how a small budget differs from the paper.
    """

    table: str
    row: str
    data: str
    model: str
    columns: Mapping[str, Measured]
    paper: Mapping[str, PaperNumber]
    label: str = ""
    method: Literal["baseline", "dcl", "gem"] = "baseline"
    window: int | None = None
    references: int = 1
    pretrained: bool = False
    size: int | None = None
    epochs: int = 300
    batch_size: int = 128
    learning_rate: float = 0.1
    milestones: tuple[int, ...] = (150, 225)
    decay: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    per_class: int | None = None
    quoted: bool = False
    assumed: tuple[str, ...] = ()
    budget: Literal["paper", "small"] = "paper"
    changes: tuple[str, ...] = field(default=())

    @property
    def augmentation(self) -> Augmentation:
        """Of the training images: the data set's, at the size of this recipe, normalised as the weights expect."""
        augmentation = replace(AUGMENTATIONS[self.data], size=self.size or AUGMENTATIONS[self.data].size)
        if not self.pretrained:
            return augmentation
        from congruency.classification.models import normalisation

        return augmentation.normalised_as(*normalisation(self.model))

    @property
    def correction(self) -> dict[str, Any]:
        """How gradients are corrected, by the names of :class:`congruency.training.Correction`."""
        dcl = {"window": self.window, "references": self.references} if self.method == "dcl" else {}
        return {"name": self.method, **dcl}

    def small(self) -> Recipe:
        """Return a version for minutes on a laptop: fewer epochs and images, a smaller network; see ``changes``."""
        if self.budget == "small":
            return self
        changed = _SMALL[self.data]
        epochs = min(self.epochs, int(changed["epochs"]))
        milestones = tuple(max(1, round(epochs * milestone / self.epochs)) for milestone in self.milestones)
        model, pretrained = _SMALL_MODELS.get(self.model, self.model), self.pretrained and self.model in _LITE
        made = replace(
            self, epochs=epochs, milestones=milestones, per_class=int(changed["per_class"]),
            size=changed["size"] if self.size else None, batch_size=min(self.batch_size, 64), model=model,
            pretrained=pretrained, budget="small",
        )  # fmt: skip
        return replace(made, changes=_differences(self, made))

    def setup(self, *, pretrained: str | bool | None = True, **changes: Any) -> Setup:
        """Return what is trained.

        Args:
            pretrained: where ImageNet weights come from, for a recipe that starts from them.
            changes: other attributes of the setup.
        """
        names = (
            "model", "augmentation", "epochs", "batch_size", "learning_rate", "momentum", "weight_decay", "milestones",
            "decay",
        )  # fmt: skip
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Setup(**(settings | {"pretrained": pretrained if self.pretrained else None} | changes))


def find(table: str, row: str) -> tuple[Recipe, ...]:
    """Return the recipes of one row, by the names that the paper's tables use; several where it reports several runs.

    find("cifar", "ResNeXt-29 SGD DCL-inf-1")  # one on CIFAR-10, one on CIFAR-100
    """
    return tuple(recipe for recipe in RECIPES if recipe.table == table and recipe.row == row)


def rows(table: str) -> tuple[str, ...]:
    """The rows of a table, from top to bottom."""
    return tuple(dict.fromkeys(recipe.row for recipe in RECIPES if recipe.table == table))


_SMALL: dict[str, dict[str, int]] = {
    "cifar10": {"epochs": 4, "per_class": 100, "size": 64},
    "cifar100": {"epochs": 4, "per_class": 10, "size": 64},
    "tiny_imagenet": {"epochs": 3, "per_class": 5, "size": 64},
    "imagenet": {"epochs": 3, "per_class": 2, "size": 64},
}
_SMALL_MODELS = {
    "resnext29_16x64": "resnext29_4x16", "densenet100_12": "densenet40_12",
    "efficientnet_b1": "tf_efficientnet_lite0", "resnet101": "resnet18", "resnet50": "resnet18",
    "densenet169": "densenet121",
}  # fmt: skip
_LITE = {"efficientnet_b1"}  # its small stand-in has weights that install offline

_CIFAR_CROPS = "crops of 32 from images padded by 4, and flips"
_CIFAR_LARGE = "ImageNet weights, and images scaled to 240: from scratch its error is out of reach"
_FINE_TUNED = "ImageNet weights, as the paper's comparison with training from scratch says"
_TINY_CROPS = "random resized crops to 224 and flips; the validation images whole, scaled to 224"
_TINY_EPOCHS = "the learning rate falls after 10 and 20 epochs: 'at epoch 11 and 21', counted from 1"
_IMAGENET_SCHEDULE = "90 epochs at 0.2, a tenth from epoch 30 and 60 on, weight decay 1e-4: the usual ones at batch 512"
_IMAGENET_CROPS = "random resized crops to 224 and flips; the middle of validation images"

_TINY: dict[str, Any] = {
    "data": "tiny_imagenet", "epochs": 30, "batch_size": 64, "learning_rate": 0.001, "milestones": (10, 20),
    "weight_decay": 1e-4, "size": 224,
}  # fmt: skip
_IMAGENET: dict[str, Any] = {
    "data": "imagenet", "model": "resnet50", "epochs": 90, "batch_size": 512, "learning_rate": 0.2,
    "milestones": (30, 60), "weight_decay": 1e-4, "size": 224, "assumed": (_IMAGENET_SCHEDULE, _IMAGENET_CROPS),
}  # fmt: skip
_GEM: dict[str, Any] = {"method": "gem"}
_TOP: dict[str, Measured] = {"Top-1 error": "error", "Top-5 error": "top5_error"}


def _dcl(window: int | None, references: int = 1) -> dict[str, Any]:
    return {"method": "dcl", "window": window, "references": references}


def _of_network(network: str, window: int | None) -> list[tuple[str, dict[str, Any]]]:
    """The paper's three rows of a network, and their methods: plain SGD, GEM, and DCL with its window."""
    dcl = f"{network} SGD DCL-{'inf' if window is None else window}-1"
    return [(f"{network} SGD", {}), (f"{network} SGD GEM", _GEM), (dcl, _dcl(window))]


def _cifar() -> list[Recipe]:
    large: dict[str, Any] = {"pretrained": True, "size": 240, "assumed": (_CIFAR_CROPS, _CIFAR_LARGE)}
    small: dict[str, Any] = {"assumed": (_CIFAR_CROPS,)}
    reported: list[tuple[str, str, dict[str, Any], int | None, list[tuple[float, float]]]] = [
        ("ResNeXt-29", "resnext29_16x64", small, None, [(3.53, 17.30), (7.70, 32.70), (3.33, 17.02)]),
        ("DenseNet-100-12", "densenet100_12", small, 90, [(4.54, 22.88), (6.92, 33.72), (4.32, 22.16)]),
        ("EfficientNet-B1", "efficientnet_b1", large, 5, [(1.91, 11.81), (3.06, 19.48), (1.79, 11.65)]),
    ]
    return [
        Recipe(
            table="cifar", row=row, data=data, model=model, columns={column: "error"}, paper={column: error},
            label=column, **common, **method,
        )
        for network, model, common, window, errors in reported
        for (row, method), (ten, hundred) in zip(_of_network(network, window), errors, strict=True)
        for data, column, error in (("cifar10", "CIFAR-10", ten), ("cifar100", "CIFAR-100", hundred))
    ]  # fmt: skip


def _tiny_imagenet() -> list[Recipe]:
    reported: list[tuple[str, str, int, list[tuple[float, float]]]] = [
        ("ResNet-101", "resnet101", 60, [(17.34, 4.82), (21.78, 7.21), (16.89, 4.50)]),
        ("DenseNet-169-32", "densenet169", 50, [(20.24, 6.11), (26.81, 9.43), (19.55, 6.09)]),
        ("EfficientNet-B1", "efficientnet_b1", 8, [(15.73, 3.90), (28.74, 11.31), (15.61, 3.75)]),
    ]
    return [
        Recipe(
            table="tiny_imagenet", row=row, model=model, pretrained=True, columns=_TOP,
            paper={"Top-1 error": top1, "Top-5 error": top5}, assumed=(_FINE_TUNED, _TINY_CROPS, _TINY_EPOCHS), **_TINY,
            **method,
        )
        for network, model, window, errors in reported
        for (row, method), (top1, top5) in zip(_of_network(network, window), errors, strict=True)
    ]  # fmt: skip


def _imagenet() -> list[Recipe]:
    reported: list[tuple[str, dict[str, Any], PaperNumber, PaperNumber]] = [
        ("ResNet-50 (original)", {"quoted": True}, 24.70, 7.80),
        ("ResNet-50 (reproduced)", {}, (24.33, 0.08), (7.30, 0.07)),
        ("ResNet-50 DCL", _dcl(5), (24.09, 0.03), (7.23, 0.02)),
    ]
    return [
        Recipe(
            table="imagenet", row=row, columns=_TOP, paper={"Top-1 error": top1, "Top-5 error": top5}, **_IMAGENET,
            **method,
        )
        for row, method, top1, top5 in reported
    ]  # fmt: skip


def _from_scratch() -> list[Recipe]:
    reported: list[tuple[str, dict[str, Any], tuple[float, float], tuple[float, float]]] = [
        ("ResNet-101 SGD", {}, (68.21, 42.72), (17.34, 4.82)),
        ("ResNet-101 SGD GEM", _GEM, (77.20, 53.18), (21.78, 7.21)),
        ("ResNet-101 SGD DCL", _dcl(60), (67.56, 40.74), (16.89, 4.50)),
    ]
    return [
        Recipe(
            table="from_scratch", row=row, label=column, model="resnet101", pretrained=column == "FT",
            columns={f"Top-1 {column}": "error", f"Top-5 {column}": "top5_error"},
            paper={f"Top-1 {column}": errors[0], f"Top-5 {column}": errors[1]}, assumed=(_TINY_CROPS, _TINY_EPOCHS),
            **_TINY, **method,
        )
        for row, method, scratch, tuned in reported
        for column, errors in (("TFS", scratch), ("FT", tuned))
    ]  # fmt: skip


def _cost() -> list[Recipe]:
    """Without the columns of SALICON, whose networks predict saliency: :mod:`congruency.studies.cost` adds them."""
    baseline = "baseline (ResNet-101 / ResNet-50 / ResNet-50)"
    reported: list[tuple[str, dict[str, Any], dict[str, Any], tuple[float, float], tuple[float, float]]] = [
        (baseline, {}, {}, (42.50, 47), (23.50, 6)),
        ("GEM", _GEM, _GEM, (42.91, 78), (25.55, 10)),
        ("DCL", _dcl(60), _dcl(5), (42.91, 49), (25.55, 8)),
    ]
    return [
        Recipe(
            table="cost", row=row, label=title, **common, **method,
            columns={f"{title} params": "parameters", f"{title} ms": "ms"},
            paper={f"{title} params": millions, f"{title} ms": milliseconds},
        )
        for row, tiny, imagenet, on_tiny, on_imagenet in reported
        for title, common, method, (millions, milliseconds) in (
            ("Tiny ImageNet", {**_TINY, "model": "resnet101", "assumed": (_TINY_CROPS,)}, tiny, on_tiny),
            ("ImageNet", _IMAGENET, imagenet, on_imagenet),
        )
    ]  # fmt: skip


def _cost_by(table: str, settings: Mapping[str, dict[str, Any]], milliseconds: Mapping[str, float]) -> list[Recipe]:
    return [
        Recipe(
            table=table, row="DCL", model="resnet101", columns={column: "ms"},
            paper={column: milliseconds[column]}, label=column, assumed=(_TINY_CROPS,), **_TINY, **method,
        )
        for column, method in settings.items()
    ]  # fmt: skip


def _all() -> tuple[Recipe, ...]:
    windows = {str(window): _dcl(window) for window in (10, 20, 30, 40, 50)}
    references = {str(count): _dcl(50, count) for count in (1, 5, 10, 15, 20)}
    return (
        *_cifar(),
        *_tiny_imagenet(),
        *_imagenet(),
        *_from_scratch(),
        *_cost(),
        *_cost_by("cost_window", windows, dict.fromkeys(windows, 49.0)),
        *_cost_by("cost_references", references, dict(zip(references, (49.0, 51.0, 53.0, 54.0, 54.0), strict=True))),
    )


def _differences(whole: Recipe, made: Recipe) -> tuple[str, ...]:
    changes = [f"{made.epochs} epochs for {whole.epochs}", f"{made.per_class} training images per class"]
    if made.model != whole.model:
        changes.append(f"{made.model} for {whole.model}")
    if made.size != whole.size:
        changes.append(f"images of {made.size} for {whole.size}")
    if made.batch_size != whole.batch_size:
        changes.append(f"batches of {made.batch_size} for {whole.batch_size}")
    if made.pretrained != whole.pretrained:
        changes.append("from scratch for fine-tuned")
    return tuple(changes)


RECIPES: tuple[Recipe, ...] = _all()
