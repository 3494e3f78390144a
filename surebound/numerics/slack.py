"""Slacks with a name and an argument: what to add for roundings that are not worth counting one by one.

A payment is a rounding error bound >= 0. Evaluating it rounds, too: it is raised by more than that.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from surebound.numerics.units import gamma

Number = TypeVar("Number", float, Tensor)

#: Relative to the sizes of the operands: more than 60 roundings of float64 lose, 60 u < 2^-47. For short elementwise
#: formulas: ends to centre and radius, a line at a point, a mixture of two lines.
FEW_ROUNDINGS = 2.0**-46

#: Relative to the sizes involved: a thousand times what float64 loses in evaluating a library's function, its
#: derivative or its inverse, good to 4 ulps (2^-50), and in forming a line from a few of them.
FUNCTION_ERROR = 1e-12

#: More than 10^7 operations of float64 lose by underflow: each at most 2.3e-308.
UNDERFLOW = 1e-300


def slightly_up(payment: Number) -> Number:
    """Raise a payment that was evaluated in float64, as a sum of at most 2^30 terms: 2^30 u = 2^-23."""
    return payment * (1 + 2.0**-20)


def amply_up(payment: Number) -> Number:
    """Raise a payment that was evaluated, or will be used, in float32 with at most 2^14 roundings: 2^14 u = 2^-10."""
    return payment * (1 + 2.0**-9)


def covering(rate: float) -> float:
    """Return the factor that makes a computed size, wrong by at most ``rate`` <= 1/4 of the true one, an upper bound.

    1 / (1 - rate) <= 1 + 4/3 rate, which leaves room for the roundings of the product.
    """
    return 1 + 2 * rate


def several_sums(terms: int, times: int, dtype: torch.dtype = torch.float64) -> float:
    """Bound the rounding error of ``times`` sums of ``terms`` summands together, relative to the sum of the sizes.

    They may follow one on another: products of their errors are below one more gamma, which ``times`` and ``terms``
    are chosen to hold, and so are the sum of the sizes itself and its product with this.
    """
    return times * gamma(terms, dtype)
