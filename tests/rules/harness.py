"""What the tests of all rules share: boxes, points inside them, and rules applied like operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, find
from surebound.rules.owned import Owned
from tests.rules.cases import Case, Constants


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def boxes(case: Case, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """One box per operand, in float32: some entries are points, some narrow, some as wide as the range."""
    g, result = generator(seed), []
    for shape in case.shapes:
        a, b = (torch.rand(shape, generator=g) * (case.high - case.low) + case.low for _ in range(2))
        share = torch.tensor([0.0, 0.01, 0.3, 1.0])[torch.randint(0, 4, shape, generator=g)]
        other = a + (b - a) * share
        result.append((torch.minimum(a, other), torch.maximum(a, other)))
    return result


def points(box: list[tuple[Tensor, Tensor]], count: int, seed: int = 1) -> Iterator[list[Tensor]]:
    """Operands inside the boxes: both ends, random corners, random points; float32."""
    g = generator(seed)
    yield [low for low, _ in box]
    yield [high for _, high in box]
    for i in range(count):
        chosen = []
        for low, high in box:
            t = torch.rand(low.shape, generator=g)
            if i % 2:
                t = t.round()
            middle = low.double() + (high.double() - low.double()) * t
            chosen.append(torch.minimum(torch.maximum(middle.to(low.dtype), low), high))
        yield chosen


def bounds(
    case: Case, box: list[tuple[Tensor, Tensor]], mode: Soundness, dtype: torch.dtype, owned: bool = False
) -> list[Interval]:
    """The rule on the boxes; every result as an Interval. ``owned``: it may work in the first operand's memory."""
    rule = find(case.name)
    assert rule is not None
    operands = [Interval(low.to(dtype, copy=True), high.to(dtype, copy=True)) for low, high in box]

    def apply(*args: Any, **kwargs: Any) -> Any:
        if owned and isinstance(args[0], Interval) and not any(args[0] is other for other in args[1:]):
            args = (Owned.taking(args[0]), *args[1:])
        return rule.interval(Context(mode), *args, **kwargs)

    return _flat(case.call(apply, Constants(dtype), *operands))


def values(case: Case, operands: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The operator itself."""
    result = case.call(case.overload, Constants(dtype), *(x.to(dtype) for x in operands))
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _flat(result: Any) -> list[Interval]:
    if isinstance(result, (list, tuple)):
        return [item for part in result for item in _flat(part)]
    return [Interval.point(result) if isinstance(result, Tensor) else result]


def number(value: Tensor) -> Tensor:
    """Truth values and positions as numbers, to be compared."""
    return value.double()


def outside(bound: Interval, value: Tensor, slack: float = 0.0) -> Tensor:
    """How far a value is outside, less ``slack`` times its size; NaN bounds say nothing and hold everything."""
    low, high, v = number(bound.lower), number(bound.upper), number(value)
    assert low.shape == v.shape, f"bounds of shape {tuple(low.shape)} for values of shape {tuple(v.shape)}"
    beyond = torch.maximum(low - v, v - high)
    beyond = torch.where((low == v) | (high == v), torch.zeros_like(beyond), beyond)  # infinities
    return (beyond - slack * (1 + v.abs())).nan_to_num(0.0)
