"""The constants of floating-point arithmetic, and what a bound is to contain."""

from __future__ import annotations

import enum
from functools import cache

import torch

from surebound.errors import InputError


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


@cache
def unit_roundoff(dtype: torch.dtype) -> float:
    """Return u: the largest relative error of one correctly rounded operation."""
    return float(torch.finfo(dtype).eps) / 2


@cache
def tiny(dtype: torch.dtype) -> float:
    """Return the smallest normal number: an operation that underflows is wrong by at most this."""
    return float(torch.finfo(dtype).tiny)


@cache
def gamma(n: int, dtype: torch.dtype) -> float:
    """Return gamma_n = n u / (1 - n u), rounded up; refuse sums so long that it means nothing."""
    nu = n * unit_roundoff(dtype)
    if nu >= 0.25:
        raise InputError(f"a sum of {n} terms in {dtype} has no useful rounding bound; convert the network to float64")
    return nu / (1 - nu) * (1 + 1e-9)
