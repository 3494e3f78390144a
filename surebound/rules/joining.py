"""Tensors put together and taken apart: cat, stack, split, writes into slices, padding. Nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.rules.facts import Affine, Local, Memory, Move
from surebound.rules.mip.apart import encode_apart
from surebound.rules.mip.arithmetic import encode_concatenation, encode_stack
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.join import join_parts
from surebound.rules.relax.write import index_put, scatter, write
from surebound.rules.selection import lowers, monotone, refuse_varying, uppers
from surebound.rules.shape import overload_of, zero
from surebound.rules.vjp import vjp_adjoint


def _join(
    op: Callable[..., Tensor], ctx: Context, parts: Sequence[Any], *args: Any, **kwargs: Any
) -> Interval:
    """Varying and constant parts side by side, by centre and radius where all varying ones are kept so."""
    varying = [part for part in parts if isinstance(part, Interval)]
    if all(part.centered for part in varying):
        centers = [part.center if isinstance(part, Interval) else part for part in parts]
        radii = [part.radius if isinstance(part, Interval) else torch.zeros_like(part) for part in parts]
        return Interval.around(op(centers, *args, **kwargs), op(radii, *args, **kwargs))
    return Interval(op(lowers(list(parts)), *args, **kwargs), op(uppers(list(parts)), *args, **kwargs))


for _op in ("cat", "concat"):
    register(
        Rule(
            f"aten.{_op}.default",
            "shape",
            partial(_join, torch.cat),
            relax=join_parts,
            mip=encode_concatenation,
        )
    )
register(
    Rule(
        "aten.stack.default",
        "shape",
        partial(_join, torch.stack),
        relax=partial(join_parts, stacked=True),
        mip=encode_stack,
    )
)


def _take_apart(
    op: Callable[..., Any], ctx: Context, x: Interval, *args: Any, **kwargs: Any
) -> list[Interval]:
    if x.centered:
        pairs = zip(op(x.center, *args, **kwargs), op(x.radius, *args, **kwargs), strict=True)
        return [Interval.around(center, radius) for center, radius in pairs]
    pairs = zip(op(x.lower, *args, **kwargs), op(x.upper, *args, **kwargs), strict=True)
    return [Interval(lower, upper) for lower, upper in pairs]


for _op in ("split.Tensor", "split_with_sizes.default", "split.sizes", "chunk.default", "unbind.int"):
    _overload = overload_of(f"aten.{_op}")
    register(
        Rule(
            f"aten.{_op}",
            "shape",
            partial(_take_apart, _overload),
            mip=partial(encode_apart, _overload),
            apart=True,
        )
    )


def _write(
    op: Callable[..., Tensor], ctx: Context, x: Any, source: Any, *args: Any, **kwargs: Any
) -> Interval:
    """A copy of x with some entries replaced by those of ``source``; either may be constant."""
    return monotone(op, ctx, x, source, *args, **kwargs)


for _op in ("slice_scatter.default", "select_scatter.default", "diagonal_scatter.default"):
    _overload = overload_of(f"aten.{_op}")
    register(Rule(f"aten.{_op}", "shape", partial(_write, _overload), relax=partial(write, _overload)))


def _copy(ctx: Context, x: Any, source: Any, *_: Any) -> Interval:
    """``source`` in the shape of x."""
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
    register(
        Rule(
            f"aten.{_op}",
            "shape",
            partial(_write_at, overload_of(f"aten.{_op}")),
            relax=scatter,
            note="constant positions",
        )
    )


def _index_put(
    ctx: Context, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Interval:
    refuse_varying(indices, "the position of a write")
    if accumulate:
        raise BoundError("index_put with accumulate=True has no rule; write it as a sum")
    return monotone(torch.ops.aten.index_put.default, ctx, x, list(indices), values)


register(Rule("aten.index_put.default", "shape", _index_put, relax=index_put, note="constant positions"))


def _padded(x: Tensor, pad: list[int], mode: str, value: float | None) -> Tensor:
    result: Tensor = torch.ops.aten.pad.default(x, pad, mode, value)
    return result


def _pad(
    ctx: Context, x: Interval, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Interval:
    """Padding by a constant, or by entries of x itself (reflect, replicate, circular)."""

    def padded(v: Tensor, fill: float | None) -> Tensor:
        return _padded(v, list(pad), mode, fill)

    if mode == "constant" and value and x.centered:
        return Interval.around(padded(x.center, value), padded(x.radius, 0.0))
    return x.select(lambda v: padded(v, value))


def _pad_magnitude(
    m: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    return _padded(m, list(pad), mode, abs(value) if value else value)


def _pad_terms(pad: Sequence[int], mode: str = "constant", value: float | None = None) -> int:
    """1 where it adds a constant, so that it is not taken for a mere move."""
    return 1 if value else 0


def _pad_adjoint(
    a: Tensor, in_shape: torch.Size, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    return vjp_adjoint(_padded, a, in_shape, list(pad), mode, value)


def _pad_copies(pad: Sequence[int], mode: str = "constant", value: float | None = None) -> int:
    """How often an entry may be repeated: along each axis itself and everything padded."""
    if mode == "constant":
        return 0
    total = 1
    for left, right in zip(pad[::2], pad[1::2], strict=True):
        total *= 1 + abs(left) + abs(right)
    return total


def _pad_local(pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Local | None:
    """Zeros around images."""
    if mode != "constant" or value or any(pad[4:]):
        return None
    sides = (*pad, 0, 0, 0)
    return Local(pad=(sides[2], sides[0]))


def _kept(a: Tensor, in_shape: torch.Size, *_: Any, **__: Any) -> Tensor:
    return a


_PAD = Affine(
    _pad_adjoint,
    _pad_magnitude,
    _pad_terms,
    _pad_copies,
    local=_pad_local,
    local_adjoint=_kept,
    entrywise=True,
)
register(
    Rule(
        "aten.pad.default",
        "shape",
        _pad,
        _PAD,
        memory=Memory.OWN,
        move=Move(F.pad, channelwise=True),
    )
)
register(
    Rule(
        "aten.constant_pad_nd.default",
        "shape",
        lambda ctx, x, pad, value=0: _pad(ctx, x, pad, "constant", value),
        Affine(
            adjoint=lambda a, in_shape, pad, value=0: _pad_adjoint(a, in_shape, pad, "constant", value),
            magnitude=lambda m, pad, value=0: _pad_magnitude(m, pad, "constant", value),
            terms=lambda pad, value=0: _pad_terms(pad, "constant", value),
            adjoint_terms=zero,
            local=lambda pad, value=0: _pad_local(pad, "constant", value),
            local_adjoint=_kept,
            entrywise=True,
        ),
        memory=Memory.OWN,
        move=Move(torch.constant_pad_nd, channelwise=True),
    )
)
for _rank in (1, 2, 3):
    for _mode in ("reflection", "replication"):
        _name = "reflect" if _mode == "reflection" else "replicate"
        register(
            Rule(
                f"aten.{_mode}_pad{_rank}d.default",
                "shape",
                lambda ctx, x, pad, mode=_name: _pad(ctx, x, pad, mode),
                Affine(
                    adjoint=lambda a, in_shape, pad, mode=_name: _pad_adjoint(a, in_shape, pad, mode),
                    magnitude=lambda m, pad, mode=_name: _pad_magnitude(m, pad, mode),
                    terms=zero,
                    adjoint_terms=lambda pad, mode=_name: _pad_copies(pad, mode),
                    entrywise=True,
                ),
            )
        )


def _constant(op: Callable[..., Tensor], ctx: Context, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Operators that read only the shape of their argument: a plain tensor, or what is written into it."""
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
