"""What every test shares: the device under test and reproducible randomness."""

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tests put their tensors; CONGRUENCY_TEST_DEVICE=cuda runs the same tests on a GPU."""
    return torch.device(os.environ.get("CONGRUENCY_TEST_DEVICE", "cpu"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same random state."""
    torch.manual_seed(0)
