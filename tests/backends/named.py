"""The backends by name, skipping those that cannot run here."""

import functools
import os

import pytest

from congruency.backends.torch import TorchBackend

ON_GPU = os.environ.get("CONGRUENCY_TEST_DEVICE", "cpu").startswith("cuda")


@functools.cache
def backend(name):
    if name == "torch":
        return TorchBackend
    if name == "native":
        if ON_GPU:
            pytest.skip("the compiled backend is for the CPU")
        return pytest.importorskip("congruency.backends.native", exc_type=ImportError).NativeBackend
    pytest.importorskip("triton", reason="Triton is not installed")
    from congruency.backends import triton

    if not ON_GPU:
        triton._CHUNK = 1024  # the interpreter is slow
    return triton.TritonBackend
