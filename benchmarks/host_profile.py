"""Profile the host's part of eager training steps on a GPU with torch.profiler, with and without a correction.

    python benchmarks/host_profile.py --out host-profile.json

For every network: microseconds that the host spends in ``optimizer.step()`` with the correction's hooks, in all of the
step, and in the calls of CUDA that launch work, and the number of those calls. The profiler makes every step slower, so
compare the columns with each other and not with a wall clock.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from congruency.studies.bench import machine, training_steps
from congruency.studies.bench_cases import training_cases

NETWORKS = ("MLP", "GPT")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync")
STEP = "one training step"


def profiled(step: Callable[[], Any], steps: int) -> dict[str, float]:
    """Return the host's microseconds and launches per step."""
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            with record_function(STEP):
                step()
        torch.cuda.synchronize()
    events = {
        event.key: event for event in profiler.key_averages() if event.device_type == torch.autograd.DeviceType.CPU
    }
    launches = [event for key, event in events.items() if key in LAUNCHES]
    optimizer = [event for key, event in events.items() if key.startswith("Optimizer.step#")]
    return {
        "optimizer.step": sum(event.cpu_time_total for event in optimizer) / steps,
        "step": events[STEP].cpu_time_total / steps,
        "launching": sum(event.self_cpu_time_total for event in launches) / steps,
        "launches": sum(event.count for event in launches) / steps,
    }


def main() -> None:
    """Profile all eager cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="steps to profile")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch.profiler's launches are those of a GPU, and PyTorch finds none here")
    device, rows = torch.device("cuda"), []
    for case in training_cases(device, quick=False):
        if case.mode != "eager" or not case.name.startswith(NETWORKS):
            continue
        programs, _, corrector = training_steps(case, device)
        found = {name: profiled(program, arguments.steps) for name, program in programs.items()}
        corrector.detach()
        correction = case.correction if case.correction == "Cautious" else f"DCL {case.references}"
        rows.append({"network": case.name, "scope": case.scope, "correction": correction, **found})
        plain, more = found["plain"], {key: found["corrected"][key] - found["plain"][key] for key in found["plain"]}
        print(
            f"{case.name:45} {case.scope:4} {correction:8} "
            + "  ".join(f"{key} {plain[key]:.0f} {more[key]:+.0f}" for key in plain),
            flush=True,
        )
    if arguments.out is not None:
        arguments.out.write_text(
            json.dumps({"machine": machine(device), "steps": arguments.steps, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
