"""Augmentation of whole batches as tensor operations, drawing from an explicit generator.

Reflections and translations move pixels and make none up but zeros, so the range of the images is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import InputError


def translate(x: Tensor, rows: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    """The window of `size` (h, w) of each image of x (B, C, H, W) whose corner is (rows[b], columns[b])."""
    h, w = size
    windows = x.unfold(2, h, 1).unfold(3, w, 1)  # (B, C, H-h+1, W-w+1, h, w), a view
    return windows[torch.arange(x.shape[0], device=x.device), :, rows, columns]  # (B, C, h, w)


def flip(x: Tensor, which: Tensor) -> Tensor:
    """Mirror the images of x (B, C, H, W) left to right where `which` (B,) is True."""
    return torch.where(which[:, None, None, None], x.flip(3), x)


def centre_crop(x: Tensor, size: int) -> Tensor:
    """The central `size` x `size` window of every image of x (B, C, H, W)."""
    top, left = (x.shape[2] - size) // 2, (x.shape[3] - size) // 2
    return x[:, :, top : top + size, left : left + size]


@dataclass(frozen=True)
class Augment:
    """Zero-pad by `pad` on each side, cut a window at a random place, mirror every second image at random.

    The window has the size of the image, or `crop` x `crop`. The paper: CIFAR-10 `Augment(pad=4, flip=True)`,
    SVHN `Augment(pad=4)`, ImageNet 64x64 `Augment(crop=56, flip=True)`.

    >>> x = torch.arange(2 * 64.0).reshape(2, 1, 8, 8)
    >>> Augment(pad=1, flip=True)(x, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 8, 8])
    """

    pad: int = 0
    crop: int | None = None
    flip: bool = False

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise InputError(f"pad must be 0 or more pixels, got {self.pad}")
        if self.crop is not None and self.crop < 1:
            raise InputError(
                f"crop must be at least 1 pixel, or None for the image's own size, got {self.crop}"
            )

    def window(self, height: int, width: int) -> tuple[int, int]:
        """The size of what comes out for images of `height` x `width`."""
        h, w = (self.crop, self.crop) if self.crop is not None else (height, width)
        if h > height + 2 * self.pad or w > width + 2 * self.pad:
            raise InputError(
                f"a crop of {h}x{w} does not fit images of {height}x{width} padded by {self.pad}"
            )
        return h, w

    def __call__(self, x: Tensor, generator: torch.Generator, shard: tuple[int, int] = (0, 1)) -> Tensor:
        """Augment x (B, C, H, W), bytes or floats.

        With `shard=(rank, world_size)`, x is that rank's block of a global batch of B * world_size images:
        the draws are those of the global batch, so that the number of processes changes nothing.
        """
        rank, world_size = shard
        b, _, height, width = x.shape
        h, w = self.window(height, width)
        block = slice(rank * b, (rank + 1) * b)

        def draw(high: int) -> Tensor:
            drawn = torch.randint(high, (b * world_size,), generator=generator, device=generator.device)
            return drawn[block].to(x.device)

        if self.pad or (h, w) != (height, width):
            padded = F.pad(x, (self.pad,) * 4) if self.pad else x
            x = translate(padded, draw(padded.shape[2] - h + 1), draw(padded.shape[3] - w + 1), (h, w))
        return flip(x, draw(2).bool()) if self.flip else x

    def still(self, x: Tensor) -> Tensor:
        """The deterministic counterpart: the central window, not mirrored; to evaluate on training images."""
        self.window(x.shape[2], x.shape[3])
        return x if self.crop is None else centre_crop(x, self.crop)
