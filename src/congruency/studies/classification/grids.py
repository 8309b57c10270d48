"""Grids of short runs that measure, over many seeds, the effect of DCL on classifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from congruency.classification.augmentation import AUGMENTATIONS, Augmentation
from congruency.classification.task import Setup
from congruency.studies.classification.cells import Axes, cell_name, cells
from congruency.studies.classification.jobs import Data, ImageJob, Measured, extras, settings_of
from congruency.studies.plan import Column, Row, Study
from congruency.training.config import Correction, Scope

TEST_ERROR = Column(key="test error", title="Test error, %")
_EQUATIONS = Axes(modes=("concentrate",), margins=(0.0,), references=(1,))
_PUBLISHED = Axes(modes=("anchor",), margins=(0.5,), references=(1,))
_WEAK = Axes(modes=("anchor",), margins=(0.1,), references=(1,))
_SCOPES: tuple[Scope, ...] = ("head", "all")

TITLES = {
    "cifar10_grid": "CIFAR-10 in short runs: baseline, GEM, DCL by mode, margin, window and scope",
    "cifar100_noisy": "CIFAR-100 with noisy training labels in short runs: baseline, GEM, DCL",
    "tiny_subset": "Tiny ImageNet's subset in short runs: ResNet-50 from scratch, EfficientNet-Lite0 fine-tuned",
}

CONSTRAINT_NOTES = (
    (
        "DCL-W-N",
        "N reference points, renewed every W steps (inf: never). Concentrate: the paper's equations, no step may go "
        "against the accumulated gradient. Anchor: the paper's published code, which pulls weights back toward the "
        "reference.",
    ),
    (
        "Margin",
        "Lower bound of the multiplier of every constraint: 0 is the exact projection, 0.5 that of the published code.",
    ),
    ("Head, all", "Which parameters are corrected: those of the last layer, as in the paper, or all."),
)
"""Explanations of the names of DCL rows."""

CORRECTED_NOTE = ("Corrected", "The share of the steps whose gradient was changed.")

_NOTES = (
    *CONSTRAINT_NOTES,
    ("GEM", "No step of the last layer may go against the gradient of one remembered sample of the epoch."),
    ("Against", "The paired difference to the baseline, seed by seed: same initial weights, same batches."),
    CORRECTED_NOTE,
)


def _cifar10_grid() -> Study[ImageJob]:
    methods = _methods((_EQUATIONS, _WEAK, _PUBLISHED), (5, 50, None), _SCOPES)
    return _study(
        "cifar10_grid",
        lead="ResNet-9 of half the width for 4 epochs in batches of 512: SGD with Nesterov's momentum, a rate that "
        "rises to 0.4 over a quarter of the run and falls to 0 along a cosine, weight decay 5e-4, label "
        "smoothing 0.1; crops of 32 from images padded by 4, and flips.",
        rows=_rows(methods, fast_setup(AUGMENTATIONS["cifar10"]), Data(name="cifar10", classes=10)),
    )


def _cifar100_noisy() -> Study[ImageJob]:
    methods = _methods((_EQUATIONS, _PUBLISHED), (50, None), _SCOPES)
    return _study(
        "cifar100_noisy",
        lead="Meant for a CIFAR-100 whose training labels are noisy and whose test labels are clean: a natural case of "
        "samples that disagree. ResNet-9 of half the width for 5 epochs in batches of 512: SGD with Nesterov's "
        "momentum, a rate that rises to 0.4 over a quarter of the run and falls to 0 along a cosine, weight decay "
        "5e-4, no label smoothing; crops of 32 from images padded by 4, and flips.",
        rows=_rows(
            methods,
            replace(fast_setup(AUGMENTATIONS["cifar100"]), epochs=5, warmup=1.25, smoothing=0.0),
            Data(name="cifar100", classes=100),
        ),
    )


def _tiny_subset() -> Study[ImageJob]:
    """Tiny ImageNet with the paper's windows for ResNet-101 and EfficientNet, 60 and 8."""
    data = Data(name="tiny_imagenet", classes=200)
    tuned, scratch = lite_setup(), tiny_scratch_setup()
    rows = (
        *_rows(_methods((_EQUATIONS, _PUBLISHED), (60,), ("head",)), scratch, data, "ResNet-50 from scratch"),
        *_rows(_methods((_EQUATIONS, _PUBLISHED), (8,), ("head",)), tuned, data, "EfficientNet-Lite0 fine-tuned"),
    )
    return _study(
        "tiny_subset",
        lead="Whatever part of Tiny ImageNet is in the data folder, all 200 classes. ResNet-50 from scratch: 20 epochs "
        "in batches of 128 at 64 pixels, the rate rises to 0.1. EfficientNet-Lite0 from its ImageNet weights: 6 epochs "
        "in batches of 64 at 128 pixels, the rate rises to 0.01. Both: SGD with Nesterov's momentum, a cosine, label "
        "smoothing 0.1, random resized crops (from 35 % of the area) and flips; tested on the whole validation images.",
        rows=rows,
    )


