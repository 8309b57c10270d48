"""Catalogue of the paper's tables and figures and of our own studies: commands, data sets and running times.

``congruency reproduce --list`` only lists the tables that it runs; the catalogue also has the figures.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from congruency.studies.classification.tuned import TUNED
from congruency.studies.image_tables import TITLES
from congruency.studies.saliency.recipes import NETWORK_METHODS

Family = Literal["continual", "classification", "tuned", "saliency", "language", "analysis", "drawing"]
"""The first five are subcommands of ``congruency reproduce``."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One table, figure or study.

    Attributes:
        place: its place in the paper; empty for our own.
        name: its name in the catalogue, accepted by ``congruency reproduce FAMILY`` if ``runs`` is True.
        commands: the commands that make it, in order, without ``congruency``; ``{out}`` stands for the folder of
            results. Empty for a drawing.
        data: the data sets that it needs.
        takes: running time, and whether it is measured or estimated.
        seeds: number of seeds planned; None if not fixed.
        runs: whether ``congruency reproduce FAMILY NAME`` runs it.
        remark: what is missing or different.
    """

    place: str = ""
    name: str
    title: str
    family: Family
    commands: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    takes: str = "not measured"
    seeds: int | None = None
    runs: bool = False
    remark: str = ""


UNAVAILABLE = {"SALICON": "SALICON", "MIT1003": "MIT1003", "imagenet": "ImageNet"}
"""Data sets that we do not have and measure nothing on, by their names in :attr:`Entry.data`."""

_HOURS = "hours to days of a GPU per run (estimate)"


def _measured(time: str, *how: str) -> str:
    """Describe a measured running time and its machine."""
    return ", ".join([f"{time} on one NVIDIA H200", *how]) + " (measured)"


def _table(place: str, name: str, title: str, family: Family, *, folder: str = "", **more: object) -> Entry:
    """Return a table that ``congruency reproduce`` runs; results go to ``folder``, by default named like the table."""
    data = " --data FOLDER" if "data" in more else ""
    seeds = f" --seeds {more['seeds']}" if "seeds" in more else ""
    command = f"reproduce {family} {name}{data}{seeds} --out {{out}}/{folder or name}"
    settings: dict[str, object] = {"commands": (command,), **more}
    return Entry(place=place, name=name, title=title, family=family, runs=True, **settings)  # type: ignore[arg-type]


def _figure(number: int, name: str, title: str, *commands: str, family: Family = "analysis", **more: object) -> Entry:
    place = f"Figure {number}"
    return Entry(place=place, name=name, title=title, family=family, commands=commands, **more)  # type: ignore[arg-type]


def _report(name: str, *runs: str) -> str:
    """Return the command that writes a report on runs, and its numbers, into a folder of results."""
    return f"report {' '.join(runs)} -o {{out}}/{name}/report.html --json {{out}}/{name}/results.json"


def _drawing(number: int, title: str) -> Entry:
    return _figure(number, f"figure_{number}", title, family="drawing", remark="a drawing, nothing is measured in it")


_OSIE_ORDERS = (
    "saliency osie osie.pt --model salicon --backbone resnet50 --optimizer adam --method baseline --method GEM "
    "--method DCL-inf-1 --method 'DCL-inf-1 anchor' --order {order} --out runs/osie-{order}"
)
_RESNEXT = (
    "reproduce classification cifar --row 'ResNeXt-29 SGD' --row 'ResNeXt-29 SGD GEM' --row 'ResNeXt-29 SGD DCL-inf-1' "
    "--data FOLDER --out runs/cifar"
)
_RESNET = (
    "reproduce classification tiny_imagenet --row 'ResNet-101 SGD' --row 'ResNet-101 SGD GEM' "
    "--row 'ResNet-101 SGD DCL-60-1' --record-steps 1 --data FOLDER --out runs/tiny"
)

_RESNET9 = ("cifar10_resnet9", "cifar100_resnet9")
_FINE_TUNED = (
    "train --dataset tiny_imagenet --data FOLDER --model tf_efficientnet_lite0 --pretrained installed --size 128 "
    "--optimizer adamw --lr 0.0005 --weight-decay 0.05 --epochs 6 --warmup 1 --batch-size 64 --smoothing 0.1"
)

CLEAN_TENTH = (
    "single", "ResNet GEM", "ResNet GEM, margin 0", *(f"ResNet DCL-{window}-1 MEM" for window in (4, 8, 12, 20, 50)),
    "ER", "DER++",
)  # fmt: skip
"""Rows on incremental CIFAR-100; those of DCL in both modes, with both margins."""

CATALOGUE: tuple[Entry, ...] = (
    _table(
        "Table 1", "salicon", "saliency, trained on SALICON and scored on its validation set", "saliency",
        data=("SALICON",), seeds=3,
    ),
    _table(
        "Table 2", "osie", "saliency, trained on OSIE and scored on MIT1003", "saliency", data=("OSIE", "MIT1003"),
        folder="osie_mit1003", seeds=3,
    ),
    _table(
        "Table 3", "mnist_r", "MNIST rotations", "continual", data=("mnist",), seeds=20,
        takes=_measured("82 seconds for 19 rows and 20 seeds"),
    ),
    _table(
        "Table 4", "mnist_p", "MNIST permutations", "continual", data=("mnist",), seeds=20,
        takes=_measured("63 seconds for 19 rows and 20 seeds"),
    ),
    _table(
        "Table 5", "icifar100", "incremental CIFAR-100", "continual", data=("cifar100",), seeds=3,
        takes="5 minutes of a GPU for a row and a seed, 1 with --labels clean (estimate)",
        remark="the paper's rows with EfficientNet are run with --model",
    ),
    _table(
        "Table 6", "cifar", TITLES["cifar"], "classification",
        data=("cifar10", "cifar100"), takes=_HOURS,
    ),
    _table(
        "Table 7", "tiny_imagenet", TITLES["tiny_imagenet"], "classification",
        data=("tiny_imagenet",), takes=_HOURS,
    ),
    _table(
        "Table 8", "imagenet", TITLES["imagenet"], "classification", data=("imagenet",),
        takes=_HOURS,
    ),
    _table(
        "Table 9", "from_scratch", TITLES["from_scratch"], "classification", data=("tiny_imagenet",), takes=_HOURS,
    ),
    _table(
        "Tables 10 and 11", "cost", TITLES["cost"], "classification",
        remark="on synthetic images", takes=_measured("4 minutes for 3 seeds"),
    ),
    _table(
        "Table 12, left", "cost_window", TITLES["cost_window"], "classification",
        remark="on synthetic images", takes=_measured("2 minutes for 3 seeds"),
    ),
    _table(
        "Table 12, right", "cost_references", TITLES["cost_references"], "classification",
        remark="on synthetic images", takes=_measured("2 minutes for 3 seeds"),
    ),
    _drawing(1, "what congruency means, in three samples of saliency"),
    _drawing(2, "a training step with DCL"),
    _drawing(3, "the constraints of two reference points"),
    _drawing(4, "the effective window"),
    _figure(
        5, "illustrate", "paths of three optimizers over a surface, with and without DCL",
        "illustrate --out {out}/illustrate",
        takes="about 10 seconds on one CPU core (measured)",
    ),
    _drawing(6, "DCL beside GEM"),
    _figure(
        7, "saliency_pairs", "congruency of pairs of samples, saliency",
        "saliency prepare FOLDER/osie osie.pt",
        "saliency osie osie.pt --model salicon --backbone resnet50 --optimizer rmsprop --out runs",
        "pairs runs/runs/resnet-50-rmsp_epochs-20_halve_every-2_delay-1/seed-0/model.pt --dataset osie.pt "
        "--out {out}/saliency_pairs",
        data=("OSIE",), remark="the paper draws its samples from SALICON",
    ),
    _figure(
        8, "class_pairs", "congruency of pairs of samples, classification",
        *(f"{_FINE_TUNED} --seed {seed} --out runs/pairs-{seed}" for seed in range(5)),
        f"pairs {' '.join(f'runs/pairs-{seed}' for seed in range(5))} --dataset tiny_imagenet --data FOLDER "
        "--split train --classes tabby 'Egyptian cat' --other 'German shepherd' --samples 33 --out {out}/class_pairs",
        data=("tiny_imagenet",), remark="the paper's network is a ResNet-101",
    ),
    _figure(
        9, "ablation", "window and number of references against the error or the score",
        "ablate 'tiny_imagenet/ResNet-101 SGD' --window 5 10 20 50 70 100 none --references 1 "
        "--mode concentrate anchor --data FOLDER --out {out}/ablation_windows",
        "ablate 'tiny_imagenet/ResNet-101 SGD' --window 50 --references 1 5 10 15 20 "
        "--mode concentrate anchor --data FOLDER --out {out}/ablation_references",
        data=("tiny_imagenet",), takes=_HOURS, remark="the paper's left half is on SALICON",
    ),
    _figure(
        10, "saliency_congruency", "congruency over epochs, saliency, with independent and with fixed sample orders",
        "saliency prepare FOLDER/osie osie.pt",
        _OSIE_ORDERS.format(order="independent"),
        _OSIE_ORDERS.format(order="fixed"),
        _report("saliency_congruency", "runs/osie-independent", "runs/osie-fixed"),
        data=("OSIE",),
        remark="the paper has SALICON too: reproduce saliency salicon --order",
    ),
    _figure(
        11, "memory_agreement", "cosine of updates with the gradients of the memory, by task",
        "reproduce continual mnist_r --data FOLDER --seeds 20 --out {out}/mnist_r",
        "reproduce continual mnist_p --data FOLDER --seeds 20 --out {out}/mnist_p",
        "reproduce continual icifar100 --data FOLDER --seeds 3 --out {out}/icifar100",
        data=("mnist", "cifar100"),
        remark="the pages of Tables 3 to 5 have the curves",
    ),
    _figure(
        12, "congruency_curves", "congruency and magnitude over epochs, classification",
        _RESNEXT, _RESNET, _report("congruency_cifar", "runs/cifar/runs"),
        _report("congruency_tiny", "runs/tiny/runs"),
        data=("cifar10", "cifar100", "tiny_imagenet"), takes=_HOURS,
    ),
    _figure(
        13, "error_curves", "training error by iteration, and its mean and deviation by epoch",
        _RESNET, _report("error_curves", "runs/tiny/runs"),
        data=("tiny_imagenet",), takes=_HOURS,
    ),
    _figure(
        14, "validation_loss", "validation loss by epoch or task",
        _RESNET, _report("validation_loss_tiny", "runs/tiny/runs"),
        "reproduce saliency salicon --data FOLDER --seeds 3 --out runs/salicon",
        _report("validation_loss_salicon", "runs/salicon/runs"),
        "reproduce continual icifar100 --data FOLDER --seeds 3 --out {out}/icifar100",
        data=("SALICON", "tiny_imagenet", "cifar100"), takes=_HOURS,
        remark="its middle part, by task, is on the page of Table 5; the pages of Tables 3 and 4 have the same curves",
    ),
    Entry(
        place="Theorem 1", name="bound", title="the lower bound of congruency beside what is measured",
        family="analysis", commands=("bound --out {out}/bound",),
        takes="4 seconds on one CPU core (measured)",
    ),
    _table(
        "", "cifar10_grid", TITLES["cifar10_grid"], "classification", data=("cifar10",), seeds=20,
        takes=_measured("20 seconds per seed", "with --compile --processes 2 and after a minute of compilation"),
    ),
    _table(
        "", "cifar100_noisy", TITLES["cifar100_noisy"], "classification", data=("cifar100",), seeds=10,
        takes=_measured("3 minutes for 10 seeds", "with --compile --processes 2"),
    ),
    _table(
        "", "tiny_subset", TITLES["tiny_subset"], "classification", data=("tiny_imagenet",), seeds=5,
        takes=_measured("6 minutes for 3 seeds", "with --processes 2"),
    ),
    Entry(
        name="icifar100_clean_tenth", family="continual", data=("cifar100",), seeds=10,
        title="incremental CIFAR-100, clean images only, with a tenth of them in the memory; ER and DER++ beside",
        commands=(
            "reproduce continual icifar100 --labels clean --memory 40 --part all "
            f"{' '.join(f'--row {shlex.quote(name)}' for name in CLEAN_TENTH)} "
            "--data FOLDER --seeds 10 --device cuda --processes 14 --out {out}/icifar100_clean_tenth",
        ),
        remark="the paper keeps a tenth too, 256 of 2500",
    ),
    *(
        Entry(
            name=f"split_mnist_{scenario}", family="continual", data=("mnist",), seeds=20,
            title=f"split MNIST, {scenario}-incremental: losses, GEM, and both together",
            commands=(
                f"reproduce continual split_mnist --scenario {scenario} --data FOLDER --seeds 20 "
                f"--out {{out}}/split_mnist_{scenario}",
            ),
            takes=takes,
        )
        for scenario, takes in (
            ("class", "14 minutes on one CPU core, beside other work (measured)"),
            ("task", "7 minutes on one CPU core, beside other work (measured)"),
        )
    ),
    Entry(
        name="osie_study", title="saliency on OSIE alone: 500 images to train on, 200 to score", family="saliency",
        commands=(
            "saliency prepare FOLDER/osie osie.pt",
            "saliency osie osie.pt --model dinet4 --delay 0 --lite-weights FILE --epochs 6 --scratch-epochs 6 "
            "--precision bf16 --out {out}/osie",
        ),
        data=("OSIE",), seeds=5,
        takes=_measured("12 minutes for 16 rows and 5 seeds", "beside other work"),
    ),
    Entry(
        name="saliency_networks",
        title="saliency on OSIE: the published DINet and SALICON, every correction, windows and numbers of references",
        family="saliency",
        commands=(
            "saliency osie FOLDER/osie --model dinet --model salicon --optimizer adam "
            f"{' '.join(f'--method {shlex.quote(name)}' for name in NETWORK_METHODS)} "
            "--lite-weights FILE --no-scratch --precision bf16 --seeds 10 --processes 4 --out {out}/osie_networks",
        ),
        data=("OSIE",), seeds=10,
    ),
    *(
        _table(
            "", name, f"{table.title}: each method at its best rate", "tuned", data=(table.data.name,),
            seeds=table.seeds,
            remark="needs ImageNet weights, from the network or a file" if table.setup.pretrained is True else "",
        )
        for name, table in TUNED.items()
    ),
    *(
        Entry(
            name=f"{name}{longer and '_30'}_screened", family="tuned", data=(TUNED[name].data.name,), seeds=seeds,
            title=f"{TUNED[name].title}{longer}: each family with its best window, margin or strength",
            commands=(
                f"reproduce tuned {name} --data FOLDER --screen {options} --seeds {seeds} "
                f"--out {{out}}/{name}{longer and '_30'}_screened",
            ),
        )
        for name, longer, seeds, options in (
            *((cifar, "", 20, "--rate 0.4 --rate 0.8 --tuning-seeds 2") for cifar in _RESNET9),
            *((cifar, ", 30 epochs", 10, "--epochs 30 --rate 0.6 --tuning-seeds 1") for cifar in _RESNET9),
            ("tiny_lite0", "", 10, "--rate 0.00025 --rate 0.0005 --rate 0.001 --tuning-seeds 1"),
            ("tiny_lite0_sgd", "", 10, "--rate 0.005 --rate 0.01 --rate 0.02 --tuning-seeds 1"),
        )
    ),
    *(
        _table(
            "", size, f"a byte-level GPT of {parameters} million parameters: AdamW with each correction, rates tuned",
            "language", folder=f"language_{size}", seeds=seeds,
        )
        for size, parameters, seeds in (("tiny", "0.1", 12), ("10m", "10.8", 8), ("100m", "99.7", 3))
    ),
)  # fmt: skip
"""All entries in the order of the paper, tables first, our own last."""


def runnable() -> dict[str, Entry]:
    """Return the entries that ``congruency reproduce`` runs, by name."""
    return {entry.name: entry for entry in CATALOGUE if entry.runs}


def commands_of(entry: Entry, out: str = "results") -> list[str]:
    """Return the full commands of an entry, with results in folders of ``out``."""
    return [f"congruency {command.format(out=out)}" for command in entry.commands]
