"""Networks for small images that timm lacks: ResNeXt, DenseNet-BC and ResNet-9 for 32x32, and smaller networks."""

import math

import torch
from torch import Tensor, nn

import congruency._torchvision_compat  # noqa: F401

# Max-pooled features are large and positive: unscaled, the last layer diverges at a rate that suits the convolutions.
_FEATURE_SCALE = 0.125


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the size at stride 1, without bias because of the adjacent batch norm."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def normalised(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return convolution, batch norm, ReLU."""
    layer = convolution(inputs, outputs, kernel, stride, groups)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def preactivated(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """Return batch norm, ReLU, convolution."""
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), convolution(inputs, outputs, kernel))


def initialise(network: nn.Module) -> None:
    """Initialise convolutions with Kaiming normal weights, batch norms with 1 and 0, linear biases with 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def mlp(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Return a multilayer perceptron with two hidden layers of 100, as in the paper's continual learning."""
    hidden = [nn.Linear(math.prod(shape), 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(100, classes))


def convnet(classes: int, channels: int) -> nn.Module:
    """Return two convolutions and a linear layer, for images of at least 8x8."""
    network = nn.Sequential(
        normalised(channels, 32), nn.MaxPool2d(2), normalised(32, 64), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(256, classes),
    )  # fmt: skip
    initialise(network)
    return network


def resnet18_cifar(classes: int, channels: int) -> nn.Module:
    """Return ResNet-18 with the usual stem for 32x32 images: a 3x3 convolution at stride 1 and no pooling."""
    import timm

    network: nn.Module = timm.create_model("resnet18", num_classes=classes, in_chans=channels)
    network.conv1 = convolution(channels, 64, 3)
    network.maxpool = nn.Identity()
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return network


class ResNet9(nn.Module):
    """A wide, shallow residual network for 32x32 images that trains in seconds on a GPU; 6.6 million parameters."""

    def __init__(self, classes: int, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(
            normalised(channels, width), normalised(width, 2 * width), nn.MaxPool2d(2), _Residual(2 * width),
            normalised(2 * width, 4 * width), nn.MaxPool2d(2),
            normalised(4 * width, 8 * width), nn.MaxPool2d(2), _Residual(8 * width),
            nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Linear(8 * width, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return self.classifier(self.features(images) * _FEATURE_SCALE)  # type: ignore[no-any-return]


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(normalised(width, width), normalised(width, width))

    def forward(self, features: Tensor) -> Tensor:
        return features + self.branch(features)  # type: ignore[no-any-return]


class ResNeXt(nn.Module):
    """ResNeXt-29, ``groups`` x ``width``d (Xie et al., 2017, section 5.3); 68.1 million parameters at 16x64d.

    The width per group doubles in every stage of three bottlenecks.
    """

    def __init__(self, classes: int, groups: int = 16, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        self.stem = normalised(channels, 64)
        stages: list[nn.Module] = []
        inputs = 64
        for stage in range(3):
            outputs, inner = 256 << stage, (groups * width) << stage
            for block in range(3):
                stride = 2 if stage and not block else 1
                stages.append(_Bottleneck(inputs, inner, outputs, groups, stride))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return self.classifier(self.pool(self.stages(self.stem(images))).flatten(1))  # type: ignore[no-any-return]


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, inner: int, outputs: int, groups: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *normalised(inputs, inner, 1),
            *normalised(inner, inner, 3, stride, groups),
            convolution(inner, outputs, 1),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.activation(self.branch(features) + self.shortcut(features))  # type: ignore[no-any-return]


class DenseNet(nn.Module):
    """DenseNet-BC (Huang et al., 2017) for 32x32 images; 769,162 parameters at depth 100, growth k = 12.

    Each of the three blocks has n layers, and the depth is 6 n + 4.
    """

    def __init__(self, classes: int, depth: int = 100, growth: int = 12, channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"the depth of a DenseNet-BC is 6 n + 4 (10, 16, ... 100), got {depth}")
        width = 2 * growth
        parts: list[nn.Module] = [convolution(channels, width, 3)]
        for block in range(3):
            for _ in range((depth - 4) // 6):
                parts.append(_Layer(width, growth))
                width += growth
            if block < 2:
                parts.append(nn.Sequential(*preactivated(width, width // 2, 1), nn.AvgPool2d(2)))
                width //= 2
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(width, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return self.classifier(self.features(images).flatten(1))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*preactivated(inputs, 4 * growth, 1), *preactivated(4 * growth, growth, 3))

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([features, self.branch(features)], 1)
