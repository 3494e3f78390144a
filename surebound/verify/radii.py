"""Radii as people type them: 0.3, 8/255, 0.1,0.2 or first:last:step, all kept exact."""

from __future__ import annotations

from fractions import Fraction

from surebound.errors import InputError
from surebound.numerics import exact_fraction

_MOST = 1000


def parse_radii(text: str, name: str = "--eps") -> list[Fraction]:
    """Read one radius, several separated by commas, or a range whose last value is included.

    >>> [str(eps) for eps in parse_radii("0:0.3:0.1")]
    ['0', '1/10', '1/5', '3/10']
    >>> parse_radii("8/255")
    [Fraction(8, 255)]
    """
    radii = [radius for part in text.split(",") for radius in _part(part, name)]
    negative = [radius for radius in radii if radius < 0]
    if negative:
        raise InputError(f"{name} {text}: {negative[0]} is negative; a radius is 0 or more")
    return sorted(set(radii))


def _part(text: str, name: str) -> list[Fraction]:
    ends = text.split(":")
    if len(ends) == 1:
        return [exact_fraction(text, name)]
    if len(ends) != 3:
        raise InputError(f"{name} {text}: a range is FIRST:LAST:STEP, e.g. 0:0.45:0.05")
    first, last, step = (exact_fraction(end, name) for end in ends)
    if step <= 0 or last < first:
        raise InputError(f"{name} {text}: the step must be positive and the last value not below the first")
    count = (last - first) // step + 1
    if count > _MOST:
        raise InputError(f"{name} {text} means {count} radii; the most is {_MOST}: use a larger step")
    return [first + step * i for i in range(int(count))]
