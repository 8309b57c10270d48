"""Tuned comparisons on image classifiers as plain data: training from scratch, and fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from congruency.classification.augmentation import AUGMENTATIONS
from congruency.classification.optimizers import SGD_NAME
from congruency.classification.task import Setup
from congruency.studies.classification.grids import (
    CORRECTED_NOTE,
    TEST_ERROR,
    fast_setup,
    lite_setup,
    tiny_scratch_setup,
)  # fmt: skip
from congruency.studies.classification.jobs import Data, ImageJob, changed_job, describe_changes
from congruency.studies.tuned import Methods, TunedStudy
from congruency.training.config import Correction

ROWS = ("cautious", "dcl-50", "floor-50", "paper-50", "update-50", "anchor-50")
"""The default methods that a table compares with the baseline."""


@dataclass(frozen=True, kw_only=True)
class TunedTable:
    """The runs of a table, without method, learning rate and seed.

    Attributes:
        rates: Grid of learning rates.
        seeds: Default number of seeds.
        rows: Methods compared with the baseline by default.
        families: Families of :data:`congruency.training.FAMILIES` compared if variants are tuned too.
    """

    title: str
    lead: str
    setup: Setup
    data: Data
    rates: tuple[float, ...]
    seeds: int
    rows: tuple[str, ...] = ROWS
    families: tuple[str, ...] = ("gem", "cautious", "concentrate", "concentrate-update", "anchor", "anchor-update")


_CIFAR = (
    "{network} in batches of {batch}: SGD with Nesterov's momentum, a rate that rises over {rise} of the run and falls "
    "to 0 along a cosine, weight decay 5e-4, label smoothing {smoothing}; crops of 32 from images padded by 4, and "
    "flips."
)
_RESNET9 = replace(fast_setup(AUGMENTATIONS["cifar10"]), model="resnet9", epochs=12, warmup=3.0)
_LARGE = replace(_RESNET9, epochs=30, batch_size=128, warmup=5.0, evaluation_batch_size=1000)
_TINY = (
    "Whatever part of Tiny ImageNet is in the data folder, all 200 classes. {network}, in batches of {batch} at {size} "
    "pixels: {optimizer}, a rate that rises over {rise} of the run and falls to 0 along a cosine, weight decay "
    "{decay}, label smoothing 0.1; random resized crops (from 35 % of the area) and flips; tested on the whole "
    "validation images."
)
_FINE_TUNING = ("cautious", "concentrate", "anchor-start", "l2sp")


def _paper_rows(window: str) -> tuple[str, ...]:
    """Return GEM and both forms of DCL on the last layer, as in the paper, DCL on all layers, and Cautious."""
    return ("gem", f"head-{window}", f"head-anchor-{window}", "paper-50", "cautious")


def _large(network: str, model: str, window: str) -> TunedTable:
    """Return the table of one of the paper's networks on CIFAR-10, with the paper's window."""
    return TunedTable(
        title=f"CIFAR-10, {network}",
        lead=_CIFAR.format(network=network, batch=128, rise="a sixth", smoothing=0.1),
        setup=replace(_LARGE, model=model),
        data=Data(name="cifar10", classes=10),
        rates=(0.05, 0.1, 0.2),
        seeds=3,
        rows=_paper_rows(window),
    )


def _tiny(
    network: str, model: str, window: str, *, seeds: int, pretrained: str | bool = False, optimizer: str = SGD_NAME
) -> TunedTable:
    """Return the table of a network on Tiny ImageNet, with the paper's window."""
    sgd = optimizer == SGD_NAME
    setup = replace(lite_setup(), optimizer=optimizer, weight_decay=1e-4 if sgd else 0.05)
    setup = replace(setup if pretrained else tiny_scratch_setup(), model=model, pretrained=pretrained or None)
    if model != lite_setup().model:
        usual = AUGMENTATIONS["tiny_imagenet"]  # only Lite0's weights need another normalisation
        setup = replace(setup, augmentation=setup.augmentation.normalised_as(usual.mean, usual.std))
    rates = (0.0025, 0.005, 0.01, 0.02, 0.04) if pretrained else (0.025, 0.05, 0.1, 0.2, 0.4)
    return TunedTable(
        title=f"Tiny ImageNet, {network} {'fine-tuned' if pretrained else 'from scratch'}"
        f"{' with SGD' if sgd and pretrained else ''}",
        lead=_TINY.format(
            network=f"{network} from {'its ImageNet weights' if pretrained else 'scratch'}", batch=setup.batch_size,
            size=setup.augmentation.size, optimizer="SGD with Nesterov's momentum" if sgd else "AdamW",
            rise="a sixth" if pretrained else "a fifth", decay=f"{setup.weight_decay:g}",
        ),
        setup=setup,
        data=Data(name="tiny_imagenet", classes=200),
        rates=rates if sgd else (0.000125, 0.00025, 0.0005, 0.001, 0.002),
        seeds=seeds,
        rows=_paper_rows(window),
        families=_FINE_TUNING if pretrained else TunedTable.families,
    )  # fmt: skip


