"""Operators that only move, repeat or drop entries: exact in every arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.kernels.blocks import channels_outermost
from surebound.numerics import round_down, round_up
from surebound.rules.facts import Affine, Local, Memory, Move
from surebound.rules.owned import Owned
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.pairs import same_lines
from surebound.rules.selection import refuse_varying
from surebound.rules.vjp import looped_adjoint, vjp_adjoint


def _move(op: Callable[..., Tensor], ctx: Context, x: Interval, *args: Any, **kwargs: Any) -> Interval:
    refuse_varying(args, "an index or a size")
    move = x.moving if isinstance(x, Owned) else x.select
    return move(lambda v: op(v, *args, **kwargs))


def _reshape(x: Tensor, shape: list[int]) -> Tensor:
    return channels_outermost(x).reshape(shape)


def zero(*_: Any, **__: Any) -> int:
    """Count the summands of an operator that only moves entries."""
    return 0


def _same(a: Tensor, in_shape: torch.Size, *_: Any, **__: Any) -> Tensor:
    return a


def _reshape_adjoint(a: Tensor, in_shape: torch.Size, *_: Any, **__: Any) -> Tensor:
    return a.reshape(a.shape[0], *in_shape)


def _permute_adjoint(a: Tensor, in_shape: torch.Size, dims: list[int]) -> Tensor:
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim % len(dims)] = position + 1
    return a.permute(0, *inverse)


def overload_of(op: str) -> Callable[..., Any]:
    """Return the operator of a name such as ``"aten.view.default"``."""
    _, name, overload = op.split(".")
    found: Callable[..., Any] = getattr(getattr(torch.ops.aten, name), overload)
    return found


def register_move(
    op: str,
    adjoint: Callable[..., Tensor] | None = None,
    adjoint_terms: Callable[..., int] = zero,
    note: str = "",
    move: Move | None = None,
    memory: Memory = Memory.UNKNOWN,
    local: Callable[..., Local | None] | None = None,
) -> None:
    """Register an operator that moves entries; ``adjoint_terms`` if it repeats them."""
    # Bounds may lie otherwise in memory than the network's tensors: a view of them may need a copy.
    overload = _reshape if op in ("aten.view.default", "aten._unsafe_view.default") else overload_of(op)
    register(
        Rule(
            op=op,
            family="shape",
            interval=partial(_move, overload),
            affine=Affine(
                adjoint=adjoint or partial(vjp_adjoint, overload),
                magnitude=overload,
                terms=zero,
                adjoint_terms=adjoint_terms,
                entrywise=True,
                local=local,
                local_adjoint=None if local is None else adjoint or partial(vjp_adjoint, overload),
            ),
            note=note,
            move=move,
            memory=memory,
        )
    )


for _op, _run in (
    ("view.default", torch.reshape),
    ("reshape.default", torch.reshape),
    ("flatten.using_ints", torch.flatten),
):
    register_move(f"aten.{_op}", _reshape_adjoint, move=Move(_run), memory=Memory.VIEW)
for _op in ("unsqueeze.default", "squeeze.dim"):
    register_move(f"aten.{_op}", _reshape_adjoint, memory=Memory.VIEW)
for _op in ("_unsafe_view.default", "squeeze.default", "squeeze.dims", "unflatten.int"):
    register_move(f"aten.{_op}", _reshape_adjoint)
register_move("aten.clone.default", _same, move=Move(torch.clone, channelwise=True), memory=Memory.OWN)
for _op in ("alias", "contiguous", "detach", "lift_fresh_copy", "lift_fresh"):
    register_move(f"aten.{_op}.default", _same)
register_move("aten.permute.default", _permute_adjoint)
for _op in (
    "transpose.int",
    "t.default",
    "select.int",
    "flip.default",
    "fliplr.default",
    "flipud.default",
    "roll.default",
    "rot90.default",
    "diagonal.default",
    "diag_embed.default",
    "tril.default",
    "triu.default",
    "pixel_shuffle.default",
    "pixel_unshuffle.default",
    "channel_shuffle.default",
    "narrow.default",
    "movedim.intlist",
    "movedim.int",
):
    register_move(f"aten.{_op}")


def _of_channels(dim: int = 0, *_: Any) -> Local | None:
    """Return ``Local()`` for a choice of channels of images (B, C, H, W): every position stays where it is."""
    return Local() if dim == 1 else None


register_move("aten.slice.Tensor", local=_of_channels)

# Entries that are read several times: a coefficient sums what it gets from every copy.


def _copies(values: Any) -> int:
    return math.prod(max(1, int(v)) for v in values)


def _index_terms(*args: Any, **_: Any) -> int:
    """Count how often an entry may be read: as often as the indices have entries, each meeting each of another."""
    flat = [v for arg in args for v in (arg if isinstance(arg, (list, tuple)) else [arg])]
    indices = [v for v in flat if isinstance(v, Tensor)]
    if any(v.dtype in (torch.bool, torch.uint8) for v in indices):  # masks have no shape to be fitted
        return 1 + math.prod(v.numel() for v in indices)
    return 1 + math.prod(np.broadcast_shapes(*(tuple(v.shape) for v in indices)))


def _window_terms(dimension: int, size: int, step: int) -> int:
    return -(-size // max(1, step)) + 1


register_move("aten.expand.default", adjoint_terms=lambda size, **_: _copies(size[1:]))  # at most
register_move("aten.repeat.default", adjoint_terms=lambda repeats: _copies(repeats))
register_move("aten.tile.default", adjoint_terms=lambda repeats: _copies(repeats))
register_move("aten.repeat_interleave.self_int", adjoint_terms=lambda repeats, dim=None, **_: int(repeats) + 1)
register_move(
    "aten.unfold.default",
    partial(looped_adjoint, torch.ops.aten.unfold.default),
    adjoint_terms=_window_terms,
)
register_move(
    "aten.im2col.default", adjoint_terms=lambda kernel, *_: _copies(kernel) + 1
)  # padded with zeros: an entry that is 0 for sure
register_move("aten.index_select.default", adjoint_terms=_index_terms, note="constant positions", local=_of_channels)
for _op in ("index.Tensor", "gather.default", "take_along_dim.default"):
    register_move(f"aten.{_op}", adjoint_terms=_index_terms, note="constant positions")


def _convert(ctx: Context, x: Interval, dtype: torch.dtype | None = None, **_: Any) -> Interval:
    """Bound a change of dtype: exact where the new one is wider; else it rounds to nearest, which is monotone."""
    if dtype is None or dtype == x.dtype:
        return x
    if dtype not in (torch.float32, torch.float64) or x.dtype == torch.float16:
        raise BoundError(f"a conversion from {x.dtype} to {dtype}; bounds are computed in float32 and float64")
    if x.dtype == torch.float64:  # the unrounded number must be inside, too
        return Interval(round_down(x.lower, dtype), round_up(x.upper, dtype))
    return Interval(x.lower.to(dtype), x.upper.to(dtype))


for _op, _convert_by, _note in (
    ("_to_copy.default", _convert, "float32 and float64"),
    ("type_as.default", lambda ctx, x, other: _convert(ctx, x, other.dtype), "float32 and float64"),
    ("to.dtype", lambda ctx, x, dtype, *_, **__: _convert(ctx, x, dtype), ""),
):
    register(Rule(f"aten.{_op}", "shape", _convert_by, relax=same_lines, note=_note))
