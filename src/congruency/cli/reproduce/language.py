"""``congruency reproduce language``: compare methods on a byte-level GPT, each at its best learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from congruency.cli import options
from congruency.cli.options import option


def language(
    table: Annotated[Literal["tiny", "medium", "10m", "100m"], typer.Argument(
        metavar="SIZE", help="Size of the GPT: 0.1, 0.6, 10.8 or 99.7 million parameters.",
    )],
    seeds: options.Seeds = 8,
    first_seed: options.FirstSeed = 0,
    tuning_seeds: options.TuningSeeds = 2,
    rows: options.MethodRows = None,
    rate: options.Rates = None,
    corpus: options.Corpus = "stdlib",
    out: options.TableOut = None,
    steps: Annotated[int | None, option("Other steps per run. (default: the size's)", "N", min=1)] = None,
    batch_size: Annotated[int | None, option(
        "Other windows of text per step. (default: the size's)", "N", min=1,
    )] = None,
    precision: options.Precision = "32",
    compile: options.CompileFlag = False,
    capture: options.CaptureFlag = False,
    tf32: options.TF32Flag = False,
    device: options.Device = "auto",
    processes: options.Processes = 1,
    threads: options.Threads = None,
    ray: options.Ray = None,
) -> None:  # fmt: skip
    """Compare corrections on a byte-level GPT trained with AdamW.

        congruency reproduce language tiny --row dcl-50 --seeds 3

    Every method first runs with every learning rate of one grid, on seeds of
    their own; then all methods are compared at their best rates on fresh
    seeds. The same command resumes after an interruption.
    """
    folder = (out or Path(f"congruency-language-{table}")).absolute()
    with options.studying(folder, processes, threads, ray) as place:
        from dataclasses import replace

        from congruency.studies.console import command_line, typed
        from congruency.studies.language.runner import LanguageRunner
        from congruency.studies.language.study import RATES, SETUPS, language_study, shared_settings
        from congruency.studies.network_runs import Machine, chosen_device
        from congruency.studies.tuned import conduct_tuned
        from congruency.training import choose_methods

        setup = SETUPS[table]
        if steps is not None:
            every = steps // 10 if steps % 10 == 0 else steps
            setup = replace(setup, steps=steps, evaluate_steps=every, warmup=steps // 10)
        if batch_size is not None:
            setup = replace(setup, batch_size=batch_size)
        runner = LanguageRunner(
            folder=folder, corpus=corpus if corpus == "stdlib" else str(Path(corpus).expanduser().absolute()),
            machine=Machine(
                device=chosen_device(device), precision=precision, compile=compile, capture=capture, tf32=tf32
            ),
            study=table, command=typed(),
        )  # fmt: skip
        runner = replace(runner, corpus_hash=runner.text().digest)
        settings = {
            "study": "language", "setup": shared_settings(setup), "corpus": runner.corpus_hash,
            "machine": runner.computing,
        }  # fmt: skip
        study = language_study(table, setup, choose_methods(rows or ()), tuple(dict.fromkeys(rate or RATES[table])))
        code = conduct_tuned(
            study, runner, seeds=range(first_seed, first_seed + seeds), tuning_seeds=tuning_seeds, place=place,
            settings=settings, command=command_line(),
        )  # fmt: skip
    raise typer.Exit(code)
