"""``congruency saliency gallery``: a page of predictions and their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruency.cli.options import option, several
from congruency.cli.saliency.options import METRICS, Device, PixelsPerDegree, device_named
from congruency.cli.saliency.references import warn_of_invalid
from congruency.cli.terminal import check_folder, interruptible, plain_errors


def gallery(
    maps: Annotated[Path, typer.Argument(
        metavar="MAPS",
        help="A folder of maps (PNG, JPEG or .npy), named like the images.",
    )],
    dataset: Annotated[Path, typer.Argument(
        metavar="DATASET",
        help="A data set: OSIE, MIT1003, CAT2000, SALICON, or a folder of images with fixations.csv.",
    )],
    out: Annotated[Path, option("The page, index.html, and its pictures.", "FOLDER")] = Path("gallery"),
    metric: Annotated[list[str] | None, several(
        "Show this metric; may be repeated. (default: NSS, sAUC, AUC, CC, KL)", *METRICS,
    )] = None,
    split: Annotated[str | None, option(
        "SALICON's part (default: val), or test or train of OSIE. (default: all)", "NAME",
    )] = None,
    sigma: Annotated[float | None, option("Blur of the densities. (default: the set's)", "PIXELS")] = None,
    pixels_per_degree: PixelsPerDegree = None,
    device: Device = "auto",
) -> None:  # fmt: skip
    """Write a sortable page with every image, where people looked, the map, its error and its scores."""
    check_folder(out, "--out")
    place = device_named(device)
    from congruency.saliency.score_maps import open_scored, score_maps
    from congruency.studies.console import command_line
    from congruency.studies.saliency.gallery import write_gallery

    with interruptible("interrupted"), plain_errors():
        if not dataset.is_dir():
            raise ValueError(f"{dataset} is not a folder; the page shows images, so give the folder of the data set")
        data = open_scored(maps, dataset, split, pixels_per_degree=pixels_per_degree)
        names = metric or ["NSS", "sAUC", "AUC", "CC", "KL"]
        scores = score_maps(maps, data, names, sigma=sigma, device=place)
        warn_of_invalid(scores.invalid, names)
        page = write_gallery(out, maps, data, scores, sigma=sigma, command=command_line())
    typer.echo(f"{len(data)} images. The page: {page}")
