"""``congruency train-lm``: train a byte-level language model with a chosen method."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from congruency.cli import options
from congruency.cli.options import CaptureFlag, CompileFlag, Corpus, Device, ModelSize, Precision, TF32Flag, option
from congruency.cli.runs import check_folder_free, check_same, report, shown
from congruency.cli.terminal import check_accelerator, check_folder, interrupted, interruptible, plain_errors

if TYPE_CHECKING:
    from congruency.language import LanguageSetup
    from congruency.report.tables import Table
    from congruency.training import TrainingConfig

_schedule = partial(option, panel="How long and how fast")


def train_lm(
    out: options.RunOut,
    corpus: Corpus = "stdlib",
    model: ModelSize = "tiny",
    context: Annotated[int | None, option("Context length in bytes. (default: the model's)", "BYTES", min=1)] = None,
    untied: Annotated[bool, option("Do not share weights between embedding and last layer.", name="--untied")] = False,
    method: Annotated[str, options.method(
        "baseline (no correction), cautious, dcl-W (DCL with a window of W steps), paper-W (the paper's equations) or "
        "anchor-W (its published code); W is 10, 50 or 200. Each option below changes one of its settings.", "NAME",
    )] = "baseline",
    window: Annotated[int | None, options.method(
        "Window of the method, such as 100. (default: the method's)", "STEPS", min=1,
    )] = None,
    floor: options.Floor = None,
    returning: options.Returning = None,
    correct: options.Correct = None,
    blocks: options.Blocks = None,
    cautious: options.CautiousFlag = None,
    rescale: options.Rescale = None,
    max_rescale: options.MaxRescale = None,
    mask_decay: options.MaskDecay = None,
    resume: options.Resume = False,
    seed: Annotated[int, option("The seed of weights and batches.", "N", min=0)] = 0,
    steps: Annotated[int, _schedule("Optimizer steps.", "N", min=1)] = 1000,
    batch_size: Annotated[int, _schedule("Windows of text per step, over all processes.", "N", min=1)] = 64,
    accumulate: Annotated[int, _schedule(
        "Number of batches into which a step's windows are divided, to save memory.", "N", min=1,
    )] = 1,
    lr: Annotated[float, _schedule("The highest learning rate.", "RATE")] = 0.001,
    warmup: Annotated[int | None, _schedule(
        "Steps over which the rate rises. (default: a tenth, at most 100)", "STEPS", min=0,
    )] = None,
    final_rate: Annotated[float, _schedule("The rate at the end, as a share of --lr.", "SHARE")] = 0.1,
    weight_decay: Annotated[float, _schedule("Weight decay of AdamW, on matrices only.", "NUMBER", min=0.0)] = 0.1,
    clip: Annotated[float, _schedule("Clip gradients to this norm; 0 for no clipping.", "NORM", min=0.0)] = 1.0,
    evaluate_every: Annotated[int | None, _schedule(
        "Steps between evaluations on held-out text, a divisor of --steps. (default: a tenth of --steps, or all)",
        "STEPS", min=1,
    )] = None,
    device: Device = "auto",
    strategy: options.Strategy = "auto",
    precision: Precision = "32",
    compile: CompileFlag = False,
    capture: CaptureFlag = False,
    tf32: TF32Flag = False,
    measure: options.Measure = "head",
    checkpoint_steps: options.CheckpointSteps = None,
    tensorboard: options.TensorBoard = False,
    progress: options.ProgressFlag = None,
) -> None:  # fmt: skip
    """Train a byte-level GPT with AdamW, with or without a correction.

        congruency train-lm --steps 200 --out runs/plain

        congruency train-lm --steps 200 --method cautious --out runs/cautious

    The default corpus is the source code of Python's standard library. The
    record (record.jsonl) has loss, congruency and times of every step and the
    validation loss of every evaluation. An interrupted run continues with
    --resume and ends with the same weights.
    """
    check_folder(out, "--out")
    check_accelerator(device)
    with interruptible(lambda: interrupted(out)), plain_errors():
        from dataclasses import replace

        from congruency.language import PRESETS, LanguageSetup, training_config
        from congruency.training import method_named

        shape = PRESETS[model] if context is None else replace(PRESETS[model], context=context)
        setup = LanguageSetup(
            shape=shape, tied=not untied, steps=steps, evaluate_steps=evaluate_every or _tenth(steps),
            batch_size=batch_size, accumulate=accumulate, learning_rate=lr,
            warmup=min(100, steps // 10) if warmup is None else warmup, final_rate=final_rate,
            weight_decay=weight_decay, clip=clip or None, seed=seed,
        )  # fmt: skip
        chosen = options.refined(
            method_named(method), floor, window=window, returning=returning, correct=correct, blocks=blocks,
            cautious=cautious, rescale=rescale, max_rescale=max_rescale, mask_decay=mask_decay,
        )  # fmt: skip
        config = training_config(
            setup, chosen, accelerator=device, strategy=strategy, precision=precision, compile=compile,
            capture=capture, tf32=tf32, measure=measure, checkpoint_steps=checkpoint_steps, tensorboard=tensorboard,
            progress=sys.stderr.isatty() if progress is None else progress,
        )  # fmt: skip
        code = run(corpus, setup, config, method, out, resume)
    raise typer.Exit(code)


def _tenth(steps: int) -> int:
    return steps // 10 if steps % 10 == 0 else steps


def run(corpus: str, setup: LanguageSetup, config: TrainingConfig, method: str, out: Path, resume: bool) -> int:
    """Train and print a summary; return the exit code: 0, or 75 if SIGTERM stopped the run."""
    from rich.console import Console

    from congruency.language import build, describe, read_corpus
    from congruency.studies.console import plain_warnings, typed
    from congruency.training import Origin, train
    from congruency.training.processes import first_process
    from congruency.training.wording import method_name

    held = check_folder_free(out, resume)
    console = Console(quiet=not first_process(), highlight=False)
    words = method_name(config.method.settings())
    with plain_warnings(first_process()):
        text = read_corpus(corpus)
        if held:
            check_same(out, describe(setup, text))
        console.print(
            f"GPT of width {setup.shape.width} and {setup.shape.layers} layers on {len(text.train):,} bytes of "
            f"{text.name}, validated on {len(text.held_out):,}; {setup.steps} steps of {setup.batch_size} windows of "
            f"{setup.shape.context} bytes, method {method}{'' if words == method else f' ({words})'}.",
            markup=False,
        )
        result = train(
            build(setup, text), config, out, resume=resume, origin=Origin(command=typed(), data=text.name, row=method)
        )
    if first_process():
        report(result, config.method, partial(_summary, context=setup.shape.context), console)
    return result.exit_code


def _summary(epochs: Sequence[Mapping[str, Any]], context: int) -> Table:
    from congruency.report.tables import Table

    rows = [
        [
            str(line["step"]), shown(line["loss"], 4), shown((line["evaluation"] or {}).get("loss"), 4),
            shown(line.get("congruency"), 3), shown(100 * line["corrected_share"], 0),
            shown(None if line["samples_per_second"] is None else context * line["samples_per_second"], 0),
        ]
        for line in epochs
    ]  # fmt: skip
    columns = ["Step", "loss", "validation loss", "congruency", "corrected, %", "bytes/s"]
    return Table("Losses in nats per byte; the training loss is the mean since the line before.", columns, rows)
