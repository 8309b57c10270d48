"""Compile the Triton kernels for a GPU that need not be there, and print what is compiled as JSON: name, hash and PTX.

The tests run this in a process of its own: where Triton's interpreter is on, nothing is compiled.
"""

import json
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from congruency.backends import Basis, ElementRule, ParameterSlice, Problem
from congruency.backends import triton as backend

CPU = torch.device("cpu")


class Target:
    """Stands for Triton's driver; nothing is launched."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", int(sys.argv[1]), 32)


def numbers(*shape, dtype=torch.float64):
    return torch.ones(shape, dtype=dtype)


def problem(n, blocks=1):
    return Problem(
        numbers(n, n), numbers(n), numbers(n), only_violated=True, gate=numbers(n, dtype=torch.bool),
        floors=numbers(n), previous=numbers(blocks, n), counts=torch.zeros(4, dtype=torch.int64), means=numbers(2, 4),
    )  # fmt: skip


def slices(n, dtype, blocks=1):
    held = torch.ones(3000, dtype=dtype)
    return [ParameterSlice(held, [Basis([held] * (n + 1), True, n - 1)], block) for block in range(blocks)]


def work():
    """Every kernel once at least."""
    scale = numbers(1, dtype=torch.float32)
    small = backend._SMALL
    for n, backend._SMALL in ((1, 0), (1, small), (2, small)):
        backend.TritonBackend(slices(n, torch.float32), n, 1, CPU).program(problem(n), scale, None)()
        passes = backend.TritonBackend(slices(n, torch.bfloat16, 2), n, 2, CPU)
        passes.apply(passes.solve(passes.gram(known=numbers(2, 1 + n, 1 + n)), problem(n, 2), scale))
    passes.gram(wide=True)
    few, backend._FEW_BLOCKS = backend._FEW_BLOCKS, 1
    backend.TritonBackend.solve(numbers(2, 4, 4), problem(3, 2))
    backend._FEW_BLOCKS = few
    for n in (5, 6, 16):
        gram = backend.TritonBackend(slices(n, torch.float32), n, 1, CPU).gram()
        backend.TritonBackend.solve(gram, problem(n))
    backend.TritonBackend.solve_dual(numbers(2, 20, 20), numbers(2, 20), numbers(20))
    target, before, gradient = (torch.ones(3000) for _ in range(3))
    passes = backend.TritonBackend([ParameterSlice(target, [Basis([before]), Basis([gradient])], 0)], 2, 1, CPU)
    rule = ElementRule(numbers(1), update=True, strict=True, mask_decay=True)
    agreement = passes.agreement(rule, numbers(1))
    passes.settle(agreement, numbers(1), 1e3, torch.zeros(4, dtype=torch.int64), numbers(2, 4))
    passes.mask(rule, numbers(1), numbers(1))
    backend.Clock.at(0, 0, 5, 1, CPU).tick([target], [[before]])
    backend.accumulate([target], [[before]], torch.tensor(0), torch.tensor(True), scale)


def main():
    triton.runtime.driver.set_active(Target())
    found = []

    def compiled_only(kernel, grid):
        def call(*arguments, **options):
            made = kernel.warmup(*arguments, grid=grid, **options)
            made = made.result() if hasattr(made, "result") else made
            found.append((kernel.fn.__name__, made.hash, made.asm["ptx"]))

        return call

    JITFunction.__getitem__ = compiled_only
    work()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
