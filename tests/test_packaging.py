"""The wheel and the sdist: what is in them, and that the wheel works where there is torch and nothing else."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import congruency

ROOT = Path(__file__).parent.parent
TEN_STEPS = """
import importlib.util, torch, congruency
for extra in ("numpy", "typer", "rich", "scipy", "lightning"):
    assert importlib.util.find_spec(extra) is None, extra
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
dcl = congruency.DCL(optimizer, window=5)
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
from congruency.backends import backend_for
print(congruency.__version__, dcl.stats.steps, backend_for("cpu").__module__, congruency.__file__)
"""


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    return done


def can_build():
    try:
        importlib.metadata.version("build")  # asked by its metadata: a folder of that name would pass for the package
        return int(importlib.metadata.version("setuptools").partition(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not can_build(), reason="building without the network needs build and setuptools 77 here")
def test_wheel_and_sdist(tmp_path):
    """One build, several questions: the wheel is made from the sdist, as an index would have it made."""
    wheel, sdist = build(tmp_path)
    check_sdist(sdist)
    compiled = check_wheel(wheel)
    python = empty_environment(tmp_path / "empty", wheel)
    check_core(python, compiled)
    check_command(python)


def build(folder):
    source, out = folder / "source", folder / "dist"
    skipped = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=skipped)
    shutil.copytree(ROOT / "tests", source / "tests", ignore=skipped)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, source)
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    assert sdist.name == f"congruency-{congruency.__version__}.tar.gz"
    return wheel, sdist


def check_sdist(path):
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"src/congruency/py.typed", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    wanted |= {f"src/congruency/backends/{name}" for name in ("native.c", "native_vectors.h")}
    assert wanted <= names
    assert not any(name.startswith(("tests", "docs", "benchmarks")) for name in names)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src" / "congruency").rglob("*.py")}
    assert modules <= names


def check_wheel(path):
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"congruency-{congruency.__version__}.dist-info/METADATA").decode()
        scripts = archive.read(f"congruency-{congruency.__version__}.dist-info/entry_points.txt").decode()
    packaged = {name for name in names if ".dist-info/" not in name}
    assert {"congruency/py.typed", "congruency/report/charts.js", "congruency/report/charts.css"} <= packaged
    assert all(name.startswith("congruency/") for name in packaged)
    assert {Path(name).suffix for name in packaged} <= {".py", ".pyi", ".typed", ".so", ".pyd", ".js", ".css"}
    compiled = any(re.match(r"congruency/backends/_native\..*(so|pyd)$", name) for name in packaged)
    assert compiled or not (shutil.which("cc") or shutil.which("gcc"))
    assert "congruency = congruency.cli:main" in scripts
    needed = re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE)
    assert [line for line in needed if "extra ==" not in line] == ["torch>=2.11"]
    assert {"experiments", "cluster"} <= set(re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE))
    return compiled


def empty_environment(folder, wheel):
    """An interpreter that sees the installed wheel, torch and what torch itself needs; nothing else."""
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel
    )
    assert pip.returncode == 0, pip.stderr
    packages = next(folder.rglob("site-packages"))
    for top in top_levels("torch"):
        (packages / top.name).symlink_to(top)
    return python


def top_levels(distribution, seen=None):
    """Folders and files right below site-packages that belong to a distribution or to one that it needs."""
    seen = set() if seen is None else seen
    if distribution in seen:
        return set()
    seen.add(distribution)
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return set()  # a requirement for another platform
    tops = {Path(found.locate_file(file.parts[0])) for file in found.files or () if file.parts[0] not in ("..", "")}
    tops = {top for top in tops if top.name not in ("__pycache__", "bin") and top.exists()}
    for line in found.requires or ():
        if "extra ==" not in line:
            tops |= top_levels(re.match(r"[\w.-]+", line)[0], seen)
    return tops


def clean(**more):
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LD_LIBRARY_PATH") if key in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}


def check_core(python, compiled):
    done = run(python, "-I", "-c", TEN_STEPS, env=clean(), cwd=python.parent)
    assert done.returncode == 0, done.stderr
    version, steps, backend, place = done.stdout.split()
    assert (version, steps) == (congruency.__version__, "10")
    assert backend == ("congruency.backends.native" if compiled else "congruency.backends.torch")
    assert str(ROOT) not in place


def check_command(python):
    done = run(python.parent / "congruency", "demo", env=clean(), cwd=python.parent)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("congruency: the command needs typer: pip install")
    assert done.stderr.count("\n") == 1
