"""Input regions: the set of inputs that a statement is about."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from surebound.errors import RadiusWarning, RegionError
from surebound.interval import Interval
from surebound.kernels import ends
from surebound.markup import facts
from surebound.norm_ball import L1Ball, L2Ball, NormBall
from surebound.numerics import Soundness, exact_fraction, float_up, radii_up, round_up, spread_outwards


def _check_images(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor):
        raise RegionError(f"{name} is a {type(x).__name__}; give a torch.Tensor of shape (B, ...)")
    if not x.is_floating_point():
        raise RegionError(f"{name} has dtype {x.dtype}; {_as_floats(x)}")
    if x.dim() < 1:
        raise RegionError(f"{name} has no batch axis; give shape (B, ...), e.g. {name}.unsqueeze(0)")
    if bool(torch.isnan(x).any()):
        raise RegionError(f"{name} contains NaN; clean the data first (torch.isnan({name}).nonzero() finds them)")


def _as_floats(x: Tensor) -> str:
    """Advise how inputs that are whole numbers become points of a region."""
    if x.dtype == torch.uint8:
        return "give floating point values, e.g. images.float() / 255 for byte images"
    return (
        "numbers of tokens or categories have no neighbours within a radius: give a region around what they are "
        "embedded to, embedding(ids), and the network without its embedding; bytes of images: images.float() / 255"
    )


@dataclass(frozen=True)
class Box:
    """All inputs between two tensors.

    >>> Box(torch.zeros(1, 2), torch.ones(1, 2)).interval().radius
    tensor([[0.5000, 0.5000]])
    """

    lower: Tensor  # (B, ...)
    upper: Tensor  # (B, ...)

    def __post_init__(self) -> None:
        _check_images(self.lower, "lower")
        _check_images(self.upper, "upper")
        if self.lower.shape != self.upper.shape or self.lower.dtype != self.upper.dtype:
            raise RegionError(
                f"lower is {self.lower.dtype} {tuple(self.lower.shape)} but upper is {self.upper.dtype} "
                f"{tuple(self.upper.shape)}; give two tensors of one shape and dtype"
            )
        if bool((self.lower > self.upper).any()):
            at = tuple(int(i) for i in (self.lower > self.upper).nonzero()[0])
            raise RegionError(f"the box is empty: lower > upper at index {at}; swap the two or check the data")

    def interval(self, soundness: Soundness = Soundness.DEPLOYED) -> Interval:
        """Return the box as bounds; exact in every mode."""
        return Interval(self.lower, self.upper)

    @property
    def makes_memory(self) -> bool:
        """Is the memory of ``interval()`` its own, so that it may be overwritten?"""
        return False

    @property
    def reference(self) -> Tensor:
        """One input inside the region: where attacks start and statistics are taken."""
        return (self.lower + self.upper) / 2

    def __getitem__(self, index: slice | Tensor) -> Box:
        return Box(self.lower[index], self.upper[index])

    def __len__(self) -> int:
        return int(self.lower.shape[0])

    def __repr__(self) -> str:
        return f"Box({tuple(self.lower.shape)} {self.lower.dtype})"

    def _repr_html_(self) -> str:
        values: dict[str, object] = {"shape": tuple(self.lower.shape), "dtype": self.lower.dtype}
        if self.lower.numel():
            values["from, to"] = f"{float(self.lower.min()):.4g}, {float(self.upper.max()):.4g}"
        return facts("Box", values)


@dataclass(frozen=True)
class LinfBall:
    """All inputs within ``eps`` of ``x`` in every coordinate, inside ``clip`` if given.

    ``eps`` is kept exact: give ``"8/255"``, not 0.03137. Coordinates may have radii of their own: a tensor as ``eps``
    (per pixel, or per channel (C, 1, 1)), or ``scale``, which ``eps`` is multiplied with; floats are taken exactly.

    >>> LinfBall(torch.zeros(2, 3), eps="8/255", clip=(0, 1))
    LinfBall((2, 3) torch.float32, eps=8/255, clip=(0.0, 1.0))
    >>> LinfBall(torch.full((1, 1), 0.5), eps="1/4", clip=(0, 1)).interval(Soundness.NONE).upper
    tensor([[0.7500]])
    >>> LinfBall(torch.zeros(1, 2), torch.tensor([0.25, 0.0])).interval().upper
    tensor([[0.2500, 0.0000]])
    """

    x: Tensor  # (B, ...)
    eps: Fraction
    clip: tuple[float, float] | None = field(default=None)
    scale: Tensor | None = field(default=None)  # (1, ...) or (B, ...) float64

    def __init__(
        self,
        x: Tensor,
        eps: str | int | float | Fraction | Tensor,
        clip: tuple[float, float] | None = None,
        scale: Tensor | None = None,
    ) -> None:
        if isinstance(eps, Tensor):
            if scale is not None:
                raise RegionError("eps is a tensor and scale is given; give one number as eps, or no scale")
            scale, eps = eps, 1
        radius = exact_fraction(eps)
        if radius < 0:
            raise RegionError(f"eps={eps!r} is negative; a radius is 0 or more")
        _check_images(x, "x")
        if clip is not None:
            if not (len(clip) == 2 and clip[0] <= clip[1]):
                raise RegionError(f"clip={clip!r}; give (lowest, highest) valid input values, e.g. (0, 1)")
            clip = float(clip[0]), float(clip[1])  # one spelling, which stores of results are known by
            if bool((x < clip[0]).any() or (x > clip[1]).any()):
                raise RegionError(
                    f"x has values in [{float(x.min()):.6g}, {float(x.max()):.6g}], outside clip={clip!r}; "
                    "scale the images into the clip range or pass clip=None"
                )
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "eps", radius)
        object.__setattr__(self, "clip", clip)
        object.__setattr__(self, "scale", None if scale is None else _checked_scale(scale, x))

    def interval(self, soundness: Soundness = Soundness.DEPLOYED) -> Interval:
        """Return the ball as bounds; in REAL and DEPLOYED its ends are rounded outwards."""
        if self.eps == 0:
            return Interval.point(self.x)
        if self.scale is not None:
            return self._scaled(self.scale, soundness)
        if soundness is not Soundness.NONE:
            radius = _float_radius(self.eps, self.x.dtype)
            return Interval(*ends.ball(self.x, radius, *_float_clip(self.clip, self.x.dtype)))
        lower, upper = self.x - float(self.eps), self.x + float(self.eps)
        if self.clip is not None:
            lower, upper = lower.clamp_(*self.clip), upper.clamp_(*self.clip)
        return Interval(lower, upper)

    def _scaled(self, scale: Tensor, soundness: Soundness) -> Interval:
        """Return the bounds of a ball whose coordinates have radii of their own."""
        if soundness is Soundness.NONE:
            radii = (float(self.eps) * scale).to(self.x)
            lower, upper = self.x - radii, self.x + radii
        else:
            radii = radii_up(self.eps, scale, self.x.dtype).to(self.x.device)
            lower, upper = spread_outwards(self.x, radii)
        least, most = _float_clip(self.clip, self.x.dtype)
        return Interval(lower.clamp(least, most), upper.clamp(least, most))

    @property
    def makes_memory(self) -> bool:
        """Is the memory of ``interval()`` its own, so that it may be overwritten?"""
        return self.eps != 0

    @property
    def widest(self) -> Fraction:
        """The largest radius of a coordinate."""
        return self.eps if self.scale is None else self.eps * Fraction(float(self.scale.max()))

    def around(self, x: Tensor, eps: Fraction) -> LinfBall:
        """Return the ball of this kind, with its clip and its scale (1, ...), around other inputs (B, ...)."""
        return LinfBall(x, eps, self.clip, self.scale)

    @property
    def reference(self) -> Tensor:
        """One input inside the region: where attacks start and statistics are taken."""
        return self.x

    def __getitem__(self, index: slice | Tensor) -> LinfBall:
        scale = self.scale if self.scale is None or len(self.scale) == 1 else self.scale[index]
        return LinfBall(self.x[index], self.eps, self.clip, scale)

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def __repr__(self) -> str:
        scale = "" if self.scale is None else f", scale of {tuple(self.scale.shape)}"
        return f"LinfBall({tuple(self.x.shape)} {self.x.dtype}, eps={self.eps}, clip={self.clip}{scale})"

    def _repr_html_(self) -> str:
        clip = "all numbers" if self.clip is None else f"[{self.clip[0]:g}, {self.clip[1]:g}]"
        radius = f"{self.eps} ({float(self.eps):.4g})" if self.eps.denominator > 1 else str(self.eps)
        if self.scale is not None:
            radius = f"from {float(self.eps) * float(self.scale.min()):.4g} to {float(self.widest):.4g}"
        values = {"around": tuple(self.x.shape), "dtype": self.x.dtype, "radius": radius, "valid inputs": clip}
        return facts("LinfBall", values)


Region = Box | LinfBall | NormBall

#: Balls by the names that they have everywhere.
BALLS: dict[str, type[LinfBall | L2Ball | L1Ball]] = {"linf": LinfBall, "l2": L2Ball, "l1": L1Ball}


def _checked_scale(scale: Tensor, x: Tensor) -> Tensor:
    """Return radii per coordinate as float64 of shape (1, ...) or (B, ...); refuse what is none."""
    if not isinstance(scale, Tensor) or scale.dtype.is_complex:
        raise RegionError(f"the radii per coordinate are a {type(scale).__name__}; give a torch.Tensor of numbers")
    wide = scale.detach().double()
    if not bool((wide >= 0).all() and wide.isfinite().all()):
        raise RegionError("radii per coordinate must be finite and 0 or more; one is negative, infinite or NaN")
    try:
        batch = 1 if wide.dim() < x.dim() else int(wide.shape[0])
        if batch not in (1, len(x)):
            raise RuntimeError
        return wide.expand(batch, *x.shape[1:])
    except RuntimeError:
        raise RegionError(
            f"radii of shape {tuple(scale.shape)} do not fit inputs of shape {tuple(x.shape)}; give one per entry "
            f"{tuple(x.shape[1:])}, per channel (C, 1, 1), or per example and entry"
        ) from None


def warn_if_wide(radii: Iterable[Fraction], clip: tuple[float, float] | None) -> None:
    """Warn of a radius that reaches across all valid inputs: 8 was given, and 8/255 was meant."""
    if clip is None or not all(map(math.isfinite, clip)):
        return
    span = exact_fraction(clip[1], "clip") - exact_fraction(clip[0], "clip")
    wide = [eps for eps in radii if eps >= span > 0]
    if wide:
        warnings.warn(
            f"eps {wide[0]} is as wide as the range of valid inputs, [{clip[0]:g}, {clip[1]:g}]: every input is within "
            f"it; was {_shown(wide[0])}/255 meant?",
            RadiusWarning,
            stacklevel=3,
        )


def _shown(eps: Fraction) -> str:
    """Write a radius as one may put it over 255: 8, 25.5."""
    return f"{float(eps):g}"


def project(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the closest point of a box; NaN becomes the lower end, because fmax and fmin ignore it."""
    inside = torch.fmax(x, lower)
    return torch.fmin(inside, upper, out=inside)


