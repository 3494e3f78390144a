"""Balls of the Euclidean and of the sum norm around inputs: a box that encloses each, and what the norm adds to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from surebound.errors import RegionError
from surebound.interval import Interval
from surebound.numerics import Soundness, exact_fraction, float_up

if TYPE_CHECKING:
    from surebound.region import LinfBall


class Ball(Interval):
    """A box around a ball, which remembers the ball: |x - origin| <= reach in the norm l1 or l2.

    Whatever knows boxes only takes it for one, and loses nothing but tightness: rules make plain intervals of it.
    """

    __slots__ = ("norm", "origin", "reach")

    def __init__(self, box: Interval, origin: Tensor, reach: float, norm: int) -> None:
        super().__init__(box.lower, box.upper)
        self.origin = origin  # (B, ...)
        self.reach, self.norm = reach, norm  # at least the radius; 1 or 2

    def within(self, box: Interval, origin: Tensor | None = None) -> Ball:
        """Return the same ball, cut by another box; ``origin`` if the box has other examples, or another dtype."""
        return Ball(box, self.origin.to(box.dtype) if origin is None else origin, self.reach, self.norm)

    def take(self, index: slice | Tensor) -> Ball:
        """Return some of the examples, which keep their balls."""
        return Ball(super().take(index), self.origin[index], self.reach, self.norm)


@dataclass(frozen=True)
class NormBall:
    """What balls of other norms than the largest share."""

    norm: ClassVar[int]

    x: Tensor  # (B, ...)
    eps: Fraction
    clip: tuple[float, float] | None = field(default=None)

    def __init__(self, x: Tensor, eps: str | int | float | Fraction, clip: tuple[float, float] | None = None) -> None:
        from surebound.region import LinfBall

        if isinstance(eps, Tensor):  # which a LinfBall takes for radii per coordinate
            raise RegionError(f"eps is a tensor; {type(self).__name__} has one radius: give a number, e.g. '1/2'")
        box = LinfBall(x, eps, clip)  # refuses what is no ball
        if x.dim() < 2:
            raise RegionError(f"x has shape {tuple(x.shape)}; {type(self).__name__} takes inputs of shape (B, n, ...)")
        for name in ("x", "eps", "clip"):
            object.__setattr__(self, name, getattr(box, name))

    @property
    def box(self) -> LinfBall:
        """The smallest ball of the largest norm around it: no coordinate moves further than the norm."""
        from surebound.region import LinfBall

        return LinfBall(self.x, self.eps, self.clip)

    def interval(self, soundness: Soundness = Soundness.DEPLOYED) -> Interval:
        """Return the box around the ball, which remembers the ball; radii are rounded up."""
        box = self.box.interval(soundness)
        return box if self.eps == 0 else Ball(box, self.x, float_up(self.eps), self.norm)

    def contains(self, points: Tensor) -> Tensor:
        """Say which points (B, ...) lie in their ball, in exact rational arithmetic: (B,) bool; NaN never does."""
        if points.shape != self.x.shape:
            raise RegionError(
                f"points of shape {tuple(points.shape)}, balls around {tuple(self.x.shape)}: give one each"
            )
        pairs = zip(self.x.flatten(1).tolist(), points.flatten(1).tolist(), strict=True)
        found = [self._holds(list(zip(x, point, strict=True))) for x, point in pairs]
        return torch.tensor(found, dtype=torch.bool, device=points.device)

    def _holds(self, pairs: list[tuple[float, float]]) -> bool:
        if not all(abs(end) < torch.inf for pair in pairs for end in pair):
            return False  # nothing finite is near an infinite origin either
        clip = None if self.clip is None else [exact_fraction(end, "clip") for end in self.clip]
        # x was accepted, so it belongs to the ball even where the clip end itself is no float.
        if clip and any(x != point and not clip[0] <= Fraction(point) <= clip[1] for x, point in pairs):
            return False
        moved: Iterator[Fraction] = (abs(Fraction(point) - Fraction(x)) for x, point in pairs if x != point)
        return sum((each**self.norm for each in moved), Fraction(0)) <= self.eps**self.norm

    def around(self, x: Tensor, eps: Fraction) -> Self:
        """Return the ball of this norm and clip around other inputs (B, ...)."""
        return type(self)(x, eps, self.clip)

    @property
    def widest(self) -> Fraction:
        """The furthest that all coordinates can move at once, or a little less: does a ball hold all inputs?"""
        count = self.x[:1].numel()
        return self.eps / (count if self.norm == 1 else math.isqrt(max(0, count - 1)) + 1)

    @property
    def makes_memory(self) -> bool:
        """Is the memory of ``interval()`` its own, so that it may be overwritten?"""
        return False  # the ball is needed after its box

    @property
    def reference(self) -> Tensor:
        """One input inside the region: where attacks start and statistics are taken."""
        return self.x

    def __getitem__(self, index: slice | Tensor) -> Self:
        return type(self)(self.x[index], self.eps, self.clip)

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({tuple(self.x.shape)} {self.x.dtype}, eps={self.eps}, clip={self.clip})"


@dataclass(frozen=True, init=False, repr=False)
class L2Ball(NormBall):
    """All inputs within Euclidean distance ``eps`` of ``x``, inside ``clip`` if given.

    >>> L2Ball(torch.zeros(2, 3), eps="1/2", clip=(0, 1))
    L2Ball((2, 3) torch.float32, eps=1/2, clip=(0.0, 1.0))
    >>> L2Ball(torch.zeros(1, 2), 5).contains(torch.tensor([[3.0, 4.0]]))
    tensor([True])
    """

    norm: ClassVar[int] = 2


@dataclass(frozen=True, init=False, repr=False)
class L1Ball(NormBall):
    """All inputs whose differences from ``x`` sum up to at most ``eps``, inside ``clip`` if given.

    >>> L1Ball(torch.zeros(1, 2), 5).contains(torch.tensor([[3.0, 4.0]]))
    tensor([False])
    """

    norm: ClassVar[int] = 1
