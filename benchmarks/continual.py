"""Time a GEM run on MNIST rotations: ours, a straightforward one, Avalanche's, and the limit set by the arithmetic.

    python benchmarks/continual.py --data FOLDER --threads 2
    make bench-continual DATA=FOLDER        # with Avalanche, in an environment of its own

All train on the same stream (20 tasks of 1000 samples, one epoch in batches of 10, a memory of 256 samples per task)
with the same network, initial weights and number of threads, one after the other, and evaluate all tasks after each.
Runs in float32 are chaotic, so that ours and the straightforward one diverge from each other; their accuracies are
compared in float64. The limit is the time of the run's matrix products at the rate that a large matrix product reaches
in the same process. Ours is ``run_together`` with ``agreement=False``.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import quadprog
import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency import datasets
from congruency.continual import LearnerConfig, Stream, mlp, rotations, run_together

SIZES = (784, 100, 100, 10)
MEMORY, BATCH, MARGIN, RATE = 256, 10, 0.5, 0.1


def ours(stream: Stream, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    """The batched runner with one seed and one learner, memory gradients computed only when needed."""
    began = time.perf_counter()
    config = LearnerConfig("GEM", "gem", memory_margin=MARGIN)
    outcome = run_together([stream], [config], batch=BATCH, memory=MEMORY, dtype=dtype, agreement=False)
    return {"seconds": time.perf_counter() - began, "matrix": outcome.matrix[0, 0].tolist()}


def straightforward(stream: Stream, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    """One backward pass per past task, gradients copied into columns, quadprog on the host."""
    began = time.perf_counter()
    model = mlp(SIZES, stream.seed).to(dtype)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    columns = torch.zeros(sum(p.numel() for p in parameters), len(stream) + 1, dtype=dtype)
    memory: list[tuple[Tensor, Tensor]] = []
    tests = [_floats(stream.testing(task), dtype) for task in range(len(stream))]
    matrix = []
    for task in range(len(stream)):
        inputs, labels = _floats(stream.training(task), dtype)
        for x, y in zip(inputs.split(BATCH), labels.split(BATCH), strict=True):
            for past, (kept, targets) in enumerate(memory):
                _backward(model, kept, targets)
                _store(parameters, columns, past)
            _backward(model, x, y)
            if memory:
                _store(parameters, columns, task)
                _project(parameters, columns, task)
            optimizer.step()
        memory.append((inputs[:MEMORY], labels[:MEMORY]))
        with torch.no_grad():
            matrix.append([float((model(x).argmax(1) == y).float().mean()) for x, y in tests])
    return {"seconds": time.perf_counter() - began, "matrix": matrix}


def _backward(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    model.zero_grad()
    functional.cross_entropy(model(inputs), labels).backward()


def _store(parameters: list[nn.Parameter], columns: Tensor, task: int) -> None:
    start = 0
    for p in parameters:
        columns[start : start + p.numel(), task].copy_(p.grad.flatten())
        start += p.numel()


def _project(parameters: list[nn.Parameter], columns: Tensor, task: int) -> None:
    past, gradient = columns[:, :task], columns[:, task]
    if not (past.T @ gradient < 0).any():
        return
    constraints, g = past.T.double().numpy(), gradient.double().numpy()
    gram = constraints @ constraints.T
    gram += np.eye(task) * 1e-9 * np.trace(gram)
    v = quadprog.solve_qp(gram, -(constraints @ g), np.eye(task), np.full(task, MARGIN))[0]
    corrected = torch.from_numpy(g + v @ constraints).to(gradient.dtype)
    start = 0
    for p in parameters:
        p.grad.copy_(corrected[start : start + p.numel()].view_as(p))
        start += p.numel()


def _floats(pair: tuple[Tensor, Tensor], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return pair[0].to(dtype) / 255, pair[1]


def avalanche(
    streams: Sequence[Stream], python: str, threads: int, learner: str = "GEM", **settings: float
) -> list[dict[str, object]]:
    """Avalanche's GEM, or another learner, on the same tasks, one stream after the other by another Python."""
    known = {"batch": BATCH, "memory": MEMORY, "margin": MARGIN, "rate": RATE, "threads": threads}
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / str(stream.seed) for stream in streams]
        for stream, folder in zip(streams, folders, strict=True):
            folder.mkdir()
            tasks = range(len(stream))
            torch.save(
                {
                    "weights": nn.utils.parameters_to_vector(mlp(SIZES, stream.seed).parameters()).detach(),
                    "train": [_floats(stream.training(task)) for task in tasks],
                    "test": [_floats(stream.testing(task)) for task in tasks],
                    "sizes": SIZES,
                },
                folder / "stream.pt",
            )
            chosen = {**known, **settings, "learner": learner, "seed": stream.seed}
            (folder / "settings.json").write_text(json.dumps(chosen))
        script = Path(__file__).with_name("avalanche_learners.py")
        subprocess.run([python, str(script), *map(str, folders)], check=True, stdout=subprocess.DEVNULL)
        return [json.loads((folder / "result.json").read_text()) for folder in folders]


def arithmetic(stream: Stream) -> float:
    """Floating-point operations in the matrix products of training and evaluation."""
    layers = [out * into for into, out in pairwise(SIZES)]
    forward = 2 * sum(layers)
    both = 2 * forward + 2 * sum(layers[1:])  # no derivative by the inputs
    tasks = len(stream)
    steps = [-(-len(task.train) // BATCH) for task in stream.tasks]
    learning = sum(both * (len(task.train) + steps[k] * MEMORY * k) for k, task in enumerate(stream.tasks))
    scoring = (tasks + 1) * sum(len(task.test) for task in stream.tasks) * forward
    return float(learning + scoring)


def matmul_rate(size: int = 2048, repeats: int = 10) -> float:
    """Operations per second of a large matrix product, the best of several."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        a @ b
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of data sets (default: $CONGRUENCY_DATA)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the fastest counts")
    parser.add_argument("--avalanche", metavar="PYTHON", help="a Python that has avalanche-lib 0.6")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = (datasets.load("mnist", split, data=options.data) for split in ("train", "test"))
    stream = rotations(*images, tasks=options.tasks)
    programs = {"ours": lambda: ours(stream), "straightforward": lambda: straightforward(stream)}
    if options.avalanche:
        programs["avalanche"] = lambda: avalanche([stream], options.avalanche, options.threads)[0]
    rates = [matmul_rate()]
    found = {}
    for name, program in programs.items():
        runs = [program() for _ in range(options.repeats)]
        found[name] = min(runs, key=lambda one: one["seconds"])
        rates.append(matmul_rate())
    limit = arithmetic(stream) / max(rates)
    mine = found["ours"]
    doubles = [np.array(program(stream, torch.float64)["matrix"]) for program in (ours, straightforward)]
    difference = float(np.abs(doubles[0] - doubles[1]).max())
    result = {
        "command": f"python benchmarks/continual.py --threads {options.threads} --repeats {options.repeats}",
        "threads": options.threads,
        "tasks": options.tasks,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "matmul_gflops": [rate / 1e9 for rate in rates],
        "seconds": {name: one["seconds"] for name, one in found.items()} | {"limit": limit},
        "times_faster": {n: one["seconds"] / mine["seconds"] for n, one in found.items() if n != "ours"},
        "times_the_limit": mine["seconds"] / limit,
        "final_accuracy": {name: float(np.mean(one["matrix"][-1])) for name, one in found.items()},
        "largest_difference_in_accuracy_in_float64": difference,
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
