"""Anything in a square of pixels, wherever it is: one example for each of its places.

A patch of k x k pixels covers every pair of residues (i mod k, j mod k) once, so the k x k content, repeated over the
whole image, is a patch of any content at every place. The place is a mask; mask content + (1 - mask) image is exact.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor, nn

from surebound.errors import InputError


class Patched(nn.Module):
    """A network behind a patch: the input is (mask, content, image), flattened and joined."""

    def __init__(self, network: nn.Module, shape: torch.Size, size: int, clip: tuple[float, float]) -> None:
        super().__init__()
        self.network, self.shape, self.size, self.clip = network, tuple(shape), size, clip

    def image(self, point: Tensor) -> Tensor:
        """Return the images (B, C, H, W) with their patches that points stand for."""
        channels, height, width = self.shape
        sizes = [height * width, channels * self.size**2, channels * height * width]
        mask, content, image = torch.split(point, sizes, 1)
        mask = mask.reshape(-1, 1, height, width)
        square = content.clamp(*self.clip).reshape(-1, channels, self.size, self.size)
        tiles = square.repeat(1, 1, math.ceil(height / self.size), math.ceil(width / self.size))
        return mask * tiles[:, :, :height, :width] + (1 - mask) * image.reshape(-1, *self.shape)

    def forward(self, point: Tensor) -> Tensor:
        answer: Tensor = self.network(self.image(point))
        return answer


def patch_points(images: Tensor, size: int, clip: tuple[float, float] | None) -> tuple[Tensor, Fraction, Tensor]:
    """Return the points (B P, ...) of every place in every image (B, C, H, W), the content's radius, and the scale.

    Points of one image are P in a row, from the top left; contents are any valid pixels, clip or [0, 1].
    """
    channels, height, width = images.shape[1:]
    if size > min(height, width):
        raise InputError(f"a patch of {size} x {size} pixels does not fit images of {height} x {width}")
    if clip is None and bool(((images < 0) | (images > 1)).any()):
        # Contents of [0, 1] would leave out the image itself: one that is misread was robust.
        raise InputError("pixels lie outside [0, 1]: say what a patch may hold, as the clip range")
    low, high = (0.0, 1.0) if clip is None else clip
    middle = images.new_tensor((low + high) / 2)
    radius = max(Fraction(high) - Fraction(float(middle)), Fraction(float(middle)) - Fraction(low))
    masks = []
    for row in range(height - size + 1):
        for column in range(width - size + 1):
            mask = images.new_zeros(height, width)
            mask[row : row + size, column : column + size] = 1
            masks.append(mask)
    places = torch.stack(masks).flatten(1)  # (P, H W)
    count, numbers = len(places), channels * size**2
    points = torch.cat(
        [
            places.repeat(len(images), 1),
            middle.expand(len(images) * count, numbers),
            images.flatten(1).repeat_interleave(count, 0),
        ],
        1,
    )
    scale = torch.zeros(1, points.shape[1], dtype=torch.float64, device=images.device)
    scale[:, height * width : height * width + numbers] = 1
    return points, radius, scale
