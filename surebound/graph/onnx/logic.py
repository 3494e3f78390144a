"""Translations of comparisons, truth values, conversions and positions of largest entries.

Truth values are 0 and 1. A comparison of numbers is a step of their difference, so that linear bounds see what both
have in common: x > y is relu(sign(x - y)).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from surebound.graph.onnx.build import Value, check_size
from surebound.graph.onnx.call import EXACT, WHOLE, Call, Operand, Types, joined, span_of, translates
from surebound.graph.onnx.order import before_softmax, places_of, unmoved


def _truth(value: Value) -> Value:
    return value.typed("bool", (0.0, 1.0))


def _not(call: Call, value: Value) -> Value:
    return call.emit("add.Tensor", call.emit("neg.default", value), torch.tensor(1.0))


def _pair(call: Call) -> tuple[list[Operand], tuple[int, ...]]:
    """Return both operands as they broadcast, constants as numbers, and the result's shape."""
    given = [each for each in call.operands if each is not None]
    if len(given) != 2:
        raise call.refuse("it needs two operands")
    return call.aligned(*[call.number_like(each) if isinstance(each, Tensor) else each for each in given])


def _difference(call: Call, a: Operand, b: Operand) -> Value:
    """Emit a - b."""
    if isinstance(b, Tensor) and not bool(b.any()) and isinstance(a, Value) and a.item == _joint(a, b):
        return a
    if isinstance(a, Tensor):
        return call.emit("add.Tensor", call.emit("neg.default", b), a)
    return call.emit("sub.Tensor", a, b)


def _joint(a: Value, b: Tensor) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(a.item, tuple(b.shape)))  # type: ignore[no-untyped-call]


def _above(call: Call, a: Operand, b: Operand) -> Value:
    """Emit a > b; of whole numbers rounded first, so that equal ones are."""
    whole = any(isinstance(each, Value) and each.whole for each in (a, b))
    apart = _difference(call, a, b)
    return call.emit("relu.default", call.emit("sign.default", call.emit("round.default", apart) if whole else apart))


@translates("Greater", "Less", "GreaterOrEqual", "LessOrEqual", types=Types.OWN)
def _order(call: Call) -> Operand:
    (a, b), shape = _pair(call)
    if call.op in ("Less", "GreaterOrEqual"):
        a, b = b, a
    found = _above(call, a, b)
    return _truth((_not(call, found) if call.op.endswith("OrEqual") else found).reshaped(shape))


@translates("Equal", types=Types.OWN)
def _equal(call: Call) -> Operand:
    (a, b), shape = _pair(call)
    if any(isinstance(each, Value) and each.whole for each in (a, b)):
        return _truth(_same(call, a, b).reshaped(shape))
    left, right = (a, b) if isinstance(a, Value) else (b, a)
    return _truth(_number(call, call.emit("eq.Tensor", left, right)).reshaped(shape))


def _same(call: Call, a: Operand, b: Operand) -> Value:
    """Emit a == b of whole numbers."""
    (low, high), (least, most) = span_of(a), span_of(b)
    apart = _difference(call, a, b)
    if low - most < -1 or high - least > 1:  # else it is the difference's size
        apart = call.emit("sign.default", call.emit("round.default", apart))
    return _not(call, call.emit("abs.default", apart))


def _number(call: Call, condition: Value) -> Value:
    """Emit 1 where a condition holds, else 0."""
    return call.emit("where.self", condition, torch.tensor(1.0), torch.tensor(0.0))


@translates("And", "Or", "Xor", types=Types.OWN)
def _connective(call: Call) -> Operand:
    (a, b), shape = _pair(call)
    if isinstance(a, Tensor):
        a, b = b, a
    if call.op == "Xor":
        made = call.emit("abs.default", _difference(call, a, b))
    else:
        made = call.emit("minimum.default" if call.op == "And" else "maximum.default", a, b)
    return _truth(made.reshaped(shape))


@translates("Not", types=Types.OWN)
def _negation(call: Call) -> Operand:
    return _truth(_not(call, call.x).reshaped(call.x.shape))


@translates("Where", types=Types.OWN)
def _where(call: Call) -> Operand:
    condition, a, b = (call.operand(i) for i in range(3))
    if condition is None or a is None or b is None:
        raise call.refuse("it needs a condition and two alternatives")
    if isinstance(condition, Tensor) and condition.dtype != torch.bool:
        raise call.refuse("its condition must be truth values")
    kinds = {each.dtype if isinstance(each, Value) else str(each.dtype).removeprefix("torch.") for each in (a, b)}
    if len(kinds) != 1:
        raise call.refuse(f"its alternatives are {' and '.join(sorted(kinds))}")
    numbers = [call.number_of(each) if isinstance(each, Tensor) else each for each in (a, b)]
    (mask, left, right), shape = call.aligned(condition, *numbers)
    if isinstance(mask, Value):
        mask = call.emit("gt.Scalar", mask, 0.5)
    return call.emit("where.self", mask, left, right).reshaped(shape).typed(kinds.pop(), joined(a, b))


