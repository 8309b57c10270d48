"""ResNeXt for 32x32 images (Xie et al., CVPR 2017, section 5.3), which timm has only for large ones."""

from __future__ import annotations

from torch import Tensor, nn

from congruency.classification.layers import convolution, initialise

__all__ = ["ResNeXt"]


class ResNeXt(nn.Module):
    """ResNeXt-29, ``groups`` x ``width``d: three stages of bottlenecks, 68.1 million parameters at 16x64d.

    Args:
        classes: outputs.
        groups: the cardinality.
        width: channels of one group in the first stage; every stage doubles it.
        blocks: bottlenecks in a stage; the depth is 9 * blocks + 2.
        channels: of the images.
    """

    def __init__(self, classes: int, groups: int = 16, width: int = 64, blocks: int = 3, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        stages: list[nn.Module] = []
        incoming = 64
        for stage in range(3):
            outgoing, inner = 256 << stage, (groups * width) << stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                stages.append(_Bottleneck(incoming, inner, outgoing, groups, stride))
                incoming = outgoing
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(incoming, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return self.classifier(self.pool(self.stages(self.stem(images))).flatten(1))  # type: ignore[no-any-return]


class _Bottleneck(nn.Module):
    def __init__(self, incoming: int, inner: int, outgoing: int, groups: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            convolution(incoming, inner, 1),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            convolution(inner, inner, 3, stride, groups),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            convolution(inner, outgoing, 1),
            nn.BatchNorm2d(outgoing),
        )
        same = stride == 1 and incoming == outgoing
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(convolution(incoming, outgoing, 1, stride), nn.BatchNorm2d(outgoing))
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.activation(self.branch(features) + self.shortcut(features))  # type: ignore[no-any-return]
