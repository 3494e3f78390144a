"""Choices between tensors: maximum, minimum, comparisons, where. Exact in every arithmetic: nothing is rounded.

A comparison of a varying tensor is an Interval of truth values: ``lower`` where it surely holds, ``upper`` where it
may hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.rules.mip.maximum import encode_larger, encode_smaller
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.pairs import masked_fill_lines, maximum_lines, minimum_lines, where_lines


def ends_of(value: Any) -> tuple[Any, Any]:
    """Return (lower, upper) of an interval; a constant twice."""
    return (value.lower, value.upper) if isinstance(value, Interval) else (value, value)


def lowers(value: Any) -> Any:
    """Replace every interval among arguments by its lower end, also inside lists."""
    return _map(value, lambda interval: interval.lower)


def uppers(value: Any) -> Any:
    """Replace every interval among arguments by its upper end."""
    return _map(value, lambda interval: interval.upper)


def _map(value: Any, end: Callable[[Interval], Tensor]) -> Any:
    if isinstance(value, Interval):
        return end(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, end) for item in value)
    return value


def monotone(op: Callable[..., Tensor], ctx: Context, *args: Any, **kwargs: Any) -> Interval:
    """Bound an operator that rises in every varying argument and does not round by its values at the ends."""
    return Interval(op(*lowers(args), **kwargs), op(*uppers(args), **kwargs))


# fmax and fmin drop NaN, which may stand for "anything": bounded as maximum and minimum.
for _ops, _fn, _lines, _encode in (
    (("maximum.default", "max.other", "fmax.default"), torch.maximum, maximum_lines, encode_larger),
    (("minimum.default", "min.other", "fmin.default"), torch.minimum, minimum_lines, encode_smaller),
):
    for _op in _ops:
        register(Rule(f"aten.{_op}", "selection", partial(monotone, _fn), relax=_lines, mip=_encode, chooses=True))


def _greater(strict: bool, ctx: Context, x: Any, y: Any) -> Interval:
    """Bound x > y or x >= y; where a bound is NaN it may hold and may not."""
    (x_low, x_high), (y_low, y_high) = ends_of(x), ends_of(y)
    if strict:
        return Interval(x_low > y_high, ~(x_high <= y_low))
    return Interval(x_low >= y_high, ~(x_high < y_low))


def _less(strict: bool, ctx: Context, x: Any, y: Any) -> Interval:
    (x_low, x_high), (y_low, y_high) = ends_of(x), ends_of(y)
    if strict:
        return Interval(x_high < y_low, ~(x_low >= y_high))
    return Interval(x_high <= y_low, ~(x_low > y_high))


def _equal(ctx: Context, x: Any, y: Any) -> Interval:
    """Bound x == y: surely where both are one and the same number, never where their bounds have nothing in common."""
    (x_low, x_high), (y_low, y_high) = ends_of(x), ends_of(y)
    surely = (x_low == x_high) & (x_low == y_low) & (x_low == y_high)
    return Interval(surely, ~((x_high < y_low) | (x_low > y_high)))


def _unequal(ctx: Context, x: Any, y: Any) -> Interval:
    found = _equal(ctx, x, y)
    return Interval(~found.upper, ~found.lower)


for _overload in ("Scalar", "Tensor"):
    for _op, _compare in (
        ("gt", partial(_greater, True)),
        ("ge", partial(_greater, False)),
        ("lt", partial(_less, True)),
        ("le", partial(_less, False)),
        ("eq", _equal),
        ("ne", _unequal),
    ):
        register(Rule(f"aten.{_op}.{_overload}", "selection", _compare))

register(Rule("aten.logical_not.default", "selection", lambda ctx, x: Interval(~x.upper.bool(), ~x.lower.bool())))
register(Rule("aten.bitwise_not.default", "selection", lambda ctx, x: Interval(~x.upper, ~x.lower)))
for _op, _fn in (
    ("logical_and.default", torch.logical_and),
    ("logical_or.default", torch.logical_or),
    ("bitwise_and.Tensor", torch.logical_and),
    ("bitwise_or.Tensor", torch.logical_or),
):
    register(Rule(f"aten.{_op}", "selection", partial(monotone, _fn), note="truth values"))


def where_interval(ctx: Context, condition: Any, x: Any, y: Any) -> Interval:
    """Bound x where the condition holds, else y; both where it is not known."""
    (x_low, x_high), (y_low, y_high) = ends_of(x), ends_of(y)
    if not isinstance(condition, Interval):
        return Interval(torch.where(condition, x_low, y_low), torch.where(condition, x_high, y_high))
    surely, maybe = condition.lower, condition.upper
    shape = torch.where(maybe, x_low, y_low)
    both_low = torch.minimum(_like(x_low, shape), _like(y_low, shape))
    both_high = torch.maximum(_like(x_high, shape), _like(y_high, shape))
    lower = torch.where(surely, x_low, torch.where(maybe, both_low, y_low))
    upper = torch.where(surely, x_high, torch.where(maybe, both_high, y_high))
    return Interval(lower, upper)


def _like(value: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).expand(like.shape)


for _overload in ("self", "ScalarOther", "ScalarSelf"):
    register(Rule(f"aten.where.{_overload}", "selection", where_interval, relax=where_lines))
register(Rule("aten.where.Scalar", "selection", where_interval))


def _masked_fill(ctx: Context, x: Any, mask: Any, value: Any) -> Interval:
    if not isinstance(mask, Interval):
        low, high = ends_of(value)
        (x_low, x_high) = ends_of(x)
        return Interval(x_low.masked_fill(mask, low), x_high.masked_fill(mask, high))
    return where_interval(ctx, mask, value, x)


for _overload in ("Scalar", "Tensor"):
    register(Rule(f"aten.masked_fill.{_overload}", "selection", _masked_fill, relax=masked_fill_lines))


def refuse_varying(index: Any, what: str) -> None:
    """Refuse positions that vary: a value at an unknown place has no bound worth having."""
    values = index if isinstance(index, (list, tuple)) else [index]
    if any(isinstance(value, Interval) for value in values):
        raise BoundError(f"{what} depends on the input's values; only constant positions are supported")
