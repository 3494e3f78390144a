"""Rounding, tolerances and exact numbers: the only place that knows floating-point arithmetic.

Notation of docs/soundness.md: ``u`` is the unit roundoff (2^-24 for float32), ``gamma(n) = n u / (1 - n u)``
bounds the relative error of a sum of n products in *any* order, with or without fused multiply-add (Higham,
*Accuracy and Stability of Numerical Algorithms*, 2nd ed., section 3.1), ``tiny`` is the smallest normal number,
so that flushing subnormals to zero is covered too.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.errors import InputError

#: Roundings that a conversion between ends and centre/radius, and our own use of constants, may cost;
#: every affine rule pays for them in advance (docs/soundness.md, "Who pays").
PREPAID_ROUNDINGS = 12

#: How far a traced program may be from its module on the check inputs, relative to the largest output.
TRACE_TOLERANCE = 1e-4

#: How far an LP or MIP solver may violate a constraint, or a binary be from 0 and 1: its proofs are not float-sound.
SOLVER_FEASIBILITY = 1e-7

#: A solver's incumbent above this is worth stopping for: smaller ones often are its tolerance, not a violation.
WITNESS_MARGIN = 1e-3

# Exponents of a few digits only: the exact 10^999999999 would take all memory.
_FRACTION = re.compile(
    r"\s*([+-]?[0-9.]+(?:[eE][+-]?[0-9]{1,4})?)\s*(?:/\s*([0-9.]+(?:[eE][+-]?[0-9]{1,4})?))?\s*"
)
_LARGEST = Fraction(float(np.finfo(np.float64).max))


class Soundness(enum.Enum):
    """Which executions of the network the bounds contain.

    NONE      plain floating point, no rounding control: for training.
    REAL      every exact-real result of the network with its stored weights.
    DEPLOYED  also every execution in the network's own dtype, whatever the order of summation, with or
              without FMA.
    """

    NONE = "none"
    REAL = "real"
    DEPLOYED = "deployed"

    @classmethod
    def of(cls, value: Soundness | str) -> Soundness:
        """Accept the enum or its name."""
        try:
            return value if isinstance(value, Soundness) else cls(value)
        except ValueError:
            raise InputError(
                f"soundness={value!r} is not known; use 'none' (training), 'real' or 'deployed' (verification)"
            ) from None


def exact_fraction(value: str | int | float | Fraction, name: str = "eps") -> Fraction:
    """Read a number without rounding it: ``"8/255"`` stays 8/255 and ``0.1`` means one tenth.

    A float is read by its shortest decimal form, because that is what its author typed.

    >>> exact_fraction("8/255"), exact_fraction(0.1), exact_fraction("1e-2")
    (Fraction(8, 255), Fraction(1, 10), Fraction(1, 100))
    """
    found = value if isinstance(value, Fraction) else _read_fraction(value, name)
    if abs(found) > _LARGEST:
        raise InputError(f"{name}={value!r} is too large; the largest float64 is 1.8e308")
    return found


def _read_fraction(value: str | int | float, name: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError(
            f"{name}={value!r} is of type {type(value).__name__}; give a fraction such as '8/255' or '1/10', "
            f"or a Python number, float({name})"
        )
    # float's own form: NumPy's float64 is a float that writes itself otherwise.
    text = float.__repr__(value) if isinstance(value, float) else str(value)
    match = _FRACTION.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        return Fraction(match[1]) / Fraction(match[2] or 1)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{name}={value!r} is not a finite number; give one like 0.1, '8/255' or Fraction(8, 255)"
        ) from None


def float_up(value: Fraction) -> float:
    """The smallest float64 that is not below ``value``."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def outer_float32(
    lower: Sequence[Fraction], upper: Sequence[Fraction]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Float32 ends (N,) of a box that contains the box of two lists of fractions.

    >>> outer_float32([Fraction(1, 10)], [Fraction(1, 10)])
    (array([0.09999999], dtype=float32), array([0.1], dtype=float32))
    """
    return -_float32_up([-v for v in lower]), _float32_up(upper)


def _float32_up(values: Sequence[Fraction]) -> NDArray[np.float32]:
    wide = np.array([float_up(v) for v in values], dtype=np.float64)
    with np.errstate(over="ignore"):
        near = wide.astype(np.float32)
    low = near.astype(np.float64) < wide
    return np.where(low, np.nextafter(near, np.float32(np.inf)), near).astype(np.float32)


@cache
def unit_roundoff(dtype: torch.dtype) -> float:
    """u: the largest relative error of one correctly rounded operation."""
    return float(torch.finfo(dtype).eps) / 2


@cache
def tiny(dtype: torch.dtype) -> float:
    """The smallest normal number: an operation that underflows is wrong by at most this."""
    return float(torch.finfo(dtype).tiny)


@cache
def gamma(n: int, dtype: torch.dtype) -> float:
    """gamma_n = n u / (1 - n u), rounded up; refuses sums so long that it means nothing."""
    nu = n * unit_roundoff(dtype)
    if nu >= 0.25:
        raise InputError(
            f"a sum of {n} terms in {dtype} has no useful rounding bound; convert the network to float64"
        )
    return nu / (1 - nu) * (1 + 1e-9)


@dataclass(frozen=True)
class AffineRounding:
    """What an affine operation with ``terms`` summands must add to its radius (docs/soundness.md, Lemma 1).

    The radius of the output is |A| (on_radius * r + on_center * |mu| + absolute) + on_bias * |b| + absolute.
    """

    on_radius: float
    on_center: float
    on_bias: float
    absolute: float

    @classmethod
    def of(cls, terms: int, dtype: torch.dtype, soundness: Soundness) -> AffineRounding:
        """Constants for one affine operation; NONE has none of them."""
        if soundness is Soundness.NONE:
            return cls(1.0, 0.0, 0.0, 0.0)
        g = gamma(terms + PREPAID_ROUNDINGS, dtype)
        # Ours once (computing the centre); in DEPLOYED once more for the network's own rounding.
        times = 2 if soundness is Soundness.DEPLOYED else 1
        own = times * g * (1 + 4 * g)
        return cls(1 + times * g + 8 * g * g, own, own, 8 * (terms + PREPAID_ROUNDINGS) * tiny(dtype))

    @property
    def is_free(self) -> bool:
        """Nothing to pay: training."""
        return self.on_center == 0.0

    def radius_in(self, center: Tensor, radius: Tensor) -> Tensor:
        """What to multiply by |A|: the radius with the rounding of the centre's product folded in."""
        if self.is_free:
            return radius
        paid = center.abs().mul_(self.on_center)  # one new array: fresh memory costs more than arithmetic
        return paid.add_(radius, alpha=self.on_radius).add_(self.absolute)

    def after(self, terms: int, largest: float) -> float:
        """``radius_in`` adds ``absolute`` before the product with |A|; this, added after it, is at least as much.

        ``largest``: of all entries of |A|.
        """
        return self.absolute * (2 * terms * largest)

    def guarded(self, radius: Tensor, at_most: float = math.nan) -> Tensor:
        """NaN where some order of summation might overflow, or ours did: |A||x| + |b| <= 2 radius / on_center.

        ``at_most``: a number that no entry of the radius exceeds, if there is one that costs nothing.
        """
        if self.is_free or not radius.numel():
            return radius
        limit = 0.5 * self.on_center * float(torch.finfo(radius.dtype).max)
        if at_most <= limit or bool(radius.detach().amax() <= limit):
            return radius
        return torch.where(radius <= limit, radius, torch.full_like(radius, math.nan))

    def bias_in(self, bias: Tensor | None) -> Tensor | float:
        """What to add after |A| r: the rounding of the bias and of underflow."""
        if self.is_free:
            return 0.0
        return self.absolute if bias is None else bias.abs() * self.on_bias + self.absolute


