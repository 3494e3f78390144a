"""Translations of recurrent layers, unrolled over the sequence: LSTM, GRU, RNN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.graph.decompose import ABOUT
from surebound.graph.onnx.build import Value
from surebound.graph.onnx.call import Call, Operand, translates

_READS = ("activations", "direction", "hidden_size", "layout")
_USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}

State = tuple[Value, ...]
Step = Callable[[Value, State | None], State]  # None: a state of zeros


@dataclass(frozen=True)
class _Weights:
    """One direction's weights W (g H, I), R (g H, H) and biases (g H,) each, or None."""

    call: Call
    w: Tensor
    r: Tensor
    biases: tuple[Tensor, Tensor] | None

    def rows(self, first: int, last: int) -> _Weights:
        """Select the gates from ``first`` to before ``last``."""
        size = self.r.shape[1]
        at = slice(first * size, last * size)
        biases = None if self.biases is None else (self.biases[0][at], self.biases[1][at])
        return _Weights(self.call, self.w[at], self.r[at], biases)

    def joint(self, x: Value, h: Value | None) -> Value:
        """Return W x + R h and both biases as one product, so that the sum may be taken in any order."""
        return self._product([(x, self.w)] if h is None else [(x, self.w), (h, self.r)], self.biases or ())

    def of_input(self, x: Value) -> Value:
        """Return W x and its bias."""
        return self._product([(x, self.w)], self.biases[:1] if self.biases else ())

    def of_state(self, h: Value) -> Value:
        """Return R h and its bias."""
        return self._product([(h, self.r)], self.biases[1:] if self.biases else ())

    def _product(self, parts: list[tuple[Value, Tensor]], biases: tuple[Tensor, ...]) -> Value:
        call, first = self.call, parts[0][0]
        values, weights = [v for v, _ in parts], [w for _, w in parts]
        if biases:
            one = call.emit("ones_like.default", call.emit("slice.Tensor", first, len(first.item), 0, 1))
            values += [one] * len(biases)
            weights += [bias.unsqueeze(1) for bias in biases]
        joined = call.emit("cat.default", values, len(first.item)) if len(values) > 1 else values[0]
        return call.emit("linear.default", joined, torch.cat(weights, 1))


def _gate(call: Call, x: Value, number: int, size: int) -> Value:
    return call.emit("slice.Tensor", x, len(x.item), number * size, (number + 1) * size)


def _lstm(call: Call, weights: _Weights) -> Step:
    size = weights.r.shape[1]

    def step(x: Value, state: State | None) -> State:
        gates = weights.joint(x, None if state is None else state[0])
        enter, leave, forget = (call.emit("sigmoid.default", _gate(call, gates, i, size)) for i in range(3))
        c = call.emit("mul.Tensor", enter, call.emit("tanh.default", _gate(call, gates, 3, size)))
        if state is not None:
            c = call.emit("add.Tensor", call.emit("mul.Tensor", forget, state[1]), c)
        return call.emit("mul.Tensor", leave, call.emit("tanh.default", c)), c

    return step


def _gru(call: Call, weights: _Weights) -> Step:
    size, gates, inner = weights.r.shape[1], weights.rows(0, 2), weights.rows(2, 3)
    late = bool(call.attribute("linear_before_reset", 0))

    def step(x: Value, state: State | None) -> State:
        h = None if state is None else state[0]
        both = call.emit("sigmoid.default", gates.joint(x, h))
        update, reset = _gate(call, both, 0, size), _gate(call, both, 1, size)
        if late:
            zero = call.emit("zeros_like.default", update)
            other = inner.of_state(zero if h is None else h)
            new = call.emit("add.Tensor", inner.of_input(x), call.emit("mul.Tensor", reset, other))
        else:
            new = inner.joint(x, None if h is None else call.emit("mul.Tensor", reset, h))
        new = call.emit("tanh.default", new)
        largest = call.emit("abs.default", new)
        if h is None:
            made = call.emit("sub.Tensor", new, call.emit("mul.Tensor", update, new))
        else:
            made = call.emit("add.Tensor", new, call.emit("mul.Tensor", update, call.emit("sub.Tensor", h, new)))
            largest = call.emit("add.Tensor", largest, call.emit("abs.default", h))
        return (call.emit(ABOUT, made, largest, 16.0),)

    return step


def _rnn(call: Call, weights: _Weights) -> Step:
    return lambda x, state: (call.emit("tanh.default", weights.joint(x, None if state is None else state[0])),)


def _check(call: Call) -> None:
    """Refuse what is not a plain layer that starts from zeros."""
    activations = [
        str(name.decode() if isinstance(name, bytes) else name).lower() for name in call.attribute("activations", ())
    ]
    usual = _USUAL[call.op]
    if activations and any(activations[i : i + len(usual)] != usual for i in range(0, len(activations), len(usual))):
        raise call.refuse(f"activations {activations}; those of the standard's default are supported")
    if call.attribute("layout", 0):
        raise call.refuse("layout=1; sequences come first where they are supported")
    lengths = call.constant(4)
    if lengths is not None and bool((lengths != call.x.shape[0]).any()):
        raise call.refuse("sequences of several lengths")
    for index in (5, 6, 7):
        given = call.operand(index)
        if given is not None and (not isinstance(given, Tensor) or bool(given.any())):
            raise call.refuse("an initial state, or peepholes, that are not 0")


@translates("LSTM", reads=(*_READS, "input_forget"))
@translates("GRU", reads=(*_READS, "linear_before_reset"))
@translates("RNN", reads=_READS)
def _recurrent(call: Call) -> Operand | list[Operand]:
    _check(call)
    if call.op == "LSTM" and call.attribute("input_forget", 0):
        raise call.refuse("input_forget=1")
    way = call.attribute("direction", "forward")
    way = way.decode() if isinstance(way, bytes) else str(way)
    w, r, b = call.weight(1), call.weight(2), call.constant(3)
    x, count, batch, size = call.builder.full(call.x), call.x.shape[0], call.x.shape[1], int(r.shape[2])
    steps = [call.emit("select.int", x, 1, t) for t in range(count)]  # (B, batch of the file, I)
    outputs, last = [], []
    for number in range(w.shape[0]):
        biases = None if b is None else (b[number].chunk(2)[0], b[number].chunk(2)[1])
        cell = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}[call.op](call, _Weights(call, w[number], r[number], biases))
        back = way == "reverse" or number == 1
        state: State | None = None
        found = []
        for value in reversed(steps) if back else steps:
            state = cell(value, state)
            found.append(state[0])
        if state is None:
            raise call.refuse("an empty sequence")
        outputs.append(found[::-1] if back else found)
        last.append(state)
    ways = len(outputs)
    each = [call.emit("stack.default", list(both), 1) for both in zip(*outputs, strict=True)]
    made: list[Operand] = [call.emit("stack.default", each, 1).reshaped((count, ways, batch, size))]
    for part in zip(*last, strict=True):
        made.append(call.emit("stack.default", list(part), 1).reshaped((ways, batch, size)))
    return made[: call.results]
