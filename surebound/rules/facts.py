"""Facts about elementwise functions, read by every method: interval, linear relaxation, LP and MIP."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from surebound.interval import Deferred

Pieces = tuple[tuple[float, float, float], ...]  # (from x, slope, intercept), ascending


class Shape(enum.Enum):
    """How a function bends."""

    CONVEX = "convex"
    CONCAVE = "concave"
    S_SHAPED = "convex then concave"  # one inflection at 0: sigmoid, tanh
    OTHER = "other"


@dataclass(frozen=True)
class Activation:
    """An elementwise function f(x; parameters).

    The error of one evaluation, in the tensor's dtype with machine epsilon eps and smallest normal number tiny, is
    at most ``ulps`` eps |f(x)| + ``absolute`` eps + ``underflow`` tiny (``ulps`` and ``absolute`` 0: exact, like
    ReLU). Stated for the deployed network's library and for ours; the tests hold PyTorch's to it against
    arbitrary-precision arithmetic.
    ``increasing``: monotone, not decreasing anywhere. If False it may still be decreasing everywhere.
    ``valley`` / ``peak``: position and value of the one interior minimum / maximum of a function that is not
    monotone: it falls before the valley and rises after it.
    ``range``: values that f and its implementations never leave. ``domain``: where f is defined; outside no bound
    exists.
    ``jump``: how far f itself may be from the monotone function that these facts describe, in any arithmetic
    (softplus beyond its threshold). ``steep``: its slope at 0 is infinite, so that flushing a subnormal argument to
    zero matters.
    ``pieces``: the breakpoints of a piecewise linear function, exact for MIP.

    For an operator with parameters the facts hold whatever they are; ``bind`` gives those of the parameters at hand.
    """

    fn: Callable[..., Tensor]
    increasing: bool = True
    ulps: float = 0.0
    shape: Shape = Shape.OTHER
    derivative: Callable[..., Tensor] | None = None
    valley: tuple[float, float] | None = None
    peak: tuple[float, float] | None = None
    pieces: Callable[..., Pieces] | None = None
    absolute: float = 0.0
    underflow: float = 2.0
    range: tuple[float, float] = (-math.inf, math.inf)
    domain: tuple[float, float] = (-math.inf, math.inf)
    jump: float = 0.0
    steep: bool = False
    deferred: Deferred | None = (
        None  # an exact, increasing fn without parameters, in the memory of its argument
    )
    specialise: Callable[..., Activation] | None = None  # (*parameters) -> facts whose fn takes x alone

    def bind(self, *args: Any, **kwargs: Any) -> Activation:
        """The facts for these parameters; every callable of the result takes x alone (``pieces``: nothing).

        >>> import torch
        >>> leaky = Activation(torch.nn.functional.leaky_relu, specialise=None)
        >>> leaky.bind(0.5).fn(torch.tensor(-2.0))
        tensor(-1.)
        """
        if self.specialise is not None:
            return self.specialise(*args, **kwargs)
        if not args and not kwargs:
            return self
        return dataclasses.replace(
            self,
            fn=_after(self.fn, args, kwargs),
            derivative=None if self.derivative is None else _after(self.derivative, args, kwargs),
            pieces=None if self.pieces is None else partial(self.pieces, *args, **kwargs),
        )


def _after(fn: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Tensor]:
    return lambda x: fn(x, *args, **kwargs)
