"""Numbers read and rounded exactly: fractions, and floats that lie on a given side of one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from surebound.errors import InputError

# Exponents of a few digits only: the exact 10^999999999 would take all memory.
_FRACTION = re.compile(r"\s*([+-]?[0-9.]+(?:[eE][+-]?[0-9]{1,4})?)\s*(?:/\s*([0-9.]+(?:[eE][+-]?[0-9]{1,4})?))?\s*")
_LARGEST = Fraction(float(np.finfo(np.float64).max))


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
    """Return the smallest float64 that is not below ``value``; infinite where none is.

    >>> float_up(Fraction(10) ** 400), float_up(-(Fraction(10) ** 400))
    (inf, -1.7976931348623157e+308)
    """
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -float(np.finfo(np.float64).max)
    top, bottom = nearest.as_integer_ratio()  # whole numbers: queries have a million of these
    return nearest if top * value.denominator >= value.numerator * bottom else math.nextafter(nearest, math.inf)


def float_down(value: Fraction) -> float:
    """Return the largest float64 that is not above ``value``; infinite where none is.

    >>> float_down(Fraction(1, 3)) < Fraction(1, 3) < float_up(Fraction(1, 3))
    True
    """
    try:
        nearest = float(value)
    except OverflowError:
        return -math.inf if value < 0 else float(np.finfo(np.float64).max)
    top, bottom = nearest.as_integer_ratio()
    return nearest if top * value.denominator <= value.numerator * bottom else math.nextafter(nearest, -math.inf)


def outer_float32(
    lower: Sequence[Fraction], upper: Sequence[Fraction]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return float32 ends (N,) of a box that contains the box of two lists of fractions.

    >>> outer_float32([Fraction(1, 10)], [Fraction(1, 10)])
    (array([0.09999999], dtype=float32), array([0.1], dtype=float32))
    """
    high = _float32_up(np.array([float_up(v) for v in upper], dtype=np.float64))
    return -_float32_up(-np.array([float_down(v) for v in lower], dtype=np.float64)), high


def _float32_up(wide: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        near = wide.astype(np.float32)
    low = near.astype(np.float64) < wide
    return np.where(low, np.nextafter(near, np.float32(np.inf)), near).astype(np.float32)
