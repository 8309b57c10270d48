"""Translate the parameter names of EfficientNet-Lite's published weights to those of timm's models."""

import re
from collections.abc import Mapping

from torch import Tensor, nn

__all__ = ["has_published_names", "timm_names"]

_OUTSIDE_BLOCKS = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def has_published_names(weights: Mapping[str, Tensor]) -> bool:
    """Whether a state dict has the names of the published EfficientNet-Lite weights."""
    return "_conv_stem.weight" in weights


def timm_names(weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Return the weights under the names of timm's ``network`` (whole or ``features_only``); unknown names are kept.

    The published names number the blocks consecutively, timm numbers them within each stage. The first block has no
    expansion layer in either.
    """
    keys = (re.match(r"blocks\.(\d+)\.(\d+)\.", key) for key in network.state_dict())
    blocks = sorted({(int(match[1]), int(match[2])) for match in keys if match})
    return {_timm_name(name, blocks): tensor for name, tensor in weights.items()}


def _timm_name(name: str, blocks: list[tuple[int, int]]) -> str:
    match = re.fullmatch(r"_blocks\.(\d+)\.(_\w+)\.(\w+)", name)
    if match is None:
        layer, _, rest = name.partition(".")
        return f"{_OUTSIDE_BLOCKS.get(layer, layer)}.{rest}"
    index, layer, rest = int(match[1]), match[2], match[3]
    if index >= len(blocks):
        return name
    stage, block = blocks[index]
    return f"blocks.{stage}.{block}.{(_BLOCK if index else _FIRST_BLOCK).get(layer, layer)}.{rest}"
