"""Pooling and resampling: maxima rise in every entry; averages and interpolations are linear, coefficients >= 0."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness, unit_roundoff
from surebound.rules.affine import averaged
from surebound.rules.facts import Affine, Local, Stacks
from surebound.rules.mip.maximum import encode_max_pool
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.choice import max_pool
from surebound.rules.relax.windows import adaptive_max_pool
from surebound.rules.selection import monotone
from surebound.rules.shape import overload_of, register_move
from surebound.rules.vjp import looped_adjoint, vjp_adjoint


def _first(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
    """Return the values of an operator that also returns positions, which are never read."""
    first: Tensor = op(*args, **kwargs)[0]
    return first


def _register_max_pool(op: str, rank: int, run: Callable[..., Tensor]) -> None:
    relax = partial(max_pool, rank)
    register(Rule(op, "pooling", partial(monotone, run), relax=relax, mip=encode_max_pool, chooses=True))


for _rank in (1, 2, 3):
    _op = f"aten.max_pool{_rank}d.default"
    _register_max_pool(_op, _rank, overload_of(_op))
for _rank in (2, 3):
    # Tracing merges the call with the choice of its first result.
    _op = f"aten.max_pool{_rank}d_with_indices.default"
    _register_max_pool(_op, _rank, partial(_first, overload_of(_op)))


def _max_with_positions(op: Callable[..., Any], ctx: Context, x: Interval, size: Any) -> tuple[Interval, Interval]:
    low, high = op(x.lower, size), op(x.upper, size)
    last = math.prod(x.shape[2:]) - 1
    return Interval(low[0], high[0]), Interval(torch.zeros_like(low[1]), torch.full_like(low[1], last))


for _rank in (1, 2, 3):
    _overload = overload_of(f"aten.adaptive_max_pool{_rank}d.default")
    register(
        Rule(
            f"aten.adaptive_max_pool{_rank}d.default",
            "pooling",
            partial(_max_with_positions, _overload),
            relax=partial(adaptive_max_pool, _rank),
            several=True,
        )
    )


def _window(kernel: Any, *_: Any, **__: Any) -> int:
    """Count the summands of an average, with the division; a kernel of one number is used along at most three axes."""
    sizes = [int(kernel)] * 3 if isinstance(kernel, int) else [int(k) for k in kernel]
    if len(sizes) == 1:
        sizes = sizes * 3
    return math.prod(sizes) + 2


def _avg(op: Callable[..., Tensor], ctx: Context, x: Interval, *args: Any, **kwargs: Any) -> Interval:
    divisor = args[5] if len(args) > 5 else kwargs.get("divisor_override")
    if divisor is not None and divisor < 0:
        raise BoundError(f"average pooling with divisor_override={divisor}; only positive divisors have a rule")
    return averaged(ctx, x, _window(*args, **kwargs), lambda v: op(v, *args, **kwargs))


def _linear_facts(
    op: Callable[..., Tensor],
    terms: Callable[..., int],
    back: Callable[..., int],
    disjoint: Callable[..., bool] | None = None,
) -> Affine:
    return Affine(
        adjoint=partial(vjp_adjoint, op),
        magnitude=op,
        terms=lambda *_, **__: 1 << 20,
        adjoint_terms=lambda *_, **__: 1 << 20,
        terms_in=lambda shape, *args, **kwargs: terms(shape, *args, **kwargs),
        adjoint_terms_in=lambda shape, *args, **kwargs: back(shape, *args, **kwargs),
        disjoint=disjoint,
    )


def _pair(value: Any) -> tuple[int, int]:
    each = (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)
    return each[0], each[-1]


def _avg_local(
    kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, include: bool = True, divisor: Any = None
) -> Local | None:
    """Return the window of an average over images; None where averages at the border divide by less."""
    pad = _pair(padding)
    if ceil_mode or (any(pad) and not include and divisor is None):
        return None
    return Local(_pair(kernel), _pair(stride or kernel), pad)


def _avg_disjoint(shape: Sequence[int], kernel: Any, stride: Any = (), *_: Any, **__: Any) -> bool:
    """Do the windows of an average not overlap?"""
    sizes, steps = ((v,) if isinstance(v, int) else tuple(v) for v in (kernel, stride or kernel))
    axes = max(len(sizes), len(steps))  # one number stands for all axes
    return all(k <= s for k, s in zip(sizes * (axes // len(sizes)), steps * (axes // len(steps)), strict=True))


def _avg_local_adjoint(
    a: Tensor, in_shape: torch.Size, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    include: bool = True, divisor: Any = None,
) -> Tensor:  # fmt: skip
    return vjp_adjoint(overload_of("aten.avg_pool2d.default"), a, in_shape, kernel, stride, 0, False, True, divisor)


for _rank in (1, 2, 3):
    _overload = overload_of(f"aten.avg_pool{_rank}d.default")
    _facts = _linear_facts(
        _overload,
        lambda shape, *args, **kw: _window(*args, **kw),
        lambda shape, *args, **kw: _window(*args, **kw),
        _avg_disjoint,
    )
    if _rank == 2:
        _facts = dataclasses.replace(_facts, local=_avg_local, local_adjoint=_avg_local_adjoint)
    _run = partial(_avg, _overload)
    register(Rule(f"aten.avg_pool{_rank}d.default", "pooling", _run, _facts, stacks=Stacks(_overload)))


def _adaptive_window(shape: Sequence[int], size: Sequence[int | None], *_: Any) -> int:
    """Return the largest window: ceil(in / out) + 1 along each axis, at most the whole axis."""
    pairs = zip(shape[-len(size) :], size, strict=True)
    return math.prod(min(n, -(-n // max(1, o or n)) + 1) for n, o in pairs) + 2


def _adaptive_back(shape: Sequence[int], size: Sequence[int | None], *_: Any) -> int:
    """Count the windows that an entry lies in: at most ceil(out / in) + 1 along each axis."""
    pairs = zip(shape[-len(size) :], size, strict=True)
    return math.prod(-(-(o or n) // max(1, n)) + 1 for n, o in pairs) + 2


def _adaptive_disjoint(shape: Sequence[int], size: Sequence[int | None], *_: Any) -> bool:
    """Do the windows not overlap? They do not where they are all of one size."""
    return all(n % max(1, o or n) == 0 for n, o in zip(shape[-len(size) :], size, strict=True))


def _adaptive(op: Callable[..., Tensor], ctx: Context, x: Interval, size: Sequence[int]) -> Interval:
    return averaged(ctx, x, _adaptive_window(x.shape, size), lambda v: op(v, size))


for _rank in (1, 2, 3):
    for _op in (f"adaptive_avg_pool{_rank}d", f"_adaptive_avg_pool{_rank}d"):
        if _op == "_adaptive_avg_pool1d":
            continue
        _overload = overload_of(f"aten.{_op}.default")
        register(
            Rule(
                f"aten.{_op}.default",
                "pooling",
                partial(_adaptive, _overload),
                _linear_facts(_overload, _adaptive_window, _adaptive_back, _adaptive_disjoint),
                stacks=Stacks(_overload),
            )
        )


def _interpolate(
    op: Callable[..., Tensor], rank: int, ctx: Context, x: Interval, *args: Any, **kwargs: Any
) -> Interval:
    """Bound linear interpolation. Where an output lies between its neighbours is itself computed in floating point: an
    error of the position along an axis moves the value by at most that times the difference of two neighbours."""

    def apply(v: Tensor) -> Tensor:
        return op(v, *args, **kwargs)

    if ctx.soundness is Soundness.NONE:
        return averaged(ctx, x, 1, apply)
    longest = max(max(x.shape[2:]), max(apply(x.center[:1, :1]).shape[2:]))
    position = 16 * longest * unit_roundoff(x.dtype)
    blur = 2 * rank * position * torch.amax(x.magnitude, dim=tuple(range(2, len(x.shape))), keepdim=True)
    return averaged(ctx, x, 4 * 2**rank, apply, blur)


def _interpolation_facts(op: Callable[..., Tensor], rank: int) -> Affine:
    """Return facts with weights >= 0 that each library computes for itself, so with as many more roundings of max |x|.

    A position that is wrong by 16 N u costs 2 * 16 N u max|x| per axis, for the network's weights and for ours.
    """

    def magnitude(m: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return op(m, *args, **kwargs) + torch.amax(m, dim=tuple(range(2, m.dim())), keepdim=True)

    def terms(shape: Sequence[int], *args: Any, **kwargs: Any) -> int:
        sizes = op(torch.zeros(1, 1, *shape[2:]), *args, **kwargs).shape[2:]
        longest: int = max(1, *shape[2:], *map(int, sizes))
        return int(4 * 2**rank + 2 * 2 * 16 * rank * longest)

    def back(shape: Sequence[int], *args: Any, **kwargs: Any) -> int:
        """Count the outputs that read an entry: along each axis those within one entry of it; at the ends more."""
        sizes = op(torch.zeros(1, 1, *shape[2:]), *args, **kwargs).shape[2:]
        pairs = zip(shape[2:], map(int, sizes), strict=True)
        return math.prod(min(o, 3 * -(-o // max(1, n - 1)) + 3) for n, o in pairs) + 8

    return dataclasses.replace(_linear_facts(op, terms, back), magnitude=magnitude, additive=False)


for _rank, _op in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
    for _suffix in ("vec", "default"):
        _overload = overload_of(f"aten.{_op}.{_suffix}")
        _facts = _interpolation_facts(_overload, _rank)
        register(Rule(f"aten.{_op}.{_suffix}", "pooling", partial(_interpolate, _overload, _rank), _facts))


def _nearest_copies(size: Any = None, scales: Any = None, *_: Any) -> int:
    """Count how often an entry may be copied; the size alone does not say, so at most the whole output."""
    if scales is not None and not isinstance(scales, float):
        return math.prod(math.ceil(float(s)) + 1 for s in scales)
    return math.prod(int(s) for s in size) if size is not None else 1 << 20


for _rank in (1, 2, 3):
    for _op in (f"upsample_nearest{_rank}d", f"_upsample_nearest_exact{_rank}d"):
        for _suffix, _copies in (("vec", _nearest_copies), ("default", lambda size, *_: math.prod(size))):
            _adjoint = partial(looped_adjoint, overload_of(f"aten.{_op}.{_suffix}"))
            register_move(f"aten.{_op}.{_suffix}", _adjoint, adjoint_terms=_copies)
