"""Methods at their best learning rates on image classifiers, as plain data: trained from scratch, and fine-tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from congruency.classification.augmentation import AUGMENTATIONS
from congruency.classification.task import Setup
from congruency.studies.classification.grids import CORRECTED_NOTE, TEST_ERROR, fast_setup, lite_setup
from congruency.studies.classification.jobs import Data, ImageJob, changed_job, describe_changes
from congruency.studies.tuned import TunedStudy
from congruency.training.config import Correction

__all__ = ["ROWS", "TUNED", "TunedTable", "tuned_study"]

ROWS = ("cautious", "dcl-50", "floor-50", "paper-50", "update-50", "anchor-50")
"""The methods of :data:`congruency.training.METHODS` that are compared with the baseline where no others are chosen."""


@dataclass(frozen=True, kw_only=True)
class TunedTable:
    """What a table trains, except for method, learning rate and seed.

    Attributes:
        rates: The grid of learning rates, the same for every method.
    """

    title: str
    lead: str
    setup: Setup
    data: Data
    rates: tuple[float, ...]


_CIFAR = (
    "ResNet-9 in batches of 512: SGD with Nesterov's momentum, a rate that rises over a quarter of the run and falls "
    "to 0 along a cosine, weight decay 5e-4, label smoothing {smoothing}; crops of 32 from images padded by 4, and "
    "flips."
)
_SCRATCH = replace(fast_setup(AUGMENTATIONS["cifar10"]), model="resnet9", epochs=12, warmup=3.0)

TUNED: dict[str, TunedTable] = {
    "cifar10_resnet9": TunedTable(
        title="CIFAR-10, ResNet-9",
        lead=_CIFAR.format(smoothing=0.1),
        setup=_SCRATCH,
        data=Data(name="cifar10", classes=10),
        rates=(0.1, 0.2, 0.4, 0.8, 1.6),
    ),
    "cifar100_resnet9": TunedTable(
        title="CIFAR-100, ResNet-9",
        lead=_CIFAR.format(smoothing=0),
        setup=replace(_SCRATCH, augmentation=AUGMENTATIONS["cifar100"], smoothing=0.0),
        data=Data(name="cifar100", classes=100),
        rates=(0.1, 0.2, 0.4, 0.8, 1.6),
    ),
    "tiny_lite0": TunedTable(
        title="Tiny ImageNet, EfficientNet-Lite0 fine-tuned",
        lead="Whatever part of Tiny ImageNet is in the data folder, all 200 classes. EfficientNet-Lite0 from its "
        "ImageNet weights, in batches of 64 at 128 pixels: AdamW, a rate that rises over a sixth of the run and falls "
        "to 0 along a cosine, weight decay 0.05, label smoothing 0.1; random resized crops (from 35 % of the area) and "
        "flips; tested on the whole validation images.",
        setup=replace(lite_setup(), optimizer="adamw", weight_decay=0.05),
        data=Data(name="tiny_imagenet", classes=200),
        rates=(0.000125, 0.00025, 0.0005, 0.001, 0.002),
    ),
}
"""The tables by name."""


def tuned_study(
    name: str, methods: Mapping[str, Correction], rates: Sequence[float] = (), changes: Mapping[str, Any] | None = None
) -> TunedStudy[ImageJob]:
    """Return a table of :data:`TUNED`; ``changes`` are other attributes of its setup, by option."""
    table, given = TUNED[name], {key: value for key, value in (changes or {}).items() if value is not None}

    def job(method: Correction, rate: float) -> ImageJob:
        made = ImageJob(
            setup=replace(table.setup, learning_rate=rate), method=method, data=table.data,
            columns={TEST_ERROR.key: "error"}, short=True, curves=True,
        )  # fmt: skip
        return changed_job(made, given)

    others = describe_changes({key: value for key, value in given.items() if key != "epochs"})
    lead = (
        table.lead, f"{given.get('epochs', table.setup.epochs)} epochs.", others,
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
