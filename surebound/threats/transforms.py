"""Changes of an image by one or two numbers, as modules T(theta, image) of operators that have rules.

Bilinear sampling is a sum over whole-pixel shifts, each weighted by hat functions max(0, 1 - |d - k|) of the
displacement d (Jaderberg et al. 2015, eq. 5); what lies outside the image is 0. At theta = 0 each is the image itself.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional


class Transform(nn.Module, abc.ABC):
    """A change of images (B, C, H, W) by parameters theta (B, p); none at 0."""

    parameters_count: ClassVar[int] = 1

    def __init__(self, shape: torch.Size, size: float, clip: tuple[float, float] | None) -> None:
        """``shape``: of one image; ``size``: the largest |theta|; ``clip``: valid pixels."""
        super().__init__()
        self.clip = clip

    @abc.abstractmethod
    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        """Return the changed images (B, C, H, W)."""

    def clipped(self, image: Tensor) -> Tensor:
        """Return pixels moved into the valid range."""
        return image if self.clip is None else image.clamp(*self.clip)


class Brightness(Transform):
    """Adds theta to every pixel."""

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        return self.clipped(image + theta.reshape(-1, 1, 1, 1))


class Contrast(Transform):
    """Moves every pixel away from the middle of the valid range by the share theta, or towards it."""

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        low, high = (0.0, 1.0) if self.clip is None else self.clip
        return self.clipped(image + theta.reshape(-1, 1, 1, 1) * (image - (low + high) / 2))


class Blur(Transform):
    """Mixes the image with its blur by a binomial 3 x 3 kernel, share max(theta, 0); outside the image is 0."""

    kernel: Tensor

    def __init__(self, shape: torch.Size, size: float, clip: tuple[float, float] | None) -> None:
        super().__init__(shape, size, clip)
        row = torch.tensor([0.25, 0.5, 0.25])
        self.register_buffer("kernel", torch.outer(row, row).expand(shape[0], 1, 3, 3).clone())

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        blurred = functional.conv2d(image, self.kernel, padding=1, groups=image.shape[1])
        return image + theta.relu().reshape(-1, 1, 1, 1) * (blurred - image)


class _Sampling(Transform):
    """What samplings share: whole-pixel shifts up to ``reach``, which covers the largest displacement."""

    rows: Tensor  # (H,) from the middle
    columns: Tensor  # (W,)

    def __init__(self, shape: torch.Size, size: float, clip: tuple[float, float] | None) -> None:
        super().__init__(shape, size, clip)
        self.height, self.width = int(shape[-2]), int(shape[-1])
        self.register_buffer("rows", torch.arange(self.height) - (self.height - 1) / 2)
        self.register_buffer("columns", torch.arange(self.width) - (self.width - 1) / 2)
        self.reach = max(1, math.ceil(self.displacement(size)))

    @abc.abstractmethod
    def displacement(self, size: float) -> float:
        """Return the largest displacement of a pixel along an axis, in pixels."""

    def padded(self, image: Tensor) -> Tensor:
        """Return the image with zeros around it."""
        return functional.pad(image, (self.reach,) * 4)

    def hat(self, displacement: Tensor, number: int) -> Tensor:
        """Return the weight of one of the shifts at a displacement."""
        return (1 - (displacement - (number - self.reach)).abs()).relu()

    def separable(self, image: Tensor, down: Tensor, right: Tensor) -> Tensor:
        """Sample at displacements down (B, 1, H or 1, 1) and right (B, 1, 1, W or 1)."""
        wide, taps = self.padded(image), range(2 * self.reach + 1)
        across = _sum(self.hat(right, k) * wide[:, :, :, k : k + self.width] for k in taps)
        return _sum(self.hat(down, k) * across[:, :, k : k + self.height] for k in taps)


class Translation(_Sampling):
    """Samples theta = (down, right) pixels away."""

    parameters_count: ClassVar[int] = 2

    def displacement(self, size: float) -> float:
        return size

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        return self.separable(image, theta[:, :1].reshape(-1, 1, 1, 1), theta[:, 1:2].reshape(-1, 1, 1, 1))


class Zoom(_Sampling):
    """Samples 1 + theta times as far from the middle: smaller for theta > 0."""

    def displacement(self, size: float) -> float:
        return size * (max(self.height, self.width) - 1) / 2

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        share = theta.reshape(-1, 1, 1, 1)
        return self.separable(image, share * self.rows.reshape(1, 1, -1, 1), share * self.columns.reshape(1, 1, 1, -1))


class Rotation(_Sampling):
    """Samples along axes that are turned by theta degrees about the middle."""

    def displacement(self, size: float) -> float:
        angle = math.radians(min(size, 180.0))
        turned = math.sin(min(angle, math.pi / 2)) + 1 - math.cos(angle)
        return turned * (max(self.height, self.width) - 1) / 2

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        angle = theta.reshape(-1, 1, 1) * (math.pi / 180)
        sin, less = angle.sin(), angle.cos() - 1
        rows, columns = self.rows.reshape(1, -1, 1), self.columns.reshape(1, 1, -1)
        down = (less * rows + sin * columns).unsqueeze(1)  # (B, 1, H, W)
        right = (less * columns - sin * rows).unsqueeze(1)
        wide, taps = self.padded(image), range(2 * self.reach + 1)
        across = [self.hat(right, k) for k in taps]

        def line(k: int) -> Tensor:
            """Sample across in the rows that are shift k away."""
            rows = wide[:, :, k : k + self.height]
            return _sum(across[j] * rows[:, :, :, j : j + self.width] for j in taps)

        return _sum(self.hat(down, k) * line(k) for k in taps)


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)
