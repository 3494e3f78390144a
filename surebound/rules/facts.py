"""Facts about elementwise functions, read by every method: interval, linear relaxation, LP and MIP."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


class Shape(enum.Enum):
    """How a function bends."""

    CONVEX = "convex"
    CONCAVE = "concave"
    S_SHAPED = "convex then concave"  # one inflection at 0: sigmoid, tanh
    OTHER = "other"


@dataclass(frozen=True)
class Activation:
    """An elementwise function f(x; parameters).

    ``ulps``: how far an implementation of f in the tensor's dtype may be from the true value, in units in the
    last place of the result (0: exact, like ReLU). Stated for the deployed network's library and for ours; the
    tests hold PyTorch's to it against arbitrary-precision arithmetic.
    ``absolute``: an absolute error on top, for functions that cancel (e.g. softplus near 0 by log1p is fine: 0).
    ``valley`` / ``peak``: position and value of the one interior minimum / maximum of a function that is not
    monotone, for the parameters given.
    ``pieces``: the breakpoints of a piecewise linear function, exact for MIP.
    """

    fn: Callable[..., Tensor]
    increasing: bool = True
    ulps: float = 0.0
    shape: Shape = Shape.OTHER
    derivative: Callable[..., Tensor] | None = None
    valley: tuple[float, float] | None = None
    peak: tuple[float, float] | None = None
    pieces: Callable[..., tuple[tuple[float, float, float], ...]] | None = None  # (from x, slope, intercept)
    absolute: float = 0.0
