"""What NaN and infinity say of bounds: nothing that proves anything."""

from __future__ import annotations

import math

from torch import Tensor


def defined(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Put NaN at both ends where one is NaN or both are infinite: there an execution may meet inf - inf or 0 inf.

    An infinite end stands for values that may be infinite; NaN stands for values that may be NaN, and stays NaN.
    """
    odd = (lower + upper).isnan()
    if not bool(odd.any()):
        return lower, upper
    return lower.masked_fill(odd, math.nan), upper.masked_fill(odd, math.nan)


def no_information(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Replace NaN, which means that nothing is known, by the whole line, never by a number that looks proved."""
    odd = lower.isnan() | upper.isnan()
    return lower.masked_fill(odd, -math.inf), upper.masked_fill(odd, math.inf)


def nothing_known(upper: Tensor) -> Tensor:
    """Replace NaN among upper bounds by infinity."""
    return upper.nan_to_num(math.inf, math.inf, -math.inf)


def proved(bound: Tensor) -> Tensor:
    """Return True where an upper bound proves c.z + d <= 0; NaN proves nothing.

    >>> import torch
    >>> proved(torch.tensor([-1.0, 0.0, 1.0, float("nan")])).tolist()
    [True, True, False, False]
    """
    return bound <= 0
