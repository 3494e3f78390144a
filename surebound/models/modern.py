"""Networks beyond table 1: the paper's WideResNet-10-10 for ImageNet, and CNN7 and CNN5 of today's literature."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from surebound.models.layers import Normalize, orthogonal_

Shape3 = tuple[int, int, int]


def cnn7(
    in_shape: Shape3 = (3, 32, 32),
    classes: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_norm: bool = True,
) -> nn.Sequential:
    """Five 3x3 convolutions (64, 64, 128 at stride 2, 128, 128; padding 1), fc 512, fc K, BatchNorm after each.

    The network of Shi et al. 2021 and of most certified training since.
    """
    channels, height, width = in_shape
    layers: list[nn.Module] = [Normalize(mean, std)] if mean is not None and std is not None else []
    for filters, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (128, 1)):
        layers.append(nn.Conv2d(channels, filters, 3, stride, padding=1))
        layers += [nn.BatchNorm2d(filters), nn.ReLU()] if batch_norm else [nn.ReLU()]
        channels = filters
    features = channels * -(-height // 2) * -(-width // 2)
    layers += [nn.Flatten(), nn.Linear(features, 512)]
    layers += [nn.BatchNorm1d(512), nn.ReLU()] if batch_norm else [nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(512, classes))
    orthogonal_(model)
    return model


def cnn5(
    in_shape: Shape3 = (3, 32, 32),
    classes: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_norm: bool = True,
    width: int = 64,
) -> nn.Sequential:
    """Convolutions 3x3 (64), 4x4 stride 2 (64), 4x4 stride 2 (128), padding 1, fc 512, fc K, BatchNorm after each.

    `width` is the first one's number of filters; the others keep their ratio to it. On CIFAR-10 it takes a fifth of
    CNN7's products.
    """
    channels, height, columns = in_shape
    layers: list[nn.Module] = [Normalize(mean, std)] if mean is not None and std is not None else []
    for filters, kernel, stride in ((width, 3, 1), (width, 4, 2), (2 * width, 4, 2)):
        layers.append(nn.Conv2d(channels, filters, kernel, stride, padding=1))
        layers += [nn.BatchNorm2d(filters), nn.ReLU()] if batch_norm else [nn.ReLU()]
        channels = filters
    hidden = 8 * width
    layers += [nn.Flatten(), nn.Linear(channels * (height // 4) * (columns // 4), hidden)]
    layers += [nn.BatchNorm1d(hidden), nn.ReLU()] if batch_norm else [nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(hidden, classes))
    orthogonal_(model)
    return model


class PreActivationBlock(nn.Module):
    """ReLU, 3x3, ReLU, 3x3, plus the input (through a 1x1 convolution where the shape changes)."""

    def __init__(self, channels: int, filters: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels) if batch_norm else nn.Identity()
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=not batch_norm)
        self.norm2 = nn.BatchNorm2d(filters) if batch_norm else nn.Identity()
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=not batch_norm)
        same = channels == filters and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, filters, 1, stride, bias=not batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.norm1(x))
        out: Tensor = self.conv2(self.relu2(self.norm2(self.conv1(h))))
        around: Tensor = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(h)
        return out + around


class WideResNet(nn.Module):
    """WideResNet-(6n+4)-k with pre-activation blocks (Zagoruyko & Komodakis 2016)."""

    def __init__(
        self,
        in_shape: Shape3,
        classes: int,
        depth: int,
        widen: int,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std) if mean is not None and std is not None else nn.Identity()
        self.conv = nn.Conv2d(in_shape[0], 16, 3, padding=1, bias=not batch_norm)
        blocks: list[nn.Module] = []
        channels = 16
        for filters, first_stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            for i in range((depth - 4) // 6):
                blocks.append(PreActivationBlock(channels, filters, first_stride if i == 0 else 1, batch_norm))
                channels = filters
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels) if batch_norm else nn.Identity()
        self.relu = nn.ReLU()
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.norm(self.blocks(self.conv(self.normalize(x)))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(h, 1).flatten(1))
        return logits


def wide_resnet_10_10(
    in_shape: Shape3 = (3, 56, 56),
    classes: int = 1000,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_norm: bool = False,
) -> WideResNet:
    """Build WideResNet-10-10: 8M parameters, 1.8M hidden units on 56x56 images (Gowal et al. 2018, section 4.2)."""
    model = WideResNet(in_shape, classes, 10, 10, mean, std, batch_norm)
    orthogonal_(model)
    return model
