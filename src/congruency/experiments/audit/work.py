"""``congruency audit``: a checkpoint looked at once, or a network trained and followed, up to what a page shows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from congruency.experiments.audit.audit import Plan, audited, run
from congruency.experiments.audit.checkpoint import look
from congruency.experiments.audit.flipping import check_share
from congruency.experiments.audit.images import ImageSource, read
from congruency.experiments.audit.quality import check_installed
from congruency.experiments.audit.result import Result
from congruency.experiments.audit.subject import Network
from congruency.experiments.audit.training import Training, check_folds
from congruency.experiments.classification.sets import ImageOptions, augmentation
from congruency.experiments.classification.task import Setup
from congruency.experiments.progress import progress

__all__ = ["look_at", "train_and_follow"]

_ONCE = (
    "One checkpoint is looked at once. A network that is trained here (congruency audit NETWORK) is followed over its "
    "epochs, and compared with cleanlab, which needs trainings of its own."
)
_PART = "This is a part of the set only; without --per-class the whole set is audited."


def look_at(checkpoint: Path, source: ImageSource, command: str) -> Result:
    """Every sample by the network of a checkpoint, as it is there."""
    began = time.perf_counter()
    looked = look(checkpoint, source)
    return Result(
        audits=[audited("-", looked.images.images.labels, looked.followed)],
        images=looked.images,
        about=f"{looked.about}.",
        command=command,
        remarks=(*looked.remarks, _ONCE),
        seconds=time.perf_counter() - began,
    )


def train_and_follow(
    network: Network,
    source: ImageSource,
    command: str,
    *,
    flip: float | None = None,
    seeds: int = 1,
    folds: int | None = 5,
    device: str = "auto",
) -> Result:
    """Every sample over the training of a network, from each of so many seeds; see :class:`Plan`."""
    began = time.perf_counter()
    if flip is not None:
        check_share(flip)
    if folds is not None:
        check_installed()
    source = replace(source, per_class=source.per_class or network.per_class)
    named = read(source, size=network.size)
    images, settings = named.images, network.settings
    if folds is not None:
        check_folds(folds, len(images))
    options = ImageOptions(source=source.name, folder=source.folder, size=network.size)
    made = augmentation(options, images, settings["model"], bool(settings.get("pretrained")))
    training = Training(setup=Setup(augmentation=made, **settings), method=network.method, device=device)
    plan = Plan(training=training, seeds=range(seeds), flip=flip, folds=folds)
    with progress(Console(stderr=True), "trainings") as tell:
        audits = run(plan, images, tell)
    return Result(
        audits=audits,
        images=named,
        about=_about(network, plan, source, len(images)),
        command=command,
        flip=flip,
        folds=folds,
        remarks=() if source.per_class is None else (_PART,),
        seconds=time.perf_counter() - began,
    )


def _about(network: Network, plan: Plan, source: ImageSource, count: int) -> str:
    setup, seeds = plan.training.setup, len(plan.seeds)
    part = f", the first {source.per_class} of every class" if source.per_class else ""
    flipped = ""
    if plan.flip is not None:
        flipped = f" {100 * plan.flip:g} % of the labels were flipped by us, other ones in every seed."
    return (
        f"{network.title}, {setup.epochs} epochs of SGD in batches of {setup.batch_size} at a rate of "
        f"{setup.learning_rate:g} ({setup.schedule}), on {count} {source.kind}images of {source.title}"
        f"{part}; {seeds} {'seed' if seeds == 1 else 'seeds'}.{flipped}"
    )
