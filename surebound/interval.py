"""The interval: a box of activations, kept by its ends or by its centre and radius, converted when first asked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from surebound.errors import InputError
from surebound.markup import facts


class Interval:
    """Bounds of a tensor. Immutable; every conversion is done at most once, when it is first asked for.

    Affine operators want (center, radius), increasing ones want (lower, upper); see Gowal et al. 2018, eq. 6-7.
    ``lower`` and ``upper`` are the sound ends. ``center`` and ``radius`` are rounded: a product with them
    adds the error bound of numerics/.

    >>> box = Interval(torch.tensor([-1.0]), torch.tensor([3.0]))
    >>> box.center, box.radius
    (tensor([1.]), tensor([2.]))
    """

    __slots__ = ("_center", "_lower", "_radius", "_upper", "centered")

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        if lower.shape != upper.shape:
            raise InputError(f"lower has shape {tuple(lower.shape)} but upper {tuple(upper.shape)}")
        self._lower: Tensor | None = lower
        self._upper: Tensor | None = upper
        self._center: Tensor | None = None
        self._radius: Tensor | None = None
        #: Is its centre exact, because an affine operator made it? A converted one is rounded.
        self.centered = False

    @classmethod
    def around(cls, center: Tensor, radius: Tensor) -> Interval:
        """Make [center - radius, center + radius]; the radius covers the roundings of computing that."""
        interval = cls.__new__(cls)
        interval._lower = interval._upper = None
        interval._center, interval._radius = center, radius
        interval.centered = True
        return interval

    @classmethod
    def point(cls, value: Tensor) -> Interval:
        """Make the interval that holds one value."""
        interval = cls(value, value)
        interval._center, interval._radius = value, torch.zeros_like(value)
        interval.centered = True
        return interval

    @property
    def lower(self) -> Tensor:
        if self._lower is None:
            self._lower = self.center - self.radius
        return self._lower

    @property
    def upper(self) -> Tensor:
        if self._upper is None:
            self._upper = self.center + self.radius
        return self._upper

    @property
    def center(self) -> Tensor:
        if self._center is None:
            self._center = (self.lower + self.upper) * 0.5
        return self._center

    @property
    def radius(self) -> Tensor:
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

    def scaled_center(self) -> tuple[Tensor, Tensor, float]:
        """Return the centre, a multiple of the radius, and the factor that makes it the radius: saves a pass."""
        if self._center is not None and self._radius is not None:
            return self._center, self._radius, 1.0
        width = self.upper - self.lower
        return torch.add(self.lower, width, alpha=0.5), width, 0.5

    def select(self, move: Callable[[Tensor], Tensor]) -> Interval:
        """Apply an operation that only moves, repeats or drops entries: exact on either form, no rounding."""
        if self._lower is not None and self._upper is not None:
            return Interval(move(self._lower), move(self._upper))
        return Interval.around(move(self.center), move(self.radius))

    def take(self, index: slice | Tensor) -> Interval:
        """Return some of the examples, along the first axis."""
        return self.select(lambda v: v[index])

    def detach(self) -> Interval:
        """Return the same bounds without gradients."""
        return Interval(self.lower.detach(), self.upper.detach())

    def contains(self, value: Tensor) -> Tensor:
        """Say elementwise whether the value is inside; NaN never is.

        >>> Interval(torch.zeros(2), torch.ones(2)).contains(torch.tensor([0.5, 2.0]))
        tensor([ True, False])
        """
        return (self.lower <= value) & (value <= self.upper)

    def __repr__(self) -> str:
        form = "center/radius" if self.centered else "ends"
        return f"Interval(shape={tuple(self.shape)}, dtype={self.dtype}, {form})"

    def _repr_html_(self) -> str:
        lower, upper = self.lower.detach(), self.upper.detach()
        values: dict[str, object] = {"shape": tuple(self.shape), "dtype": self.dtype, "device": self.device}
        if lower.numel():
            width = upper - lower
            values["from, to"] = f"{float(lower.min()):.4g}, {float(upper.max()):.4g}"
            values["width: mean, largest"] = f"{float(width.double().mean()):.4g}, {float(width.max()):.4g}"
        return facts("Interval", values)


def intersect(x: Interval, y: Interval) -> Interval:
    """Intersect two bounds; NaN in the second says nothing, in the first that the value itself may be NaN."""
    lower, upper = torch.fmax(x.lower, y.lower), torch.fmin(x.upper, y.upper)
    odd = x.lower.isnan() | x.upper.isnan()
    if not bool(odd.any()):
        return Interval(lower, upper)
    return Interval(torch.where(odd, x.lower, lower), torch.where(odd, x.upper, upper))
