"""What every test shares: the device under test, reproducible randomness, and what happens without a browser."""

import os
from collections.abc import Generator

DEVICE = os.environ.get("CONGRUENCY_TEST_DEVICE", "cpu")
if not DEVICE.startswith("cuda"):
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton, as timm and lightning may do

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
THREADS = max(1, (os.cpu_count() or 1) // WORKERS)
if WORKERS > 1:  # threads of two workers that wait for each other's cores make the suite several times slower
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))

import pytest  # noqa: E402
import torch  # noqa: E402
from browser import CHROMIUM, INSTALL, REQUIRED  # noqa: E402

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


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the browser tests where there is no Chromium; `make test-browser` fails them instead."""
    if item.get_closest_marker("browser") and CHROMIUM is None:
        (pytest.fail if REQUIRED else pytest.skip)(f"needs Chromium: {INSTALL}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Say at the very end, after the counts, that browser tests were skipped."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if CHROMIUM is None and (count := sum("browser" in getattr(report, "keywords", ()) for report in skipped)):
        reporter.write_line(f"{count} browser tests skipped, Chromium is missing: {INSTALL}, then make test-browser")
