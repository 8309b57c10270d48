"""Time the two passes over one reference against SGD's own step: python benchmarks/native.py [case ...]

All contenders take turns in one process. A round counts only if nothing else used the processors meanwhile; medians
over such rounds are printed, in microseconds, and how many they were. With --cold the caches are filled with other
data before every turn, as a forward and backward pass would do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from congruency.kernels import native
from congruency.kernels.rows import HostSweep, Piece, Strand


def resnet50() -> list[tuple[int, ...]]:
    """The shapes of its 161 parameters."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(count):
            for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if i == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


CASES: dict[str, list[tuple[int, ...]]] = {
    "1e4": [(10**4,)],
    "1e5": [(10**5,)],
    "mlp": [(100, 784), (100,), (100, 100), (100,), (10, 100), (10,)],
    "1e6": [(10**6,)],
    "1e7": [(10**7,)],
    "2.5e7": [(25 * 10**6,)],
    "resnet50": resnet50(),
    "1e8": [(10**8,)],
}


def contenders(shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], object]]:
    """What is timed, on parameters of these shapes."""
    parameters = [torch.nn.Parameter(0.01 * torch.randn(shape)) for shape in shapes]
    references = [parameter.detach() + 1e-3 * torch.randn_like(parameter) for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.SGD(parameters, lr=1e-9, momentum=0.9, foreach=True)
    optimizer.step()
    pieces = [
        Piece(parameter.grad, [Strand([reference, parameter.detach()], True)], 0)
        for parameter, reference in zip(parameters, references, strict=True)
        if parameter.grad is not None
    ]

    def read() -> None:
        for piece in pieces:
            for tensor in (piece.gradient, *piece.strands[0].tensors):
                tensor.sum()

    def both(kind: type[native.Sweep] | type[HostSweep]) -> None:
        sweep = kind(pieces, 1, 1)
        sweep.moments()
        sweep.add_combination([[1e-9]])

    def both_and_step() -> None:
        both(native.Sweep)
        optimizer.step()

    return {
        "step": optimizer.step,
        "prepare": lambda: native.Sweep(pieces, 1, 1),
        "pass 1": lambda: native.Sweep(pieces, 1, 1).moments(),
        "passes": lambda: both(native.Sweep),
        "passes+step": both_and_step,
        "torch pass 1": lambda: HostSweep(pieces, 1, 1).moments(),
        "torch passes": lambda: both(HostSweep),
        "read": read,
    }


def others() -> float:
    """Seconds of processor time that anybody but this process has used since the machine was started."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    times = os.times()
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - times.user - times.system


def one_round(functions: dict[str, Callable[[], object]], repeats: int, other: torch.Tensor | None) -> dict[str, float]:
    """The median time of each function over ``repeats`` turns, in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            if other is not None:
                other.add_(1)
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def quiet_rounds(
    functions: dict[str, Callable[[], object]], wanted: int, patience: float, other: torch.Tensor | None
) -> list[dict[str, float]]:
    """Rounds of a third of a second or more, in which the others used less than a few hundredths of one processor."""

    def quiet(work: Callable[[], object]) -> bool:
        used, wall = others(), time.perf_counter()
        work()
        return others() - used < 0.03 * (time.perf_counter() - wall) + 0.02

    begin = time.perf_counter()
    one_round(functions, 2, other)
    repeats = max(1, round(0.7 / (time.perf_counter() - begin)))
    rounds: list[dict[str, float]] = []
    deadline = time.perf_counter() + patience
    while len(rounds) < wanted and time.perf_counter() < deadline:
        if quiet(lambda: time.sleep(0.3)):
            results: list[dict[str, float]] = []
            if quiet(lambda: results.append(one_round(functions, repeats, other))):  # noqa: B023
                rounds += results
    return rounds


def main() -> None:
    """Print two lines a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=15, help="quiet rounds wanted")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for them, for each case")
    parser.add_argument("--cold", action="store_true", help="empty the caches before every turn")
    options = parser.parse_args()
    other = torch.zeros(10**8) if options.cold else None
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for case in options.cases or CASES:
        elements = sum(torch.Size(shape).numel() for shape in CASES[case])
        rounds = quiet_rounds(contenders(CASES[case]), options.rounds, options.patience, other)
        if not rounds:
            print(f"{case}: the machine was never quiet")
            continue
        medians = {name: statistics.median(result[name] for result in rounds) for name in rounds[0]}
        print(f"{case} ({elements} elements, {len(rounds)} rounds)")
        print("   " + ", ".join(f"{name} {value:.1f}" for name, value in medians.items()))
        step = medians["step"]
        print(
            f"   in steps: pass 1 {medians['pass 1'] / step:.2f}, passes {medians['passes'] / step:.2f}, "
            f"added to a step {medians['passes+step'] / step - 1:.2f}, torch's {medians['torch passes'] / step:.2f}; "
            f"GB/s: read {12e-3 * elements / medians['read']:.1f}, pass 1 {12e-3 * elements / medians['pass 1']:.1f}, "
            f"pass 2 {16e-3 * elements / (medians['passes'] - medians['pass 1']):.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
