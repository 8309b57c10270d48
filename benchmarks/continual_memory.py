"""Time the gradients of GEM's memory for a convolutional network: in one batched call, and task by task.

    python benchmarks/continual_memory.py --device cuda --memory 40 --channels-last
    python benchmarks/continual_memory.py --device cpu --tasks 4 --memory 32

The network is that of incremental CIFAR-100, a narrow ResNet-18. ``EpisodicMemory`` computes all tasks in one vmapped
call; ``LoopedMemory``, which the learners take for convolutions, one task after the other, on a GPU as one CUDA graph.
Both are timed in turn, and their gradients compared.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from congruency.constraints import EpisodicMemory
from congruency.continual import NarrowResNet18
from congruency.continual.learners.constrained import LoopedMemory


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tasks", type=int, default=19, help="past tasks")
    parser.add_argument("--memory", type=int, default=256, help="samples per task")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument(
        "--channels-last", action="store_true", help="as the study's runs on a GPU: in this memory format, cuDNN tuned"
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    memory_format = torch.channels_last if options.channels_last else torch.contiguous_format
    torch.backends.cudnn.benchmark = options.channels_last
    model = NarrowResNet18().to(options.device).to(memory_format=memory_format).train()
    memories = {kind.__name__: kind(model, size=options.memory) for kind in (EpisodicMemory, LoopedMemory)}
    for task in range(options.tasks + 1):
        inputs = torch.rand(options.memory, 3, 32, 32, device=options.device).to(memory_format=memory_format)
        labels = torch.randint(100, (options.memory,), device=options.device)
        for memory in memories.values():
            memory.observe(inputs, labels, task)
    seconds: dict[str, list[float]] = {name: [] for name in memories}
    for _ in range(options.repeats + 2):  # the first computes, the second captures
        found = {}
        for name, memory in memories.items():
            _wait(options.device)
            began = time.perf_counter()
            found[name] = memory.gradients()
            _wait(options.device)
            seconds[name].append(time.perf_counter() - began)
    apart = max((a - b).norm() / a.norm() for a, b in zip(*(one.values() for one in found.values()), strict=True))
    for name, times in seconds.items():
        print(f"{name:<16}{1e3 * statistics.median(times[2:]):>10.1f} ms")
    print(f"largest relative difference of a parameter's gradients: {float(apart):.1e}")


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