TUNED: dict[str, TunedTable] = {
    "cifar10_resnet9": TunedTable(
        title="CIFAR-10, ResNet-9",
        lead=_CIFAR.format(network="ResNet-9", batch=512, rise="a quarter", smoothing=0.1),
        setup=_RESNET9,
        data=Data(name="cifar10", classes=10),
        rates=(0.1, 0.2, 0.4, 0.8, 1.6),
        seeds=20,
    ),
    "cifar100_resnet9": TunedTable(
        title="CIFAR-100, ResNet-9",
        lead=_CIFAR.format(network="ResNet-9", batch=512, rise="a quarter", smoothing=0),
        setup=replace(_RESNET9, augmentation=AUGMENTATIONS["cifar100"], smoothing=0.0),
        data=Data(name="cifar100", classes=100),
        rates=(0.1, 0.2, 0.4, 0.8, 1.6),
        seeds=20,
    ),
    "cifar10_resnext29": _large("ResNeXt-29 (16x64d)", "resnext29_16x64", "inf"),
    "cifar10_densenet100": _large("DenseNet-100-12", "densenet100_12", "90"),
    "tiny_lite0": replace(
        _tiny("EfficientNet-Lite0", "tf_efficientnet_lite0", "8", seeds=10, pretrained="installed", optimizer="adamw"),
        rows=(*ROWS, "cautious-plain"),
    ),
    "tiny_lite0_sgd": _tiny("EfficientNet-Lite0", "tf_efficientnet_lite0", "8", seeds=10, pretrained="installed"),
    "tiny_lite0_scratch": _tiny("EfficientNet-Lite0", "tf_efficientnet_lite0", "8", seeds=10),
    "tiny_resnet50": _tiny("ResNet-50", "torchvision/resnet50", "60", seeds=5, pretrained=True),
    "tiny_resnet50_scratch": _tiny("ResNet-50", "torchvision/resnet50", "60", seeds=5),
    "tiny_resnet101": _tiny("ResNet-101", "torchvision/resnet101", "60", seeds=5, pretrained=True),
    "tiny_resnet101_scratch": _tiny("ResNet-101", "torchvision/resnet101", "60", seeds=5),
}
"""The tables by name."""


def tuned_study(
    name: str,
    methods: Methods,
    rates: Sequence[float] = (),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> TunedStudy[ImageJob]:
    """Return the study of a table in :data:`TUNED`; ``changes`` are changed attributes of its setup."""
    table = TUNED[name]

    def job(method: Correction, rate: float) -> ImageJob:
        made = ImageJob(
            setup=replace(table.setup, learning_rate=rate), method=method, data=table.data,
            columns={TEST_ERROR.key: "error"}, short=True, curves=True,
        )  # fmt: skip
        return changed_job(made, changes)

    others = describe_changes({key: value for key, value in changes.items() if key != "epochs"})
    lead = (
        table.lead, f"{changes.get('epochs', table.setup.epochs)} epochs.", others,
        "Within a seed all methods begin with the same weights and see the same batches.",
    )  # fmt: skip
    return TunedStudy(
        name=name,
        title=table.title,
        lead=" ".join(filter(None, lead)),
        job=job,
        methods=methods,
        rates=tuple(rates) or table.rates,
        column=TEST_ERROR,
        curve="test_error",
        notes=(("Test error", "After the last epoch, on the test images."), CORRECTED_NOTE),
    )
