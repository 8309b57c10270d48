"""Make torchvision importable where its compiled operators are missing; import this before anything that needs it.

On import, torchvision registers a shape function for its operator ``nms``, which fails in a build without compiled
operators because ``nms`` was never defined. timm, lightning and torchmetrics import torchvision and fail with it.
Defining the two operators that it looks for is enough for its models, transforms and data sets; ``torchvision.ops.nms``
and ``torchvision.io`` stay unusable.
"""

import importlib
import importlib.util

import torch

__all__: list[str] = []

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None


def _define_missing_operators() -> None:
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


_define_missing_operators()
