"""The networks by name, and files of trained ones that say which they are."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from congruency.files import write_together
from congruency.modules import unwrap
from congruency.saliency.models.base import SaliencyModel
from congruency.saliency.models.dinet import DINet
from congruency.saliency.models.salicon import SALICON

__all__ = ["MODELS", "create", "load_model", "save_model"]

MODELS: dict[str, type[SALICON] | type[DINet]] = {"salicon": SALICON, "dinet": DINet}

_FORMAT = "congruency saliency model, version 1"


def create(
    name: str,
    backbone: str = "resnet50",
    *,
    weights: str | Path | None = None,
    pretrained: bool = False,
    **options: Any,
) -> SaliencyModel:
    """A network by name, ``"salicon"`` or ``"dinet"``, on a backbone of timm's; ``options`` are the class's own."""
    if name not in MODELS:
        raise ValueError(f"there is no saliency model {name!r}; choose one of {', '.join(MODELS)}")
    return MODELS[name](backbone, weights=weights, pretrained=pretrained, **options)


def save_model(model: nn.Module, path: str | Path) -> Path:
    """Write a network with what :func:`load_model` needs to make it again."""
    model = unwrap(model)
    name = next((name for name, kind in MODELS.items() if type(model) is kind), None)
    if name is None or not isinstance(model, SaliencyModel):
        raise TypeError(
            f"only {', '.join(k.__name__ for k in MODELS.values())} can be saved, got {type(model).__name__}"
        )
    state = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    about = {"format": _FORMAT, "model": name, "backbone": model.backbone.name, "options": model.options}
    buffer = BytesIO()
    torch.save({**about, "state": state}, buffer)
    path = Path(path)
    return write_together(path.parent, {path.name: buffer.getvalue()})[0]


def load_model(path: str | Path, device: torch.device | str = "cpu") -> SaliencyModel:
    """A network from its file, in evaluation mode."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"the checkpoint {path} is missing")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as reason:  # torch raises many kinds on files that are not its own
        raise ValueError(f"{path} cannot be read as a checkpoint ({type(reason).__name__})") from None
    if not isinstance(content, dict) or str(content.get("format")) != _FORMAT:
        raise ValueError(f"{path} is not a saliency model; save_model writes one, and training leaves one as model.pt")
    try:
        if {"weights", "pretrained"} & set(content["options"]):
            raise ValueError("its options name other weights than its own")
        model = create(content["model"], content["backbone"], **content["options"])
        model.load_state_dict(content["state"])
    except Exception as reason:  # anything may stand where names and tensors should
        told = str(reason).splitlines()[0] if str(reason) else ""
        raise ValueError(f"{path} is not a whole saliency model ({type(reason).__name__}: {told})") from None
    return model.to(device).eval()