def check_region(region: Region, *, empty: bool = False) -> None:
    """Refuse what is no region, before its attributes are missed, and a region of no examples unless ``empty``.

    >>> check_region(torch.zeros(1, 2))
    Traceback (most recent call last):
    ...
    surebound.errors.RegionError: the region is a Tensor; give sb.LinfBall(x, eps, clip=(0, 1)) or sb.Box(lower, upper)
    """
    if not isinstance(region, Region):
        raise RegionError(
            f"the region is a {type(region).__name__}; give sb.LinfBall(x, eps, clip=(0, 1)) or sb.Box(lower, upper)"
        )
    if not len(region) and not empty:
        raise RegionError("the batch is empty; give at least one example")


@cache
def _float_radius(eps: Fraction, dtype: torch.dtype) -> float:
    """Return the smallest number of the dtype that is not below eps, whatever its sign."""
    return float(round_up(torch.tensor(float_up(eps), dtype=torch.float64), dtype))


@cache
def _float_clip(clip: tuple[float, float] | None, dtype: torch.dtype) -> tuple[float, float]:
    """Return the closest numbers of the dtype around clip: 0.9 lies above the float32 that is closest to it."""
    if clip is None:
        return -math.inf, math.inf
    low, high = (end if math.isinf(end) else exact_fraction(end, "clip") for end in clip)
    low = low if isinstance(low, float) else -_float_radius(-low, dtype)
    return low, high if isinstance(high, float) else _float_radius(high, dtype)
