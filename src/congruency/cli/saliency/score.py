"""``congruency saliency score``: score a folder of saliency maps."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from congruency.cli.options import option, several
from congruency.cli.saliency.options import METRICS, Device, PixelsPerDegree, check_file, device_named
from congruency.cli.saliency.references import reference_lines, warn_of_invalid
from congruency.cli.terminal import interruptible, plain_errors

if TYPE_CHECKING:
    from congruency.saliency.score_maps import MapScores


def score(
    maps: Annotated[Path, typer.Argument(
        metavar="MAPS",
        help="A folder of maps (PNG, JPEG or .npy), named like the images.",
    )],
    fixations: Annotated[Path, typer.Argument(
        metavar="FIXATIONS",
        help="A data set (OSIE, MIT1003, CAT2000, SALICON, or a folder of images with fixations.csv), or a CSV or JSON "
        "file of fixation points alone.",
    )],
    metric: Annotated[list[str] | None, several(
        "Only this metric; may be repeated. (default: all)", *METRICS,
    )] = None,
    protocol: Annotated[Literal["exact", "mit", "salicon"], option(
        "Compute metrics exactly, or as the mit or salicon benchmark does.",
    )] = "exact",
    split: Annotated[str | None, option(
        "SALICON's part (default: val), or test or train of OSIE. (default: all)", "NAME",
    )] = None,
    density: Annotated[Literal["fixations", "official"], option(
        "Truth of CC, KL and SIM: the blurred fixations, or the official maps of SALICON, MIT1003, CAT2000.",
    )] = "fixations",
    sigma: Annotated[float | None, option(
        "Blur of the densities of CC, KL, SIM. (default: one degree, or 3 % of the width)", "PIXELS",
    )] = None,
    pixels_per_degree: PixelsPerDegree = None,
    baseline: Annotated[Path | None, option(
        "Baseline map of IG, positive everywhere. (default: from the other images' fixations)", "FILE",
    )] = None,
    strict: Annotated[bool, option("Fail if a map has nan or negative values.", name="--strict")] = False,
    seed: Annotated[int, option("The seed of the protocol's random draws.", "N", min=0)] = 0,
    references: Annotated[Literal["all", "floors", "none"], option(
        "Scores to compare with: floors, such as the centre bias, and human performance, which takes longest.",
    )] = "all",
    json_out: Annotated[Path | None, option(
        "Also write the scores of every image to this file.", "FILE", name="--json",
    )] = None,
    csv_out: Annotated[Path | None, option(
        "Also write them to this file as a table, one image per line.", "FILE", name="--csv",
    )] = None,
    device: Device = "auto",
) -> None:  # fmt: skip
    """Score a folder of saliency maps of any model."""
    for path, name in ((json_out, "--json"), (csv_out, "--csv")):
        if path is not None:
            check_file(path, name)
    place = device_named(device)
    from congruency.files import finite, write_together
    from congruency.saliency.baselines import reference_scores
    from congruency.saliency.data.images import read_map
    from congruency.saliency.data.points import check_sigma
    from congruency.saliency.score_maps import open_scored, score_maps

    with interruptible("interrupted"), plain_errors():
        names = metric or list(METRICS)
        if sigma is not None:
            check_sigma(sigma)
        data = open_scored(maps, fixations, split, pixels_per_degree=pixels_per_degree)
        result = score_maps(
            maps, data, names, density=density, sigma=sigma, protocol=protocol, seed=seed, device=place,
            baseline=baseline, strict=strict,
        )  # fmt: skip
        warn_of_invalid(result.invalid, names)
        for line in _lines(result, names, protocol):
            typer.echo(line)
        floors = {}
        if references != "none":
            if references == "all":
                typer.echo("scoring what to compare with; --references floors or none is quicker", err=True)
            floors = reference_scores(
                data, None, names, people=references == "all", sigma=sigma, protocol=protocol, seed=seed, device=place,
                baseline=None if baseline is None or "IG" not in names else read_map(baseline),
                official=density == "official",
            )  # fmt: skip
        for line in reference_lines(result.means, floors, "these maps"):
            typer.echo(line)
        if json_out is not None:
            content = {"means": result.means, "images": result.images, "data": result.data, "references": floors}
            content |= {"protocol": protocol, "density": density}
            content["invalid"] = {problem.file: problem.reason for problem in result.invalid}
            write_together(json_out.parent, {json_out.name: json.dumps(finite(content), indent=2) + "\n"})
        if csv_out is not None:
            write_together(csv_out.parent, {csv_out.name: _csv(result.images, names)})


def _csv(images: dict[str, dict[str, float]], metrics: Sequence[str]) -> str:
    """Return the scores as CSV, one line per image; undefined scores are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", *metrics])
    for name, scores in images.items():
        writer.writerow([name, *("" if math.isnan(scores[metric]) else repr(scores[metric]) for metric in metrics)])
    return text.getvalue()


def _lines(result: MapScores, metrics: Sequence[str], protocol: str) -> Iterator[str]:
    from congruency.saliency.score_maps import RANK_METRICS, SCALE_DEPENDENT_METRICS

    yield result.data
    yield f"{result.scored} images scored; metrics: {protocol}"
    if result.invalid:
        yield (
            f"{len(result.invalid)} maps with nan or negative values left out, see the warnings; floors and people are "
            "scored on all images"
        )
    if result.without_fixations:
        yield f"{result.without_fixations} images without fixations left out"
    if result.resized:
        yield f"{result.resized} maps resized to their image's size"
    if result.unused:
        yield f"{result.unused} maps without an image in the set left out"
    affected = [name for name in SCALE_DEPENDENT_METRICS if name in result.means]
    if result.pictures and affected:
        yield (
            f"{result.pictures} maps are pictures, {result.eight_bits} of them of 8 bits: black is their minimum, not "
            f"0, which changes {', '.join(affected)}; use .npy files instead (saliency predict --npy)"
        )
    ranked = [name for name in RANK_METRICS if name in result.means]
    if result.eight_bits and ranked:
        yield (
            f"{result.eight_bits} maps have only 256 levels, whose ties lower {', '.join(ranked)}; maps of 16 bits or "
            ".npy do not"
        )
    undefined = [name for name in metrics if name not in result.means]
    if undefined:
        yield f"undefined for these images, as sAUC is without the fixations of others: {', '.join(undefined)}"
