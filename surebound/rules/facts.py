"""Facts about operators, read by every method: interval, linear relaxation, LP and MIP, training."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import scipy  # its parts are loaded when they are used
from torch import Tensor

from surebound.rules.owned import InPlace

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
    breaks: float | None = None  # of a step: the one place where it jumps
    relu: bool = False  # max(x, 0): the sign of x decides it
    deferred: InPlace | None = None  # an exact, increasing fn without parameters
    specialise: Callable[..., Activation] | None = None  # (*parameters) -> facts whose fn takes x alone

    @property
    def turns(self) -> tuple[float, ...]:
        """List where a function bends or jumps, or turns from convex to concave, once its parameters are bound."""
        bends = () if self.pieces is None else tuple(start for start, _, _ in self.pieces() if start > -math.inf)
        inflection = (0.0,) if self.shape is Shape.S_SHAPED else ()
        return (*bends, *inflection, *(() if self.breaks is None else (self.breaks,)))

    def bind(self, *args: Any, **kwargs: Any) -> Activation:
        """Return the facts for these parameters; every callable of the result takes x alone (``pieces``: nothing).

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


@dataclass(frozen=True)
class Local:
    """An output at a position of the last two axes depends on a window of the input there.

    Along each axis it starts at ``stride`` times the position minus ``pad`` and has ``kernel`` entries, ``dilation``
    apart; what lies outside of the input counts as 0. Where ``spread`` is given it is the other way round, as in a
    transposed convolution: an input is read by a window of outputs, which starts at ``spread`` times its position
    minus ``pad``.
    """

    kernel: tuple[int, ...] = (1, 1)
    stride: tuple[int, ...] = (1, 1)
    pad: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    spread: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Sums:
    """What an operator y = A x + b sums, where an output meets every entry of x once, with one weight.

    For the norms of the rows of A, v (N, *in) and results (N, *out).
    """

    mapped: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]  # (v, fn) -> fn(A) v, for fn(0) = 0 of each weight
    largest: Callable[[Tensor], Tensor]  # v >= 0 -> at least the largest entry of each row of |A| diag(v)


@dataclass(frozen=True)
class Affine:
    """Facts about an operator that is affine in one varying argument: y = A x + b.

    ``adjoint(a, in_shape, *args, **kwargs)`` maps a (S, B, *out) to A^T a (S, B, *in), where ``args`` are the
    operator's without the varying one. ``magnitude`` maps a bound on |x| to |A| |x| + |b|. ``terms`` counts the
    summands of one output and ``adjoint_terms`` those of one input's coefficient: 0 if entries only move.
    Ask for them through ``count`` and ``adjoint_count``.
    """

    adjoint: Callable[..., Tensor]
    magnitude: Callable[..., Tensor]
    terms: Callable[..., int]
    adjoint_terms: Callable[..., int]
    position: int = 0  # of the varying argument
    # For operators where the counts follow from the operand's shape: (in_shape, *args, **kwargs) -> int.
    terms_in: Callable[..., int] | None = None
    adjoint_terms_in: Callable[..., int] | None = None
    # b where the arguments name it: (in_shape, *args, **kwargs) -> (1, *out), with 1 for axes along which it does
    # not change, or None for zero. Without this it is found by a call on zeros.
    constant: Callable[..., Tensor | None] | None = None
    # A x alone: (x, *args, **kwargs) -> (N, *out). Without this, the operator's value minus b.
    linear: Callable[..., Tensor] | None = None
    # For images (B, C, H, W), where entries depend on windows: (*args, **kwargs) -> Local, or None if they do not.
    local: Callable[..., Local | None] | None = None
    # ``adjoint`` from windows of the output to windows of the input, all of them without what lies outside: no padding.
    # Of a local with ``spread`` it is given ``start``, too: where the two windows begin, output and input.
    local_adjoint: Callable[..., Tensor] | None = None
    entrywise: bool = False  # does every output read one entry of the operand only?
    # A (out, in) where it is known without calls on unit vectors: (in_shape, out_shape, *args, **kwargs), shapes of one
    # example, in float64.
    matrix: Callable[..., scipy.sparse.csr_array] | None = None
    # Is ``magnitude`` |A| m + |b| itself, and not more than it, so that it can be taken apart into sums?
    additive: bool = True
    # Does each entry of the operand reach one output at most: (in_shape, *args, **kwargs) -> bool? Without this, where
    # ``adjoint_terms`` is at most 1.
    disjoint: Callable[..., bool] | None = None
    # Where every output is a sum of entries times weights: (*args, **kwargs) -> Sums, or None if not for these.
    sums: Callable[..., Sums | None] | None = None

    def keeps_apart(self, in_shape: tuple[int, ...], *args: Any, **kwargs: Any) -> bool:
        """Does each entry of an operand of shape ``in_shape`` (B, *in) reach one output at most?

        Then |C A| = |C| |A| for any matrix C: bounds of C y from those of x and from those of y are the same.
        """
        if self.disjoint is not None:
            return self.disjoint(in_shape, *args, **kwargs)
        return self.adjoint_count(in_shape, *args, **kwargs) <= 1

    def count(self, in_shape: tuple[int, ...], *args: Any, **kwargs: Any) -> int:
        """Return ``terms`` for an operand of shape ``in_shape`` (B, *in)."""
        if self.terms_in is not None:
            return self.terms_in(in_shape, *args, **kwargs)
        return self.terms(*args, **kwargs)

    def adjoint_count(self, in_shape: tuple[int, ...], *args: Any, **kwargs: Any) -> int:
        """Return ``adjoint_terms`` for an operand of shape ``in_shape`` (B, *in)."""
        if self.adjoint_terms_in is not None:
            return self.adjoint_terms_in(in_shape, *args, **kwargs)
        return self.adjoint_terms(*args, **kwargs)


@dataclass(frozen=True)
class BatchNorm:
    """Facts about a normalisation by running statistics that training replaces by those of the clean batch."""

    statistics: Callable[[Tensor], tuple[Tensor, Tensor]]  # clean input -> mean, biased variance
    replace: Callable[..., tuple[Any, ...]]  # (args, mean, var) -> args
    apply: Callable[..., Tensor]  # the operator on tensors, differentiable in the statistics too
    scale: Callable[..., tuple[Tensor, Tensor, Tensor]]  # (dims, *args after x) -> scale, shift, size
    running: int  # position of the running mean among the arguments
    parts: Callable[..., tuple[Any, ...]]  # args -> weight, bias, mean, var, eps


class Memory(enum.Enum):
    """Where the bounds lie that an interval rule returns."""

    OWN = "own"  # always in memory of their own
    VIEW = "view"  # a rearranged view of its argument's, each entry once
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Move:
    """An operator that only moves entries, as a function of tensors (N, ...) with any number of examples N.

    ``channelwise``: it treats each channel by itself and keeps zeros zeros, unless it pads channels or examples. Else
    it renames the axes of each example.
    """

    run: Callable[..., Tensor]
    channelwise: bool = False


@dataclass(frozen=True)
class Stacks:
    """A sum or an average of operands that vary: with coefficients >= 0, clean values, centres and radii go alike.

    ``run`` is the operator as a function of tensors (N, ...) with any number of examples N; ``operands`` of its
    arguments vary.
    """

    run: Callable[..., Tensor]
    operands: int = 1
