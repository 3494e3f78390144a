"""Operators that only move, repeat or drop entries: exact in every arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.rules.registry import Affine, Context, Rule, register
from surebound.rules.vjp import vjp_adjoint


def _move(op: Callable[..., Tensor], ctx: Context, x: Interval, *args: Any, **kwargs: Any) -> Interval:
    return x.select(lambda v: op(v, *args, **kwargs))


def _reshape_adjoint(a: Tensor, in_shape: torch.Size, *_: Any, **__: Any) -> Tensor:
    return a.reshape(a.shape[0], *in_shape)


def _permute_adjoint(a: Tensor, in_shape: torch.Size, dims: list[int]) -> Tensor:
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim % len(dims)] = position + 1
    return a.permute(0, *inverse)


def register_move(op: str, adjoint: Callable[..., Tensor] | None = None) -> None:
    """One row for one operator that moves entries."""
    overload = getattr(getattr(torch.ops.aten, op.split(".")[1]), op.split(".")[2])
    register(
        Rule(
            op=op,
            family="shape",
            interval=partial(_move, overload),
            affine=Affine(
                adjoint=adjoint or partial(vjp_adjoint, overload),
                magnitude=overload,
                terms=lambda *_, **__: 0,
                adjoint_terms=lambda *_, **__: 0,
            ),
        )
    )


for _op in (
    "view",
    "reshape",
    "_unsafe_view",
    "flatten.using_ints",
    "unsqueeze",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "unflatten.int",
):
    register_move(f"aten.{_op}" if "." in _op else f"aten.{_op}.default", _reshape_adjoint)
register_move("aten.clone.default", lambda a, in_shape, **_: a)
register_move("aten.alias.default", lambda a, in_shape: a)
register_move("aten.contiguous.default", lambda a, in_shape, **_: a)
register_move("aten.permute.default", _permute_adjoint)
for _op in (
    "transpose.int",
    "t.default",
    "slice.Tensor",
    "select.int",
    "index_select.default",
    "flip.default",
):
    register_move(f"aten.{_op}")
