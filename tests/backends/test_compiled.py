"""The Triton kernels compiled for a GPU: the interpreter runs what the compiler may refuse, and rounds differently."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from congruency.backends import kernels


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(name, hash, PTX) of everything that is compiled for an H100 or H200; no GPU is needed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    script = Path(__file__).parent / "compiled_kernels.py"
    command = [sys.executable, "-W", "error::UserWarning", str(script), "90"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kernel_is_compiled(compiled):
    assert {name for name, _, _ in compiled} == set(kernels.__all__)


def test_programs_that_wait_for_each_other_see_what_the_others_wrote(compiled):
    """Atomics order the memory accesses of the whole GPU; those of the kernel that solves, too."""
    atomics = {name: set(re.findall(r"\batom\.\S*", ptx)) for name, _, ptx in compiled}
    assert {name for name, found in atomics.items() if found} == {"correct", "solve_many", "tick"}
    assert all(each.startswith("atom.global.gpu.acq_rel.") for found in atomics.values() for each in found)


@pytest.mark.parametrize("kernel", ["solve_many", "sum_units"])
def test_one_kernel_serves_all_numbers_of_constraints(compiled, kernel):
    """GEM has one constraint more with every task: its solver is not compiled anew for each."""
    alike = [hash for name, hash, _ in compiled if name == kernel][-3:]  # 5, 6 and 16 constraints
    assert len(set(alike)) == 1


def test_a_step_is_rounded_as_the_optimizer_rounds(compiled):
    """No product is fused with what it is subtracted from: a weight that has only decayed has made no step."""
    fused = {name: "fma." in ptx for name, _, ptx in compiled}
    assert fused["gram"]
    assert not fused["element"]
