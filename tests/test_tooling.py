"""The Makefile, the constraints and the workflow agree with each other and with pyproject.toml."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def targets():
    return set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_every_target_is_phony():
    assert set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()) == targets()


def test_files_of_the_core_exist():
    names = re.search(r"^CORE := \$\(addprefix tests/,(.*?)\)$", MAKEFILE, re.MULTILINE | re.DOTALL)[1]
    names = names.replace("\\", " ").split()
    assert len(names) > 10
    for name in names:
        assert (ROOT / "tests" / name).exists(), name


def test_lowest_constraints_are_the_bounds():
    bounds = dict(re.findall(r'^ +"([a-z-]+)>=([\d.]+)[";]', PROJECT, re.MULTILINE))
    lines = (ROOT / "constraints-lowest.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {*re.search(r"^CORE_NEEDS := (.*)$", MAKEFILE, re.MULTILINE)[1].split(), "torch"} == set(pins)
    for name, pin in pins.items():
        assert re.fullmatch(re.escape(bounds[name]) + r"(\.\d+)?", pin), f"{name}: {bounds[name]} and {pin}"


@pytest.mark.parametrize("name", [".ci/run", ".github/workflows/tests.yml"])
def test_what_ci_calls_are_targets(name):
    text = (ROOT / name).read_text("utf-8")
    called = set(re.findall(r"\bmake ([a-z-]+)", text))
    called |= {target for job in jobs(name) for target in job.get("strategy", {}).get("matrix", {}).get("target", [])}
    assert {"lint", "test"} <= called <= targets()


def jobs(name):
    return yaml.safe_load((ROOT / name).read_text("utf-8"))["jobs"].values() if name.endswith(".yml") else ()
