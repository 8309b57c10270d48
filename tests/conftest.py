"""What every test shares: the device under test and reproducible randomness."""

import os

DEVICE = os.environ.get("CONGRUENCY_TEST_DEVICE", "cpu")
if not DEVICE.startswith("cuda"):
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton, as timm and lightning may do

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tests put their tensors; CONGRUENCY_TEST_DEVICE=cuda runs the same tests on a GPU."""
    return torch.device(DEVICE)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same random state."""
    torch.manual_seed(0)
