"""``congruency reproduce continual``: the paper's continual-learning tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from congruency.cli import options
from congruency.cli.options import option
from congruency.cli.saliency.options import Device, device_named


def continual(
    table: Annotated[Literal["mnist_r", "mnist_p", "icifar100", "split_mnist", "split_cifar10"], typer.Argument(
        metavar="TABLE",
        help="The paper's mnist_r (rotations), mnist_p (permutations) or icifar100; split_mnist or split_cifar10.",
    )],
    seeds: options.Seeds = 5,
    first_seed: options.FirstSeed = 0,
    rows: options.Rows = None,
    data: options.Data = None,
    dataset: options.Dataset = None,
    out: options.TableOut = None,
    labels: Annotated[Literal["clean", "noisy", "given"], option(
        "For a CIFAR-100 with noisy training labels: clean trains and tests on its clean test images, noisy uses the "
        "set as it is and says so.",
    )] = "given",
    model: Annotated[str | None, option("mlp, resnet, or a timm name. (default: the table's)", "NAME")] = None,
    scenario: Annotated[Literal["task", "class"] | None, option(
        "For tasks with different classes: task gives the task at test time, class does not. (default: task for "
        "icifar100, class for split sets)",
    )] = None,
    tasks: Annotated[int | None, option(
        "Number of tasks in the stream. (default: 20; 5 for split sets)", "N", min=1,
    )] = None,
    samples: Annotated[int | None, option("Samples per task. (default: the paper's)", "N", min=1)] = None,
    memory: Annotated[int, option("Samples kept per task.", "N", min=1)] = 256,
    policy: Annotated[Literal["first", "ring"], option("Which samples to keep: the first or the last seen.")] = "first",
    part: Annotated[Literal["paper", "margins", "peers", "all", "tuned"] | None, option(
        "paper: the paper's rows; margins: GEM and DCL with separate margins; peers: replay, distillation, penalties "
        "and joint training, alone and combined; all: paper and peers; tuned: plain SGD, replay, GEM, and GEM with "
        "DCL, each tuned on held-out seeds first. (default: paper; peers for split sets)",
    )] = None,
    against: Annotated[str | None, option("Compare all rows with this one. (default: the table's)", "ROW")] = None,
    tune: Annotated[Literal[
        "single", "ewc", "mas", "icarl", "lwf", "er", "der", "derpp", "gem", "dcl_memory",
    ] | None, option(
        "Instead of running the table, search settings on held-out seeds: the learning rate (single), the learning "
        "rate and the strength of a loss, GEM's margin (gem), or GEM's margin with DCL and window 10 (dcl_memory).",
    )] = None,
    device: Device = "cpu",
    processes: options.Processes = 1,
    threads: options.Threads = None,
    ray: options.Ray = None,
) -> None:  # fmt: skip
    """Run a continual-learning table of the paper.

    Every row learns every stream. The table shows means, intervals and paired
    differences next to the paper's numbers. The same command resumes after an
    interruption.
    """
    folder = out if out is not None else Path(f"congruency-{table}")
    device = device_named(device)
    with options.studying(folder, processes, threads, ray) as place:
        from congruency.studies.conduct import conduct
        from congruency.studies.console import command_line
        from congruency.studies.continual.figures import continual_figures
        from congruency.studies.continual.parts import part_study
        from congruency.studies.continual.runner import ContinualRunner
        from congruency.studies.continual.tables import AGREEMENT, ContinualJob, StreamSettings
        from congruency.studies.continual.tuning import COMPARED, best_settings, tuned_study, tuning_seeds, tuning_study
        from congruency.studies.plan import Study, pick
        from congruency.studies.results import Results
        from congruency.studies.tuned import conduct_stages

        settings = StreamSettings(
            table=table, dataset=dataset, labels=labels, model=model, scenario=scenario, tasks=tasks,
            samples=samples, memory=memory, policy=policy,
        )  # fmt: skip
        own, held_out = range(first_seed, first_seed + seeds), tuning_seeds(settings)
        large = settings.network != "mlp"  # whose agreement with the memory takes little of a step

        def carry_out(study: Study[ContinualJob], chosen: Sequence[int], where: Path) -> int:
            return conduct(
                study,
                ContinualRunner(settings, where.absolute(), data, device, large or AGREEMENT in study.columns),
                chosen,
                where,
                place=place,
                settings=settings.described(),
                command=command_line(),
                made=lambda _: f"computed on {device}",
                figures=continual_figures,
                remarks=partial(best_settings, study) if chosen == held_out else None,
            )

        if tune is not None:
            code = carry_out(tuning_study([tune], settings), held_out, folder)
        elif part == "tuned":
            tuning = tuning_study(list(COMPARED.values()), settings)

            def comparison(results: Results) -> Study[ContinualJob]:
                return pick(tuned_study(settings, tuning, results), rows or ())

            code = conduct_stages(tuning, held_out, comparison, own, carry_out, folder)
        else:
            code = carry_out(part_study(settings, rows or (), part, against), own, folder)
    raise typer.Exit(code)
