"""Compare our learners with Avalanche's on MNIST rotations: accuracies over seeds, and times.

    python benchmarks/continual_peers.py --data FOLDER --avalanche .venv-avalanche/bin/python --threads 1 --seeds 5
    python benchmarks/continual_peers.py --data FOLDER --orders --tasks 5 --first-seed 1000 --seeds 40

Naive (plain SGD), ER, GEM, A-GEM and LwF have the same streams, network, initial weights, batches, memory and settings
on both sides, and one thread each by default; both measure accuracy and loss on all tasks before training and after
every task, and both times include that. Ours trains all seeds in one call, as a study does; Avalanche has no way
to, and trains one after the other. Both keep 256 random samples of each past
task, drawn differently, so that ER, GEM and A-GEM agree in distribution only: the paired difference of the final
accuracies is reported with its standard error. A step of ER takes 10 samples of the task and 10 of the memory, both in
shuffled passes over the memory (``replay_order="passes"``), as Avalanche's data loader does.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from continual import BATCH, MARGIN, MEMORY, RATE, avalanche

from congruency import datasets
from congruency.continual import LearnerConfig, Stream, rotations, run_together

LEARNERS = {
    "Naive": LearnerConfig("Naive", "single", lr=RATE),
    "ER": LearnerConfig("ER", "er", lr=RATE, replay="ring", replay_order="passes"),
    "GEM": LearnerConfig("GEM", "gem", lr=RATE, memory_margin=MARGIN),
    "A-GEM": LearnerConfig("A-GEM", "agem", lr=RATE),
    "LwF": LearnerConfig("LwF", "lwf", lr=RATE, strength=1.0, temperature=2.0),
}


def ours(streams: list[Stream], config: LearnerConfig) -> list[tuple[float, float]]:
    """Seconds per run and final accuracy of each stream, all in one call."""
    began = time.perf_counter()
    outcome = run_together(streams, [config], batch=BATCH, memory=MEMORY, agreement=False)
    seconds = (time.perf_counter() - began) / len(streams)
    return [(seconds, accuracy) for accuracy in outcome.scores().accuracy[:, 0].tolist()]


def theirs(streams: list[Stream], name: str, python: str, threads: int) -> list[tuple[float, float]]:
    """The same of Avalanche's on every stream, by another Python."""
    config = LEARNERS[name]
    found = avalanche(streams, python, threads, learner=name, strength=config.strength, temperature=config.temperature)
    return [(one["seconds"], statistics.mean(one["matrix"][-1])) for one in found]


def orders(streams: list[Stream]) -> tuple[float, float]:
    """What shuffled passes over ER's memory gain over random draws: mean of the paired difference, standard error."""
    configs = [replace(LEARNERS["ER"], replay_order=order) for order in ("random", "passes")]
    accuracy = run_together(streams, configs, batch=BATCH, memory=MEMORY).scores().accuracy
    gains = accuracy[:, 1] - accuracy[:, 0]
    return gains.mean().item(), gains.std().item() / len(gains) ** 0.5


def compared(pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> dict[str, object]:
    """Accuracies, their paired difference with its standard error, and the median times."""
    differences = [mine[1] - other[1] for mine, other in pairs]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
    seconds = [statistics.median(side) for side in zip(*((a[0], b[0]) for a, b in pairs), strict=True)]
    return {
        "accuracy": [mine[1] for mine, _ in pairs],
        "avalanche_accuracy": [other[1] for _, other in pairs],
        "difference": statistics.mean(differences),
        "standard_error": error,
        "within_two_standard_errors": abs(statistics.mean(differences)) <= 2 * error + 1e-6,  # of rounding
        "seconds": seconds[0],
        "avalanche_seconds": seconds[1],
        "times_faster": seconds[1] / seconds[0],
    }


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of data sets (default: $CONGRUENCY_DATA)")
    parser.add_argument("--avalanche", metavar="PYTHON", help="a Python that has avalanche-lib 0.6")
    parser.add_argument("--orders", action="store_true", help="instead: ER's passes over its memory and random draws")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--test", type=int, default=1000, help="test images, few since both sides' times include them")
    parser.add_argument("--learner", choices=LEARNERS, action="append", help="only this one; may be repeated")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train, test = (datasets.load("mnist", split, data=options.data) for split in ("train", "test"))
    test = test.subset(range(options.test))
    streams = [
        rotations(train, test, tasks=options.tasks, seed=seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    if options.orders:
        gain, error = orders(streams)
        print(f"ER: passes end {100 * gain:+.2f} ± {100 * error:.2f} points from random draws, {len(streams)} seeds")
        return
    if options.avalanche is None:
        parser.error("give --avalanche PYTHON, or --orders")
    result = {
        "command": f"python benchmarks/continual_peers.py --threads {options.threads} --tasks {options.tasks} "
        f"--first-seed {options.first_seed} --seeds {options.seeds} --test {options.test}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "learners": {},
    }
    for name in options.learner or LEARNERS:
        mine = ours(streams, LEARNERS[name])
        pairs = list(zip(mine, theirs(streams, name, options.avalanche, options.threads), strict=True))
        result["learners"][name] = compared(pairs)
        print(name, json.dumps(result["learners"][name]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
