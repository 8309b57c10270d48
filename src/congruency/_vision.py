"""Makes torchvision importable where its compiled operators are missing; import this before whatever needs it.

torchvision describes what ``nms`` returns when it is imported, and fails where a build without compiled operators never
declared it. timm, lightning and torchmetrics import torchvision, and fail with it. Declaring the two operators that it
looks for is enough for its networks, transforms and data sets; ``torchvision.ops.nms`` itself and ``torchvision.io``
stay unusable there.
"""

from __future__ import annotations

import importlib
import importlib.util

import torch

__all__: list[str] = []

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None


def _declare_missing_operators() -> None:
    global _library
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as reason:
        if "torchvision::nms" not in str(reason):
            raise
        _library = torch.library.Library("torchvision", "DEF")  # the operators live as long as this object
        _library.define(f"nms{_SIGNATURE}")
        _library.define(f"qnms{_SIGNATURE}")
        importlib.import_module("torchvision")


_declare_missing_operators()