def pay(center: Tensor, radius: Tensor, soundness: Soundness, roundings: int = 1) -> Tensor:
    """A radius that covers ``roundings`` elementwise roundings of values in [center - radius, center + radius]."""
    if soundness is Soundness.NONE:
        return radius
    u = unit_roundoff(radius.dtype)
    k = 2 * (roundings + PREPAID_ROUNDINGS) * u
    paid = torch.add(radius * (1 + k), center.abs(), alpha=k) + 8 * (roundings + 1) * tiny(radius.dtype)
    return torch.add(paid, paid, alpha=0)  # 0 times infinity: NaN


def outward(
    lower: Tensor,
    upper: Tensor,
    soundness: Soundness,
    ulps: float,
    absolute: float | Tensor = 0.0,
    underflow: float = 2.0,
) -> tuple[Tensor, Tensor]:
    """Move both ends outwards so that they cover an evaluation that is wrong by ``ulps`` eps |value|
    plus ``absolute`` eps plus ``underflow`` tiny, where eps = 2 u.

    Once for our own evaluation of the ends; in DEPLOYED a second time for the network's own.
    """
    if soundness is Soundness.NONE or (ulps == 0 and isinstance(absolute, float) and absolute == 0):
        return lower, upper
    info = torch.finfo(lower.dtype)
    times = 2 if soundness is Soundness.DEPLOYED else 1
    # One more ulp and 2^-9 more for products of errors and for the roundings of these very lines.
    rate = (times * ulps + 1) * info.eps
    rest = absolute * (times * info.eps * (1 + 2.0**-9)) + (times * underflow + 2) * info.tiny
    return lower - (lower.abs() * rate + rest), upper + (upper.abs() * rate + rest)


