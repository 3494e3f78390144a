"""Few pixels that may hold anything: any k of them, or those of one square; what that adds to a box around them.

Such a region is a union of boxes, one for each choice of pixels. A linear function is largest where every chosen pixel
holds what suits it best, so its maximum is the image's value and the best choice of what each pixel can gain: the k
largest gains, or the best square's. Where a network is bounded by linear functions of its input, no choice is left out
and none is enumerated.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from surebound.errors import RegionError
from surebound.interval import Interval
from surebound.norm_ball import Ball, NormBall
from surebound.numerics import Soundness, exact_fraction

if TYPE_CHECKING:
    from surebound.region import LinfBall


class PixelBox(Ball):
    """The box in which every pixel holds anything, which remembers how few of them do at once."""

    __slots__ = ("region",)

    def __init__(self, box: Interval, region: PixelBall) -> None:
        super().__init__(box, region.x, float(region.eps), 0)
        self.region = region

    def take(self, index: slice | Tensor) -> PixelBox:
        """Return some of the examples, which keep their balls."""
        return PixelBox(Interval.take(self, index), self.region[index])


@dataclass(frozen=True, init=False, repr=False)
class PixelBall(NormBall, abc.ABC):
    """What regions of few pixels share: a pixel is all channels of one place in (B, C, H, W), else one entry."""

    def __init__(
        self, x: Tensor, eps: str | int | float | Fraction, clip: tuple[float, float] | None = (0.0, 1.0)
    ) -> None:
        if clip is None:
            raise RegionError(f"{type(self).__name__} needs the range of valid pixels, which a changed one may hold")
        super().__init__(x, eps, clip)
        if self.eps.denominator != 1:
            raise RegionError(f"eps={eps!r}; {type(self).__name__} counts whole pixels")

    @property
    def box(self) -> LinfBall:
        """The box in which every pixel holds anything valid."""
        from surebound.region import LinfBall

        low, high = (exact_fraction(end, "clip") for end in self.clip or (0, 1))
        return LinfBall(self.x, high - low if self.eps else 0, self.clip)

    def interval(self, soundness: Soundness = Soundness.DEPLOYED) -> Interval:
        """Return the box in which every pixel holds anything, which remembers the region."""
        box = self.box.interval(soundness)
        return box if self.eps == 0 else PixelBox(box, self)

    @property
    def widest(self) -> Fraction:
        """0: a changed pixel may always hold anything, which is no radius to be warned of."""
        return Fraction(0)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Channels, rows and columns of pixels; (1, 1, n) of inputs that are no images."""
        shape = tuple(int(size) for size in self.x.shape[1:])
        return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (1, 1, self.x[:1].numel())

    def by_pixel(self, values: Tensor) -> Tensor:
        """Sum values (..., C H W) over the channels of each pixel: (..., H, W)."""
        return values.reshape(*values.shape[:-1], *self.grid).sum(-3)

    @abc.abstractmethod
    def most(self, gains: Tensor) -> Tensor:
        """Return the largest sum of gains >= 0 (..., H, W) that the region allows at once: (...)."""

    @abc.abstractmethod
    def best(self, gains: Tensor) -> Tensor:
        """Return the pixels (..., H, W), True or False, whose gains make the largest sum."""

    def _holds(self, pairs: list[tuple[float, float]]) -> bool:
        if not all(abs(end) < float("inf") for pair in pairs for end in pair):
            return False
        low, high = (exact_fraction(end, "clip") for end in self.clip or (0, 1))
        moved = [i for i, (x, point) in enumerate(pairs) if x != point]
        if any(not low <= Fraction(pairs[i][1]) <= high for i in moved):
            return False
        _, rows, columns = self.grid
        return self._allows({divmod(i % (rows * columns), columns) for i in moved})

    @abc.abstractmethod
    def _allows(self, pixels: set[tuple[int, int]]) -> bool:
        """Say whether just these pixels (row, column) may change at once."""


@dataclass(frozen=True, init=False, repr=False)
class L0Ball(PixelBall):
    """All inputs that differ from ``x`` in at most ``eps`` pixels, which hold anything of ``clip``.

    >>> L0Ball(torch.zeros(1, 3, 4, 4), 2).contains(torch.eye(4).expand(1, 3, 4, 4))
    tensor([False])
    """

    def most(self, gains: Tensor) -> Tensor:
        every = gains.flatten(-2)
        return every.topk(min(int(self.eps), every.shape[-1]), dim=-1).values.sum(-1)

    def best(self, gains: Tensor) -> Tensor:
        every = gains.flatten(-2)
        index = every.topk(min(int(self.eps), every.shape[-1]), dim=-1).indices
        return every.new_zeros(every.shape).scatter(-1, index, 1.0).bool().reshape(gains.shape)

    def _allows(self, pixels: set[tuple[int, int]]) -> bool:
        return len(pixels) <= self.eps


@dataclass(frozen=True, init=False, repr=False)
class Patch(PixelBall):
    """All images (B, C, H, W) that differ from ``x`` within one square of ``eps`` x ``eps`` pixels, wherever it is.

    One region for all places, for bounds and attacks; ``sb.threat("patch:3")`` asks place by place, which a search
    decides.

    >>> corner = torch.zeros(1, 1, 4, 4)
    >>> corner[..., :2, :2] = 1
    >>> Patch(torch.zeros(1, 1, 4, 4), 2).contains(corner), Patch(torch.zeros(1, 1, 4, 4), 1).contains(corner)
    (tensor([True]), tensor([False]))
    """

    def __init__(
        self, x: Tensor, eps: str | int | float | Fraction, clip: tuple[float, float] | None = (0.0, 1.0)
    ) -> None:
        super().__init__(x, eps, clip)
        if x.dim() != 4:
            raise RegionError(f"Patch takes images (B, C, H, W); the inputs have shape {tuple(x.shape)}")
        if self.eps > min(x.shape[2:]):
            raise RegionError(f"a patch of {eps} x {eps} pixels does not fit images of {x.shape[2]} x {x.shape[3]}")

    def most(self, gains: Tensor) -> Tensor:
        return self._squares(gains).flatten(1).amax(1).reshape(gains.shape[:-2])

    def best(self, gains: Tensor) -> Tensor:
        sums = self._squares(gains).flatten(1)  # (N, places)
        columns = gains.shape[-1] - int(self.eps) + 1
        at = sums.argmax(1)
        first, left = at.div(columns, rounding_mode="floor"), at % columns
        down = _within(gains.shape[-2], first, int(self.eps))
        across = _within(gains.shape[-1], left, int(self.eps))
        return (down.unsqueeze(2) & across.unsqueeze(1)).reshape(gains.shape)

    def _squares(self, gains: Tensor) -> Tensor:
        """Sum gains (..., H, W) over every square: (N, 1, rows, columns)."""
        images = gains.reshape(-1, 1, *gains.shape[-2:])
        return functional.avg_pool2d(images, int(self.eps), 1, divisor_override=1)

    def _allows(self, pixels: set[tuple[int, int]]) -> bool:
        return all(max(line) - min(line) < self.eps for line in zip(*pixels, strict=True))


def _within(count: int, first: Tensor, size: int) -> Tensor:
    """Say which of ``count`` numbers lie in [first, first + size): (N, count)."""
    numbers = torch.arange(count, device=first.device)
    return (numbers >= first[:, None]) & (numbers < first[:, None] + size)
