"""The names that EfficientNet-Lite's published weights have, as timm's networks call them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

__all__ = ["has_lite_names", "timm_names"]

_AROUND = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def has_lite_names(weights: Mapping[str, Tensor]) -> bool:
    """Whether these are published weights of an EfficientNet-Lite, not yet renamed."""
    return "_conv_stem.weight" in weights


def timm_names(weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """The weights under the names that timm's ``network`` has, whole or ``features_only``; unknown names stay.

    The blocks are counted through there, and by stage in timm; the first block has no expansion in either.
    """
    found = {(int(m[1]), int(m[2])) for key in network.state_dict() if (m := re.match(r"blocks\.(\d+)\.(\d+)\.", key))}
    places = sorted(found)
    return {_timm_name(name, places): tensor for name, tensor in weights.items()}


def _timm_name(name: str, places: list[tuple[int, int]]) -> str:
    found = re.fullmatch(r"_blocks\.(\d+)\.(_\w+)\.(\w+)", name)
    if found is None:
        part, _, rest = name.partition(".")
        return f"{_AROUND.get(part, part)}.{rest}"
    index, part, rest = int(found[1]), found[2], found[3]
    if index >= len(places):
        return name
    stage, block = places[index]
    return f"blocks.{stage}.{block}.{(_BLOCK if index else _FIRST_BLOCK).get(part, part)}.{rest}"