def down(value: Tensor, ulps: float = 1) -> Tensor:
    """At most ``value`` less ``ulps`` units in the last place."""
    info = torch.finfo(value.dtype)
    return value - (value.abs() * ((ulps + 1) * info.eps) + 2 * info.tiny)


def up(value: Tensor, ulps: float = 1) -> Tensor:
    """At least ``value`` plus ``ulps`` units in the last place."""
    info = torch.finfo(value.dtype)
    return value + (value.abs() * ((ulps + 1) * info.eps) + 2 * info.tiny)


def defined(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """NaN at both ends where one is NaN or both are infinite: there an execution may meet inf - inf or 0 inf.

    An infinite end stands for values that may be infinite; NaN stands for values that may be NaN, and stays NaN.
    """
    odd = (lower + upper).isnan()
    if not bool(odd.any()):
        return lower, upper
    return lower.masked_fill(odd, math.nan), upper.masked_fill(odd, math.nan)


def no_information(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """NaN means that nothing is known: return the whole line there, never a number that looks proved."""
    odd = lower.isnan() | upper.isnan()
    return lower.masked_fill(odd, -math.inf), upper.masked_fill(odd, math.inf)


def nothing_known(upper: Tensor) -> Tensor:
    """Upper bounds with infinity instead of NaN."""
    return upper.nan_to_num(math.inf, math.inf, -math.inf)


def proved(bound: Tensor) -> Tensor:
    """True where an upper bound proves c.z + d <= 0; NaN proves nothing.

    >>> proved(torch.tensor([-1.0, 0.0, 1.0, float("nan")])).tolist()
    [True, True, False, False]
    """
    return bound <= 0


def has_subnormal(value: Tensor) -> bool:
    """Does a tensor hold subnormal numbers, which some hardware flushes to zero? (The smallest normal counts too.)"""
    parts = torch.split(value.detach().flatten(), 1 << 18)  # so that the copies stay small
    return any(extent_of_sizes(part.abs())[1] for part in parts)


def extent_of_sizes(size: Tensor) -> tuple[float, bool]:
    """Of absolute values the largest, and whether there are subnormal numbers (``has_subnormal``)."""
    if not size.numel():
        return 0.0, False
    least = torch.finfo(size.dtype).tiny
    low, high = (float(end) for end in torch.aminmax(size.detach()))
    # Mostly no number is that small, zero neither; only then it is worth a look at each of them.
    return high, not low > least and bool(((size <= least) & (size > 0)).any())


def per_example(size: Tensor) -> Tensor:
    """The largest entry of each example of (B, ...): (B,). Not by flattening, which copies some orders of memory."""
    return size.amax(dim=tuple(range(1, size.dim()))) if size.dim() > 1 else size


#: Entries of an array that a blocked loop works on at a time: a few of them fit a core's cache.
CACHE_ENTRIES = 1 << 16


def dot(a: Tensor, v: Tensor) -> Tensor:
    """Sum of a (S, B, *n) times v (B or 1, *n) over all but the first two axes: (S, B) in float64.

    Runs of the last axes are summed in a's own dtype, because widening whole coefficient arrays costs as much as
    a layer; ``dot_rounding`` says what that may cost. v may have size 1 along those runs. Without gradients the work
    is done in blocks that stay in the cache.
    """
    return _blocked_dot(a, v, absolute=False)


def abs_dot(a: Tensor, v: Tensor) -> Tensor:
    """Sum of |a| times v >= 0, as ``dot``."""
    return _blocked_dot(a, v, absolute=True)


def _blocked_dot(a: Tensor, v: Tensor, *, absolute: bool) -> Tensor:
    if torch.is_grad_enabled() or a.numel() <= 2 * CACHE_ENTRIES:
        return _dot(a, v, absolute)
    result = a.new_empty(a.shape[:2], dtype=torch.float64)
    for at in cache_blocks(a.shape):
        result[at] = _dot(a[at], v if v.shape[0] == 1 else v[at[1]], absolute)
    return result


def cache_blocks(shape: torch.Size) -> Iterator[tuple[slice, slice]]:
    """Blocks of the first two axes of an array (S, B, *n), each with about CACHE_ENTRIES entries."""
    specs, batch = shape[:2]
    each = max(1, math.prod(shape[2:]))
    examples = max(1, min(batch, CACHE_ENTRIES // each))
    rows = max(1, min(specs, CACHE_ENTRIES // (each * examples)))
    for b in range(0, batch, examples):
        for s in range(0, specs, rows):
            yield slice(s, s + rows), slice(b, b + examples)


def _dot(a: Tensor, v: Tensor, absolute: bool) -> Tensor:
    if a.dim() == 2:
        return (a.abs() if absolute else a).double() * v.double()
    run = _run_axes(a.shape)
    if not run or a.dtype == torch.float64:
        wide = (a.abs() if absolute else a).flatten(2).double()
        sums: Tensor = torch.linalg.vecdot(wide, v.double().expand(a.shape[1:]).flatten(1))
        return sums
    axes = tuple(range(-run, 0))
    if v.shape[-run:].numel() == 1:
        sums = ((a.abs() if absolute else a).sum(axes) * v.squeeze(axes)).double()
    else:
        product = a * v
        sums = (product.abs() if absolute else product).sum(axes).double()
    return sums.flatten(2).sum(2) if sums.dim() > 2 else sums


def _run_axes(shape: torch.Size) -> int:
    """How many of the last axes of (S, B, *n) are summed narrowly: until 32 summands, never all axes of n."""
    count, length = 0, 1
    while length < 32 and len(shape) - count > 3:
        count += 1
        length *= shape[-count]
    return count


def dot_rounding(shape: torch.Size, dtype: torch.dtype) -> float:
    """|dot(a, v) - a.v| <= dot_rounding * |a|.|v| + underflow, for v (B, *n) of this shape."""
    run = _run_axes(torch.Size((1, *shape)))
    narrow = gamma(math.prod(shape[-run:]) + 2, dtype) if run and dtype != torch.float64 else 0.0
    return (narrow + gamma(math.prod(shape[1:]) + 4, torch.float64)) * (1 + 2.0**-20)


def add_up(a: Tensor, b: Tensor) -> Tensor:
    """At least a + b, in float64."""
    total = a + b
    return total + (total.abs() * 2.0**-52 + tiny(torch.float64))


def sum_rounding(n: int) -> tuple[float, float]:
    """What a sum of n numbers in float64 and its own payment may lose, of the sum of their sizes and besides."""
    # n - 1 roundings of the sum, one of adding what is paid for them, and room for those of the payment itself.
    return gamma(n + 4, torch.float64), 2 * n * tiny(torch.float64)


def sum_up(terms: Tensor) -> Tensor:
    """At least the sum of float64 terms over the first axis."""
    rate, under = sum_rounding(terms.shape[0])
    return terms.abs().sum(0).mul_(rate).add_(under).add_(terms.sum(0))


def round_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest number of ``dtype`` that is not below ``value`` (float64)."""
    nearest = value.to(dtype)
    above = torch.nextafter(nearest, nearest.new_tensor(math.inf))
    return torch.where(nearest.double() < value, above, nearest)


def round_down(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest number of ``dtype`` that is not above ``value`` (float64)."""
    return -round_up(-value, dtype)


def strictly_above(value: Tensor) -> Tensor:
    """The offsets above float64 ones: ``x + value >= 0`` implies ``x + result > 0`` also where subnormals are flushed.

    >>> bool(strictly_above(torch.zeros(1, dtype=torch.float64)) >= torch.finfo(torch.float32).tiny)
    True
    """
    above = torch.nextafter(value, torch.full_like(value, torch.inf))
    return torch.maximum(above, value + torch.finfo(torch.float32).tiny)
