"""DCL and Cautious inside other training frameworks.

A framework is imported only when its module is used: ``congruency.integrations.lightning``, ``.transformers``,
``.avalanche`` or ``.torchmetrics``, all available after ``import congruency``.
"""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType


def __getattr__(name: str) -> _ModuleType:
    if name in ("avalanche", "lightning", "torchmetrics", "transformers"):
        return _import_module(f"congruency.integrations.{name}")
    raise AttributeError(f"module 'congruency.integrations' has no attribute {name!r}")
