"""Changes of an image by a few numbers, as modules T(theta, image) of operators that have rules.

Bilinear sampling is a sum over whole-pixel shifts, each weighted by hat functions max(0, 1 - |d - k|) of the
displacement d (Jaderberg et al. 2015, eq. 5); what lies outside the image is 0. At theta = 0 each is the image itself.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

from surebound.errors import InputError


class Transform(nn.Module, abc.ABC):
    """A change of images (B, C, H, W) by parameters theta (B, p); none at 0."""

    parameters_count: int = 1

    def __init__(self, shape: torch.Size, size: float, clip: tuple[float, float] | None) -> None:
        """Take the shape of one image, the largest |theta| as size, and the range of valid pixels as clip."""
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


class Gamma(Transform):
    """Raises pixels of [0, 1] to the power 1 + theta; below 1/256 it multiplies them like one of 1/256."""

    def __init__(self, shape: torch.Size, size: float, clip: tuple[float, float] | None) -> None:
        super().__init__(shape, size, clip)
        if clip is not None and tuple(clip) != (0.0, 1.0):
            raise InputError(f"gamma is a power of pixels between 0 and 1; the valid range is {tuple(clip)}")

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        logarithm = image.clamp(min=1 / 256).log()
        return self.clipped(image * (theta.reshape(-1, 1, 1, 1) * logarithm).exp())


class Hue(Transform):
    """Turns colours (3 channels) by theta degrees about the grey axis; their mean stays (Rodrigues' formula)."""

    def __init__(self, shape: torch.Size, size: float, clip: tuple[float, float] | None) -> None:
        super().__init__(shape, size, clip)
        if shape[0] != 3:
            raise InputError(f"hue is of images with 3 channels; these have {shape[0]}")

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        angle = theta.reshape(-1, 1, 1, 1) * (math.pi / 180)
        red, green, blue = image[:, :1], image[:, 1:2], image[:, 2:]
        colour = image - (red + green + blue) / 3
        across = torch.cat([blue - green, red - blue, green - red], 1) / math.sqrt(3)
        return self.clipped(image + (angle.cos() - 1) * colour + angle.sin() * across)


class Clipping(Transform):
    """Moves pixels into the valid range; what a ball around the image does before other changes."""

    parameters_count: int = 0

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        return self.clipped(image)


class Successive(Transform):
    """Changes one after the other, each by its own parameters."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        nn.Module.__init__(self)
        self.parts = nn.ModuleList(parts)
        self.counts = [part.parameters_count for part in parts]
        self.parameters_count = sum(self.counts)

    def forward(self, theta: Tensor, image: Tensor) -> Tensor:
        first = 0
        for part, count in zip(self.parts, self.counts, strict=True):
            image = part(theta[:, first : first + count], image)
            first += count
        return image


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

    parameters_count: int = 2

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
