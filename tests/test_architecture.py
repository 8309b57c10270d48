"""The import graph of the package, drawn from its source: arrows point one way, and the core imports torch alone."""

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"

# What each part of the core may import of the package, from the names that users type down to the mathematics.
CORE = {
    "cone": set(),
    "distributed": set(),
    "modules": set(),
    "_validate": set(),
    "_version": set(),
    "backends": {"cone", "distributed"},
    "constraints": {"backends", "distributed", "_validate"},  # of the backends: the type Basis; kernels for CUDA graphs
    "updates": {"distributed"},
    "elements": {"constraints", "backends"},
    "means": {"backends"},
    "distances": {"constraints", "_validate"},
    "corrector": {
        "constraints",
        "backends",
        "distances",
        "distributed",
        "elements",
        "means",
        "updates",
        "watch",
        "_validate",
    },
    "cautious": {"corrector", "constraints", "elements"},
    "dcl": {"corrector", "constraints"},
    "gem": {"corrector", "constraints"},
    "measure": {"backends", "distributed", "modules", "_validate"},
}
CORE["congruency"] = set(CORE)  # the package itself, `import congruency`

# The rooms above the core, top first; a room may import those in the lines below it, and the core. Rooms in one line do
# not know each other. A file or folder that is named nowhere here is a shared helper, which imports nothing of ours.
ROOMS = (
    {"__main__"},
    {"cli"},
    {"studies"},
    {"classification", "continual", "saliency", "language"},
    {"training", "integrations"},
    {"datasets", "report"},
)

# Arrows that point back and are known to: (module, imported module), each with the reason. There is none.
EXCEPTIONS: set[tuple[str, str]] = set()


def modules():
    """Every module's dotted name and its parsed source."""
    for path in sorted((SOURCE / "congruency").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text("utf-8"))


def arrows():
    """(module, imported module) of all import statements, those within functions included."""
    parsed = dict(modules())
    for name, tree in parsed.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} imports relatively"
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    yield name, submodule if submodule in parsed else str(node.module)


def room(module):
    """The file or folder right below the package that a module is in."""
    return [*module.split("."), "congruency"][1]


def allowed(importer, imported):
    if importer == imported:
        return True
    if importer in CORE:
        return imported in CORE[importer]
    line = next((i for i, rooms in enumerate(ROOMS) if importer in rooms), len(ROOMS))
    below = set().union(*ROOMS[line + 1 :])
    named = set().union(*ROOMS)
    if importer not in named:  # a shared helper
        return False
    return imported in below or imported in CORE or imported not in named


def pointing_back(found):
    """The arrows within the package that the layers do not allow."""
    inner = {(a, b) for a, b in found if b.split(".")[0] == "congruency"}
    return sorted((a, b) for a, b in inner - EXCEPTIONS if not allowed(room(a), room(b)))


def test_no_arrow_points_back():
    found = set(arrows())
    assert len(found) > 100
    wrong = [f"{importer} -> {imported}" for importer, imported in pointing_back(found)]
    assert not wrong, "these imports point back, see DESIGN's rooms:\n" + "\n".join(wrong)


def test_exceptions_are_still_there():
    assert set(arrows()) >= EXCEPTIONS


def test_the_core_imports_torch_alone():
    wrong = set()
    for importer, imported in arrows():
        top = imported.split(".")[0]
        if room(importer) in CORE and top not in {"congruency", "torch", *sys.stdlib_module_names}:
            wrong.add((importer, top))
    kernels = {("congruency.backends.triton", "triton"), ("congruency.backends.kernels", "triton")}
    assert wrong == kernels  # imported only where they run


def test_arrows_that_point_back_are_noticed():
    wrong = [
        ("congruency.cone", "congruency.backends.native"),
        ("congruency.backends.torch", "congruency.corrector"),
        ("congruency.constraints.memory", "congruency.gem"),
        ("congruency.corrector", "congruency.training.run"),
        ("congruency.measure.meter", "congruency.constraints"),
        ("congruency.saliency.scorer", "congruency.continual"),
        ("congruency.language.task", "congruency.classification.batches"),
        ("congruency.training.loop", "congruency.classification"),
        ("congruency.continual.streams", "congruency.studies.results"),
        ("congruency.files", "congruency.datasets"),
    ]
    fine = [("congruency.cli", "congruency.studies.demo"), ("congruency.training.run", "congruency.dcl")]
    assert pointing_back([*wrong, *fine]) == sorted(wrong)