#: ONNX's numbers of element types.
_TARGETS = {1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool"}


@translates("Cast", reads=("to",), types=Types.OWN)
def _cast(call: Call) -> Operand:
    x, target = call.x, _TARGETS.get(call.attribute("to"))
    if target is None:
        raise call.refuse("it converts to a type that is not supported; float32, bool, int64 to int8 and uint8 are")
    if target == x.dtype or x.dtype == "bool":
        return x.typed(target, x.span)
    if target == "float32":
        # Sizes that float32 does not hold are rounded, which a product with 1 pays for.
        small = max(map(abs, x.span)) <= EXACT
        return (x if small else call.emit("mul.Tensor", x, torch.tensor(1.0)).reshaped(x.shape)).typed(target)
    if target == "bool":
        return _truth(_number(call, call.emit("ne.Scalar", x, 0.0)).reshaped(x.shape))
    first, last = WHOLE[target]
    places = None if x.whole else places_of(call.builder, x)
    if places is not None and call.builder.pinned and all(place in call.builder.pinned for place in places):
        cut = [call.builder.pinned[place] for place in places]
        return torch.tensor(cut, dtype=getattr(torch, target)).reshape(x.shape)
    made, (low, high) = x if x.whole else call.emit("trunc.default", x), x.span
    if low < first or high >= last:
        # Beyond what the type holds, every implementation does what it likes: nothing is known there.
        inside = call.emit(
            "logical_and.default", call.emit("ge.Scalar", made, first), call.emit("lt.Scalar", made, last)
        )
        made = call.emit("where.self", inside, made, torch.tensor(math.nan))
    whole = made.reshaped(x.shape).typed(target, (max(first, low), min(last, high)))
    return replace(whole, places=x.places if places is None else frozenset(places))


@translates("ArgMax", "ArgMin", reads=("axis", "keepdims", "select_last_index"), types=Types.OWN)
def _arg(call: Call) -> Operand:
    """Translate by all pairs of entries: the one that loses to none, of equal ones the first, or the last."""
    x = call.x
    axis = call.axis(int(call.attribute("axis", 0)), len(x.shape))
    count = x.shape[axis]
    shape = [1 if i == axis else n for i, n in enumerate(x.shape)]
    if not call.attribute("keepdims", 1):
        shape.pop(axis)
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    check_size((before, count, count, after), call.where)
    if call.builder.reals:
        places = torch.arange(math.prod(x.shape)).reshape(before, count, after).transpose(1, 2).reshape(-1, count)
        x = before_softmax(call.builder, x, places.tolist()) or x
    # Of one image, differences of its channels stay an image.
    item = (count, *x.shape[axis + 1 :]) if before == 1 else (before, count, after)
    entries, dim = call.held(unmoved(call.builder, x), item), 1 if before == 1 else 2
    if call.op == "ArgMin":
        entries = call.emit("neg.default", entries)
    last = bool(call.attribute("select_last_index", 0))
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if not pairs:
        return call.builder.spread(torch.zeros(shape)).reshaped(shape).typed("int64", (0.0, 0.0))
    first, second = (
        call.emit("index_select.default", entries, dim, torch.tensor([pair[k] for pair in pairs])) for k in (0, 1)
    )
    # Does the later one win?
    wins = _not(call, _above(call, first, second)) if last else _above(call, second, first)
    if count == 2:
        return wins.reshaped(shape).typed("int64", (0.0, 1.0))
    wins = call.held(wins, (before, len(pairs), after))
    both = call.emit("cat.default", [_not(call, wins), wins], 2)  # the earlier one wins, the later one wins
    place = {pair: k for k, pair in enumerate(pairs)}
    rows = [
        [place[i, j] if i == c else place[i, j] + len(pairs) for i, j in pairs if c in (i, j)] for c in range(count)
    ]
    games = call.emit("index_select.default", both, 2, torch.tensor(rows).reshape(-1))
    best = call.emit("amin.default", call.held(games, (before, count, count - 1, after)), [3])  # wins all of its own
    weighted = call.emit("mul.Tensor", best, torch.arange(count, dtype=torch.float32).reshape(-1, 1))
    found = call.emit("round.default", call.emit("sum.dim_IntList", weighted, [2]))
    return replace(found, shape=tuple(shape)).typed("int64", (0.0, float(count - 1)))


@translates("OneHot", reads=("axis",), types=Types.OWN)
def _one_hot(call: Call) -> Operand:
    x, depth, values = call.x, call.constant(1), call.constant(2)
    if depth is None or values is None or not x.whole or values.numel() != 2:
        raise call.refuse("it needs whole numbers, a depth and two values")
    axis = call.axis(int(call.attribute("axis", -1)), len(x.shape) + 1)
    here = one_hot(call, x, int(depth.reshape(-1)[0]), axis)
    off, on = (float(v) for v in values)
    kind = str(values.dtype).removeprefix("torch.")
    if (off, on) != (0.0, 1.0):
        chosen = call.emit("gt.Scalar", here, 0.5)
        here = call.emit("where.self", chosen, torch.tensor(on), torch.tensor(off)).reshaped(here.shape)
    return here if kind == "float32" else here.typed(kind, span_of(values))


def one_hot(call: Call, x: Value, count: int, axis: int) -> Value:
    """Emit a new axis of ``count`` entries: 1 where whole numbers name the place, else 0."""
    shape = (*x.shape[:axis], count, *x.shape[axis:])
    check_size(shape, call.where)
    wide = call.held(x, (*x.shape[:axis], 1, *x.shape[axis:]))
    places = torch.arange(count, dtype=torch.float32).reshape(-1, *([1] * (len(x.shape) - axis)))
    here = _same(call, wide, places)
    if x.span[0] < 0:  # a negative position counts from the end
        here = call.emit("maximum.default", here, _same(call, wide, places - count))
    return here.reshaped(shape)
