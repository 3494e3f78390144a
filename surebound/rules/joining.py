"""Tensors put together and taken apart: cat, stack, split, writes into slices. Nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.rules.mip.apart import encode_apart
from surebound.rules.mip.arithmetic import encode_concatenation, encode_stack
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.join import join_parts
from surebound.rules.relax.write import index_put, scatter, write
from surebound.rules.selection import lowers, monotone, refuse_varying, uppers
from surebound.rules.shape import overload_of


def _join(op: Callable[..., Tensor], ctx: Context, parts: Sequence[Any], *args: Any, **kwargs: Any) -> Interval:
    """Join varying and constant parts, by centre and radius where all varying ones are kept so."""
    varying = [part for part in parts if isinstance(part, Interval)]
    if all(part.centered for part in varying):
        centers = [part.center if isinstance(part, Interval) else part for part in parts]
        radii = [part.radius if isinstance(part, Interval) else torch.zeros_like(part) for part in parts]
        return Interval.around(op(centers, *args, **kwargs), op(radii, *args, **kwargs))
    return Interval(op(lowers(list(parts)), *args, **kwargs), op(uppers(list(parts)), *args, **kwargs))


for _op, _run, _lines, _encode in (
    ("cat", torch.cat, join_parts, encode_concatenation),
    ("concat", torch.cat, join_parts, encode_concatenation),
    ("stack", torch.stack, partial(join_parts, stacked=True), encode_stack),
):
    register(Rule(f"aten.{_op}.default", "shape", partial(_join, _run), relax=_lines, mip=_encode))


def _take_apart(op: Callable[..., Any], ctx: Context, x: Interval, *args: Any, **kwargs: Any) -> list[Interval]:
    if x.centered:
        pairs = zip(op(x.center, *args, **kwargs), op(x.radius, *args, **kwargs), strict=True)
        return [Interval.around(center, radius) for center, radius in pairs]
    pairs = zip(op(x.lower, *args, **kwargs), op(x.upper, *args, **kwargs), strict=True)
    return [Interval(lower, upper) for lower, upper in pairs]


for _op in ("split.Tensor", "split_with_sizes.default", "split.sizes", "chunk.default", "unbind.int"):
    _overload = overload_of(f"aten.{_op}")
    _apart, _mip = partial(_take_apart, _overload), partial(encode_apart, _overload)
    register(Rule(f"aten.{_op}", "shape", _apart, mip=_mip, apart=True))


def _write(op: Callable[..., Tensor], ctx: Context, x: Any, source: Any, *args: Any, **kwargs: Any) -> Interval:
    """Bound a copy of x with some entries replaced by those of ``source``; either may be constant."""
    return monotone(op, ctx, x, source, *args, **kwargs)


for _op in ("slice_scatter.default", "select_scatter.default", "diagonal_scatter.default"):
    _overload = overload_of(f"aten.{_op}")
    register(Rule(f"aten.{_op}", "shape", partial(_write, _overload), relax=partial(write, _overload)))


def _copy(ctx: Context, x: Any, source: Any, *_: Any) -> Interval:
    """Bound ``source`` in the shape of x."""
    return (
        source.select(lambda v: v.expand(x.shape))
        if isinstance(source, Interval)
        else Interval.point(source.expand(x.shape))
    )


register(Rule("aten.copy.default", "shape", _copy, relax=partial(write, torch.ops.aten.copy.default)))


def _write_at(
    op: Callable[..., Tensor], ctx: Context, x: Any, dim: int, index: Tensor, source: Any, **kwargs: Any
) -> Interval:
    refuse_varying(index, "the position of a write")
    if kwargs.get("reduce") is not None:
        raise BoundError("scatter with reduce= has no rule; write it as a sum or product of tensors")
    return monotone(op, ctx, x, dim, index, source)


for _op in ("scatter.src", "scatter.value"):
    _interval = partial(_write_at, overload_of(f"aten.{_op}"))
    register(Rule(f"aten.{_op}", "shape", _interval, relax=scatter, note="constant positions"))


def _index_put(ctx: Context, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Interval:
    refuse_varying(indices, "the position of a write")
    if accumulate:
        raise BoundError("index_put with accumulate=True has no rule; write it as a sum")
    return monotone(torch.ops.aten.index_put.default, ctx, x, list(indices), values)


register(Rule("aten.index_put.default", "shape", _index_put, relax=index_put, note="constant positions"))


def _constant(op: Callable[..., Tensor], ctx: Context, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that reads only the shape of x: return a plain tensor, or what is written into it."""
    like = x.lower if isinstance(x, Interval) else x
    if any(isinstance(arg, Interval) for arg in args):
        return monotone(op, ctx, like, *args, **kwargs)
    return op(like.detach(), *args, **kwargs)


for _op in (
    "zeros_like.default",
    "ones_like.default",
    "full_like.default",
    "empty_like.default",
    "new_zeros.default",
    "new_ones.default",
    "new_full.default",
    "new_empty.default",
    "fill.Scalar",
    "fill.Tensor",
):
    _interval = partial(_constant, overload_of(f"aten.{_op}"))
    register(Rule(f"aten.{_op}", "constant", _interval, reads_shape=True))