def fast_setup(augmentation: Augmentation) -> Setup:
    """Return a setup that trains ResNet-9 in a few epochs: learning rate 0.1 per 128 images, batches of 512."""
    return Setup(
        model="resnet9_small", augmentation=augmentation, epochs=4, batch_size=512, learning_rate=0.4, nesterov=True,
        schedule="cosine", warmup=1.0, smoothing=0.1, drop_last=True, evaluation_batch_size=2000,
    )  # fmt: skip


def lite_setup() -> Setup:
    """Return the setup of EfficientNet-Lite0 fine-tuned from ImageNet weights, on images of 128 pixels."""
    lite = AUGMENTATIONS["tiny_imagenet"].normalised_as((127 / 255,) * 3, (128 / 255,) * 3)
    return Setup(
        model="tf_efficientnet_lite0", augmentation=replace(lite, scale=(0.35, 1.0), size=128), epochs=6, batch_size=64,
        learning_rate=0.01, nesterov=True, weight_decay=1e-4, schedule="cosine", warmup=1, smoothing=0.1,
        pretrained="installed", drop_last=True, evaluation_batch_size=500,
    )  # fmt: skip


def tiny_scratch_setup() -> Setup:
    """Return the setup of ResNet-50 from scratch on Tiny ImageNet's images of 64 pixels."""
    return replace(
        lite_setup(), model="torchvision/resnet50", epochs=20, batch_size=128, learning_rate=0.1, weight_decay=5e-4,
        augmentation=replace(AUGMENTATIONS["tiny_imagenet"], scale=(0.35, 1.0), size=64), warmup=4, pretrained=None,
    )  # fmt: skip


def _methods(axes: Iterable[Axes], windows: tuple[int | None, ...], scopes: Iterable[Scope]) -> dict[str, Correction]:
    """Return the baseline, GEM, and DCL in every combination, by name."""
    found = [
        cell for scope in scopes for each in axes for cell in cells(replace(each, windows=windows, scopes=(scope,)))
    ]
    named = {cell_name(cell): cell for cell in found}
    return {"baseline": Correction(), "GEM, margin 0.5, head": Correction(name="gem"), **named}


def _rows(methods: Mapping[str, Correction], setup: Setup, data: Data, prefix: str = "") -> tuple[Row[ImageJob], ...]:
    begin = f"{prefix}, " if prefix else ""
    rows = []
    for name, method in methods.items():
        columns: dict[str, Measured] = {TEST_ERROR.key: "error"}
        job = ImageJob(setup=setup, method=method, data=data, columns=columns, short=True)
        against = None if name == "baseline" else f"{begin}baseline"
        rows.append(Row(name=f"{begin}{name}", jobs=(job,), against=against, settings=settings_of([job])))
    return tuple(rows)


def _study(name: str, lead: str, rows: tuple[Row[ImageJob], ...]) -> Study[ImageJob]:
    return Study(
        name=name, title=TITLES[name], lead=lead, rows=rows, columns=(TEST_ERROR,), notes=_NOTES, extras=extras(rows)
    )


GRIDS: dict[str, Callable[[], Study[ImageJob]]] = {
    "cifar10_grid": _cifar10_grid,
    "cifar100_noisy": _cifar100_noisy,
    "tiny_subset": _tiny_subset,
}
