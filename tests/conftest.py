"""What every test shares: the device under test and reproducible randomness."""

import os

DEVICE = os.environ.get("CONGRUENCY_TEST_DEVICE", "cpu")
if not DEVICE.startswith("cuda"):
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton, as timm and lightning may do

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
THREADS = max(1, (os.cpu_count() or 1) // WORKERS)
if WORKERS > 1:  # threads of two workers that wait for each other's cores make the suite several times slower
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))

import pytest  # noqa: E402
import torch  # noqa: E402

if WORKERS > 1:
    torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tests put their tensors; CONGRUENCY_TEST_DEVICE=cuda runs the same tests on a GPU."""
    return torch.device(DEVICE)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same random state."""
    torch.manual_seed(0)
