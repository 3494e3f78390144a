"""The networks of Gowal et al. 2018, table 1 (small, medium, large) and the toy network of section 4.3."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from surebound.models.layers import Normalize, SamePad, orthogonal_

Shape3 = tuple[int, int, int]
_Conv = tuple[int, int, int]  # filters, kernel, stride


def small(
    in_shape: Shape3 = (1, 28, 28),
    classes: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Build conv 16 4x4/2, conv 32 4x4/1, fc 100, fc K; no padding.

    >>> from surebound.models.layers import parameter_count
    >>> parameter_count(small((3, 32, 32)))
    470918
    """
    return _build(in_shape, [(16, 4, 2), (32, 4, 1)], [100], classes, mean, std, batch_norm, same=False)


def medium(
    in_shape: Shape3 = (1, 28, 28),
    classes: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Build conv 32 3x3/1, conv 32 4x4/2, conv 64 3x3/1, conv 64 4x4/2, fc 512, fc 512, fc K; no padding."""
    convs = [(32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2)]
    return _build(in_shape, convs, [512, 512], classes, mean, std, batch_norm, same=False)


def large(
    in_shape: Shape3 = (1, 28, 28),
    classes: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Build conv 64 3x3/1 twice, conv 128 3x3/2, conv 128 3x3/1 twice, fc 512, fc K; SAME padding."""
    convs = [(64, 3, 1), (64, 3, 1), (128, 3, 2), (128, 3, 1), (128, 3, 1)]
    return _build(in_shape, convs, [512], classes, mean, std, batch_norm, same=True)


def toy(in_features: int = 2, width: int = 100, classes: int = 2) -> nn.Sequential:
    """Build 2-100-100-100-2, fully connected."""
    layers: list[nn.Module] = []
    for n_in in (in_features, width, width):
        layers += [nn.Linear(n_in, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, classes))
    orthogonal_(model)
    return model


def _build(
    in_shape: Shape3,
    convs: Sequence[_Conv],
    widths: Sequence[int],
    classes: int,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    batch_norm: bool,
    *,
    same: bool,
) -> nn.Sequential:
    channels, *size = in_shape
    layers: list[nn.Module] = []
    if mean is not None and std is not None:
        layers.append(Normalize(mean, std))
    for filters, kernel, stride in convs:
        if same:
            layers.append(SamePad(kernel, stride, (size[0], size[1])))
            size = [math.ceil(n / stride) for n in size]
        else:
            size = [(n - kernel) // stride + 1 for n in size]
        layers.append(nn.Conv2d(channels, filters, kernel, stride))
        if batch_norm:
            layers.append(nn.BatchNorm2d(filters))
        layers.append(nn.ReLU())
        channels = filters
    layers.append(nn.Flatten())
    features = channels * size[0] * size[1]
    for width in widths:
        layers.append(nn.Linear(features, width))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(nn.ReLU())
        features = width
    model = nn.Sequential(*layers, nn.Linear(features, classes))
    orthogonal_(model)
    return model
