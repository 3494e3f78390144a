"""The interval: a box of activations, kept by its ends or by its centre and radius, converted when first asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from surebound.errors import InputError


class Deferred(Protocol):
    """An increasing elementwise function, exact in floats, that is applied when its values are asked for."""

    def ends(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Applied to ends, in their memory."""

    def center(self, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """From centre and radius to those after it (centre, twice the radius), in their memory.

        The same bits as forming the ends, applying ``ends`` and converting back.
        """


class Interval:
    """Bounds of a tensor. Immutable; every conversion is done at most once.

    Affine operators want (center, radius), increasing ones want (lower, upper); see Gowal et al. 2018, eq. 6-7.
    ``lower`` and ``upper`` are the sound ends. ``center`` and ``radius`` are rounded: whoever multiplies them
    pays for that through numerics/.

    >>> box = Interval(torch.tensor([-1.0]), torch.tensor([3.0]))
    >>> box.center, box.radius
    (tensor([1.]), tensor([2.]))
    """

    __slots__ = ("_center", "_lower", "_pending", "_radius", "_upper", "centered")

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        if lower.shape != upper.shape:
            raise InputError(f"lower has shape {tuple(lower.shape)} but upper {tuple(upper.shape)}")
        self._lower: Tensor | None = lower
        self._upper: Tensor | None = upper
        self._center: Tensor | None = None
        self._radius: Tensor | None = None
        self._pending: Deferred | None = None
        #: Is its centre exact, because an affine operator made it? A converted one is rounded.
        self.centered = False

    @classmethod
    def around(cls, center: Tensor, radius: Tensor) -> Interval:
        """[center - radius, center + radius]; the radius has paid for the roundings of that."""
        interval = cls.__new__(cls)
        interval._lower = interval._upper = None
        interval._center, interval._radius, interval._pending = center, radius, None
        interval.centered = True
        return interval

    def deferring(self, function: Deferred) -> Interval:
        """This interval's image, computed when it is asked for, in this interval's memory: its owner calls this.

        A product that follows then needs one pass over the activations instead of six.
        """
        if self._center is None or self._radius is None or self._pending is not None:
            return Interval(*function.ends(*self.consume_ends()))
        image = Interval.around(*self._give_up(self._center, self._radius))
        image._pending, image.centered = function, False
        return image

    @classmethod
    def point(cls, value: Tensor) -> Interval:
        """The interval that holds one value."""
        interval = cls(value, value)
        interval._center, interval._radius = value, torch.zeros_like(value)
        interval.centered = True
        return interval

    @property
    def lower(self) -> Tensor:
        if self._pending is not None:
            self._apply_pending()
        if self._lower is None:
            self._lower = self.center - self.radius
        return self._lower

    @property
    def upper(self) -> Tensor:
        if self._pending is not None:
            self._apply_pending()
        if self._upper is None:
            self._upper = self.center + self.radius
        return self._upper

    @property
    def center(self) -> Tensor:
        if self._pending is not None:
            self._apply_pending()
        if self._center is None:
            self._center = (self.lower + self.upper) * 0.5
        return self._center

    @property
    def radius(self) -> Tensor:
        if self._pending is not None:
            self._apply_pending()
        if self._radius is None:
            self._radius = (self.upper - self.lower) * 0.5
        return self._radius

    @property
    def magnitude(self) -> Tensor:
        """max |x| over the interval."""
        return self.lower.neg().clamp_(min=self.upper)

    @property
    def shape(self) -> torch.Size:
        return self._any().shape

    @property
    def dtype(self) -> torch.dtype:
        return self._any().dtype

    @property
    def device(self) -> torch.device:
        return self._any().device

    def _any(self) -> Tensor:
        value = self._lower if self._center is None else self._center
        if value is None:  # pragma: no cover - the constructors make this impossible
            raise InputError("an Interval without ends and without centre")
        return value

    def _apply_pending(self) -> None:
        """From now on the interval is kept by its ends."""
        lower, upper = self.consume_ends()
        self._lower, self._upper = lower, upper

    def consume_ends(self) -> tuple[Tensor, Tensor]:
        """Lower and upper in the interval's own memory; the interval must not be used after that."""
        function, self._pending = self._pending, None
        if self._lower is None or self._upper is None:
            upper, radius = self.center, self.radius
            self._upper = upper.add_(radius)
            self._lower = torch.sub(
                upper, radius, alpha=2, out=radius
            )  # two roundings: docs/soundness.md, "Who pays"
        lower, upper = self._give_up(self._lower, self._upper)
        return (lower, upper) if function is None else function.ends(lower, upper)

    def consume_center(self) -> tuple[Tensor, Tensor, float]:
        """Centre, and a multiple of the radius with the factor that makes it the radius, in the interval's own memory.

        The factor saves a pass over the activations. The interval must not be used after that.
        """
        function, self._pending = self._pending, None
        if self._center is not None and self._radius is not None:
            center, radius = self._give_up(self._center, self._radius)
            return (center, radius, 1.0) if function is None else (*function.center(center, radius), 0.5)
        lower, upper = self.lower, self.upper
        width = upper.sub_(lower)
        return *self._give_up(lower.add_(width, alpha=0.5), width), 0.5

    def scaled_center(self) -> tuple[Tensor, Tensor, float]:
        """``consume_center``, the same bits, for a reader among others: nothing may be overwritten."""
        if self._pending is not None:
            self._apply_pending()
        if self._center is not None and self._radius is not None:
            return self._center, self._radius, 1.0
        width = self.upper - self.lower
        return torch.add(self.lower, width, alpha=0.5), width, 0.5

    def _give_up(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        self._lower = self._upper = self._center = self._radius = None
        return a, b

    def select(self, move: Callable[[Tensor], Tensor], *, consume: bool = False) -> Interval:
        """Apply an operation that only moves, repeats or drops entries: exact on either form, no rounding.

        ``consume``: the interval is not used after that, and its memory is freed one half at a time.
        """
        if self._pending is not None and not consume:
            self._apply_pending()
        function, self._pending = self._pending, None
        ends = self._lower is not None and self._upper is not None
        make = Interval if ends else Interval.around
        first, second = (self.lower, self.upper) if ends else (self.center, self.radius)
        if consume:
            self._give_up(first, second)
        entries = first.numel()
        first = move(first)  # where it makes a copy, this frees what it copied
        second = move(second)
        if function is None:
            return make(first, second)
        if first.numel() != entries:  # entries repeated in place would be overwritten twice
            first, second = first.clone(), second.clone()
        return make(first, second).deferring(function)

    def detach(self) -> Interval:
        """The same bounds without gradients."""
        return Interval(self.lower.detach(), self.upper.detach())

    def contains(self, value: Tensor) -> Tensor:
        """Elementwise: is the value inside? NaN never is.

        >>> Interval(torch.zeros(2), torch.ones(2)).contains(torch.tensor([0.5, 2.0]))
        tensor([ True, False])
        """
        return (self.lower <= value) & (value <= self.upper)

    def __repr__(self) -> str:
        form = "center/radius" if self.centered else "ends"
        return f"Interval(shape={tuple(self.shape)}, dtype={self.dtype}, {form})"
