"""A value of the training pass: the clean batch and its bounds, apart or stacked, perhaps without dead channels."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval


class Joint:
    """The clean value of a batch and its bounds; stacked into one tensor of twice the batch where that is faster.

    A stacked one may hold only the live channels (axis 1), the others being 0; ``clean`` and
    ``interval`` hold them all. One that was flattened in NHWC order says so by its ``order``.
    """

    __slots__ = ("_both", "_channels", "_clean", "_interval", "_on", "_order", "_radius")

    def __init__(self, clean: Tensor | None, interval: Interval | None) -> None:
        self._clean, self._interval = clean, interval
        self._both: Tensor | None = None
        self._radius: Tensor | None = None
        self._on: Tensor | None = None
        self._order: tuple[int, int] | None = None
        self._channels = 0

    @classmethod
    def stacked(
        cls,
        both: Tensor,
        radius: Tensor,
        on: Tensor | None = None,
        channels: int = 0,
        order: tuple[int, int] | None = None,
    ) -> Joint:
        """Make a stacked value: both (2B, ...) clean values over centres, or (B, ...) centres alone; radius (B, ...).

        on: which of ``channels`` channels they hold, in this order; None: all. order (positions, channels): they
        are all units of an image, in NHWC order.
        """
        joint = cls(None, None)
        joint._both, joint._radius = both, radius
        joint._on, joint._channels, joint._order = on, channels, order
        return joint

    @property
    def clean(self) -> Tensor:
        if self._clean is None and self._both is not None and self._radius is not None:
            if self._both.shape[0] == self._radius.shape[0]:
                raise BoundError("the clean value of a pass that asked for bounds only")
            self._clean = self._full(self._both[: self._radius.shape[0]])
        if self._clean is None:
            raise BoundError("the clean value of a pass that asked for bounds only")
        return self._clean

    @property
    def interval(self) -> Interval:
        if self._interval is None and self._both is not None and self._radius is not None:
            center = self._both[-self._radius.shape[0] :]
            self._interval = Interval.around(self._full(center), self._full(self._radius))
        if self._interval is None:
            raise BoundError("the bounds of a pass that asked for clean values only")
        return self._interval

    def both(self, with_clean: bool) -> tuple[Tensor, Tensor]:
        """Return both and radius with all channels."""
        if self._both is not None and self._radius is not None:
            both, radius = self._part(self._both, self._radius, with_clean)
            return self._full(both), self._full(radius)
        center, radius = self.interval.center, self.interval.radius
        return (torch.cat([self.clean, center]) if with_clean else center), radius

    def narrow(self, with_clean: bool) -> tuple[Tensor, Tensor]:
        """Return both and radius with the channels that are held; ``on`` and ``order`` say which."""
        if self._both is not None and self._radius is not None and self.partial:
            return self._part(self._both, self._radius, with_clean)
        return self.both(with_clean)

    def moved(self, both: Tensor, radius: Tensor) -> Joint:
        """Return the same channels of another value."""
        return Joint.stacked(both, radius, self._on, self._channels, self._order)

    @property
    def on(self) -> Tensor | None:
        return self._on

    @property
    def order(self) -> tuple[int, int] | None:
        return self._order

    @property
    def partial(self) -> bool:
        """Does the stacked form hold something else than all channels in their order?"""
        return self._on is not None or self._order is not None

    @property
    def shape(self) -> torch.Size:
        if self._clean is not None:
            return self._clean.shape
        if self._radius is None:
            return self.interval.shape
        if self._on is None:
            return self._radius.shape
        return torch.Size((self._radius.shape[0], self._channels, *self._radius.shape[2:]))

    @staticmethod
    def _part(both: Tensor, radius: Tensor, with_clean: bool) -> tuple[Tensor, Tensor]:
        stacked = both.shape[0] > radius.shape[0]
        if with_clean and not stacked:
            raise BoundError("the clean value of a pass that asked for bounds only")
        return (both[-radius.shape[0] :] if stacked and not with_clean else both), radius

    def _full(self, value: Tensor) -> Tensor:
        if self._order is not None:
            positions, channels = self._order
            return value.view(-1, positions, channels).transpose(1, 2).reshape(value.shape)
        if self._on is None:
            return value
        shape = (value.shape[0], self._channels, *value.shape[2:])
        return value.new_zeros(shape).index_copy(1, self._on, value)
