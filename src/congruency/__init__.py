"""Measure how well each gradient agrees with the gradient accumulated so far, and correct those that disagree."""

from importlib import import_module as _import_module

from congruency._version import __version__

_HOMES = {  # imported on first use (as __init__.pyi says): the command must not wait for torch to print its help
    "backends.base": ("Basis",),
    "cautious": ("Cautious",),
    "cone": ("project", "solve_dual"),
    "constraints": ("ConstraintSource", "Descent", "Directions", "EpisodicMemory", "References"),
    "corrector": ("Corrector",),
    "dcl": ("DCL",),
    "gem": ("GEM",),
    "measure": (
        "CongruencyMeter", "Measurement", "congruency", "lower_bound", "pairwise_congruency", "pairwise_similarity",
    ),
    "modules": ("head",),
    "step.stats": ("Stats",),
}  # fmt: skip
_MODULES = ("backends", "constraints", "integrations", "measure")

__all__ = ["__version__", *(name for names in _HOMES.values() for name in names)]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(_import_module(f"congruency.{home}"), name)
            return value
    if name in _MODULES:
        return _import_module(f"congruency.{name}")
    raise AttributeError(f"module 'congruency' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
