"""Bounds in memory that may be overwritten: they make interval bounds without gradients cheap; only rules see them.

Only the overwriting pass of ``bounds/interval.py`` makes an ``Owned``, of bounds that are read only by the call that
gets it. A rule may take its memory; what a rule returns is never an ``Owned``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from surebound.interval import Interval


class InPlace(Protocol):
    """An increasing elementwise function, exact in floats, applied in the memory of its argument."""

    def ends(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the function to ends."""

    def center(self, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the function to centre and radius: return the new centre and twice the new radius.

        The same bits as forming the ends, applying ``ends`` and converting back.
        """


class Deferred(Interval):
    """The image of bounds under a function that is applied when it is first asked for, in memory of its own.

    A product that follows then needs one pass over the activations instead of six.
    """

    __slots__ = ("_function",)
    _function: InPlace | None

    @classmethod
    def image(cls, function: InPlace, center: Tensor, radius: Tensor) -> Deferred:
        """Return the image of [center - radius, center + radius], whose memory becomes the image's."""
        deferred = cls.__new__(cls)
        deferred._center, deferred._radius, deferred._function = center, radius, function
        deferred._lower = deferred._upper = None
        deferred.centered = False
        return deferred

    @property
    def lower(self) -> Tensor:
        if self._function is not None:
            self._apply(self._function)
        return super().lower

    @property
    def upper(self) -> Tensor:
        if self._function is not None:
            self._apply(self._function)
        return super().upper

    @property
    def center(self) -> Tensor:
        if self._function is not None:
            self._apply(self._function)
        return super().center

    @property
    def radius(self) -> Tensor:
        if self._function is not None:
            self._apply(self._function)
        return super().radius

    def scaled_center(self) -> tuple[Tensor, Tensor, float]:
        if self._function is not None:
            self._apply(self._function)
        return super().scaled_center()

    def select(self, move: Callable[[Tensor], Tensor]) -> Interval:
        if self._function is not None:
            self._apply(self._function)
        return super().select(move)

    def _apply(self, function: InPlace) -> None:
        """Keep the image by its ends from now on."""
        self._function = None
        self._lower, self._upper = function.ends(*_ends(self.center, self.radius))
        self._center = self._radius = None


class Owned(Deferred):
    """Bounds that the call which gets them may overwrite. A method that takes the memory leaves nothing behind."""

    __slots__ = ()

    @classmethod
    def taking(cls, bounds: Interval) -> Owned:
        """Take over the memory of bounds, which may not be used afterwards."""
        owned = cls.__new__(cls)
        owned._lower, owned._upper = bounds._lower, bounds._upper
        owned._center, owned._radius = bounds._center, bounds._radius
        owned._function = bounds._function if isinstance(bounds, Deferred) else None
        owned.centered = bounds.centered
        return owned

    def given_back(self) -> Interval:
        """Return plain bounds in the same memory, for any number of readers; this object is used up."""
        if self._function is not None:
            self._apply(self._function)
        bounds = Interval.__new__(Interval)
        bounds._lower, bounds._upper = self._lower, self._upper
        bounds._center, bounds._radius = self._center, self._radius
        bounds.centered = self.centered
        self._lower = self._upper = self._center = self._radius = None
        return bounds

    def take_ends(self) -> tuple[Tensor, Tensor]:
        """Return lower and upper end, in the memory of the bounds."""
        function, self._function = self._function, None
        if self._lower is None or self._upper is None:
            lower, upper = _ends(*self._leave(self.center, self.radius))
        else:
            lower, upper = self._leave(self._lower, self._upper)
        return (lower, upper) if function is None else function.ends(lower, upper)

    def take_center(self) -> tuple[Tensor, Tensor, float]:
        """Return ``scaled_center``, the same bits, in the memory of the bounds."""
        function, self._function = self._function, None
        if self._center is not None and self._radius is not None:
            center, radius = self._leave(self._center, self._radius)
            return (center, radius, 1.0) if function is None else (*function.center(center, radius), 0.5)
        lower, upper = self._leave(self.lower, self.upper)
        width = upper.sub_(lower)
        return lower.add_(width, alpha=0.5), width, 0.5

    def deferring(self, function: InPlace) -> Interval:
        """Return the image under a function, computed when it is asked for."""
        if self._center is None or self._radius is None or self._function is not None:
            return Interval(*function.ends(*self.take_ends()))
        return Deferred.image(function, *self._leave(self._center, self._radius))

    def moving(self, move: Callable[[Tensor], Tensor]) -> Interval:
        """Apply ``select``; where ``move`` makes copies, the memory is freed one half at a time."""
        function, self._function = self._function, None
        ends = self._lower is not None and self._upper is not None
        make = Interval if ends else Interval.around
        first, second = self._leave(*((self.lower, self.upper) if ends else (self.center, self.radius)))
        entries = first.numel()
        first = move(first)
        second = move(second)
        if function is None:
            return make(first, second)
        if first.numel() != entries:  # entries repeated in place would be overwritten twice
            first, second = first.clone(), second.clone()
        return Deferred.image(function, first, second)

    def _leave(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        self._lower = self._upper = self._center = self._radius = None
        return a, b


def _ends(center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return lower and upper end in the memory of centre and radius. Two roundings: docs/soundness.md, "Who pays"."""
    upper = center.add_(radius)
    return torch.sub(upper, radius, alpha=2, out=radius), upper
