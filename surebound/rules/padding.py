"""Padding by a constant, or by entries of the tensor itself (reflect, replicate, circular). Nothing is rounded.

Every operator is read as (pad, mode, value), the arguments of ``aten.pad`` after the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.rules.facts import Affine, Local, Memory, Move
from surebound.rules.registry import Context, Rule, register
from surebound.rules.vjp import vjp_adjoint

Spelling = tuple[Sequence[int], str, float | None]  # pad, mode, value


def _padded(x: Tensor, pad: Sequence[int], mode: str, value: float | None) -> Tensor:
    result: Tensor = torch.ops.aten.pad.default(x, list(pad), mode, value)
    return result


def _interval(read: Callable[..., Spelling], ctx: Context, x: Interval, *args: Any, **kwargs: Any) -> Interval:
    pad, mode, value = read(*args, **kwargs)
    if mode == "constant" and value and x.centered:
        return Interval.around(_padded(x.center, pad, mode, value), _padded(x.radius, pad, mode, 0.0))
    return x.select(lambda v: _padded(v, pad, mode, value))


def _copies(pad: Sequence[int], mode: str, value: float | None) -> int:
    """Count how often an entry may be repeated: along each axis itself and everything padded."""
    if mode == "constant":
        return 0
    total = 1
    for left, right in zip(pad[::2], pad[1::2], strict=True):
        total *= 1 + abs(left) + abs(right)
    return total


def _local(pad: Sequence[int], mode: str, value: float | None) -> Local | None:
    """Return the window of a padding of images by zeros; None for any other padding."""
    if mode != "constant" or value or any(pad[4:]):
        return None
    sides = (*pad, 0, 0, 0)
    return Local(pad=(sides[2], sides[0]))


def _register(op: str, read: Callable[..., Spelling], run: Callable[..., Tensor] | None = None) -> None:
    """Register a padding; ``read`` its arguments after x as pad, mode, value; ``run`` it on tensors, if by zeros."""

    def magnitude(m: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        pad, mode, value = read(*args, **kwargs)
        return _padded(m, pad, mode, abs(value) if value else value)

    affine = Affine(
        adjoint=lambda a, in_shape, *args, **kw: vjp_adjoint(_padded, a, in_shape, *read(*args, **kw)),
        magnitude=magnitude,
        terms=lambda *args, **kw: 1 if read(*args, **kw)[2] else 0,  # adds a constant: not taken for a mere move
        adjoint_terms=lambda *args, **kw: _copies(*read(*args, **kw)),
        local=lambda *args, **kw: _local(*read(*args, **kw)),
        local_adjoint=lambda a, in_shape, *_, **__: a,
        entrywise=True,
    )
    memory, move = (Memory.UNKNOWN, None) if run is None else (Memory.OWN, Move(run, channelwise=True))
    register(Rule(op, "shape", partial(_interval, read), affine, memory=memory, move=move))


_register("aten.pad.default", lambda pad, mode="constant", value=None: (pad, mode, value), F.pad)
_register("aten.constant_pad_nd.default", lambda pad, value=0: (pad, "constant", value), torch.constant_pad_nd)
for _rank in (1, 2, 3):
    _register(f"aten.reflection_pad{_rank}d.default", lambda pad: (pad, "reflect", None))
    _register(f"aten.replication_pad{_rank}d.default", lambda pad: (pad, "replicate", None))
