"""Check certificates of robustness with numpy and the standard library alone: python checker.py PLACE [--exact]

A certificate says: for no input of a region does a case of linear rows over a network's outputs hold. This file bounds
the rows with what it gives, and docs/certificates.md says why that proves it, under the numbers that are in brackets.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[Array, Array]  # (1, *shape) each
Given = dict[int, tuple[Array, ...]]  # by steps or values: what a certificate gives

MAGIC = b"surebound-certificate 1\n"
LARGEST_FILE, LARGEST = 1 << 30, 2.0**200  # bytes of a file, unpacked; number in a file
ROWS_BYTES, NODES = 1 << 26, 32  # of a batch of rows on their way back; pieces of a curve between its ends (8)
FLOOR, TINY = 2.0**-100, 2.0**-800  # more than underflow loses, if rounding of it is paid; of our own sums (2)
OVERFLOW, U32, U64 = 1e38, Fraction(1, 2**24), Fraction(1, 2**53)  # sums beyond it may overflow; unit roundoffs

_ERF, _ERFC = (np.vectorize(f, otypes=[float]) for f in (math.erf, math.erfc))

#: Functions of one number that have a tangent everywhere, and the largest |f''| there is (8).
CURVES: dict[str, tuple[Callable[[Array], Array], float]] = {
    "sigmoid": (lambda x: 0.5 + np.tanh(x / 2) / 2, 0.0963), "silu": (lambda x: x * (0.5 + np.tanh(x / 2) / 2), 0.501),
    "tanh": (np.tanh, 0.77), "atan": (np.arctan, 0.65), "softplus": (lambda x: np.logaddexp(x, 0), 0.2501),
    "gelu": (lambda x: x * _ERFC(-x / math.sqrt(2)) / 2, 0.798), "erf": (_ERF, 0.968), "sin": (np.sin, 1.0),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), 1.0), "cos": (np.cos, 1.0),
}  # fmt: skip


class Rejected(Exception):
    """The certificate does not prove its claim, or cannot be read; the message says where."""


def need(condition: object, message: str) -> None:
    """Reject the certificate unless the condition holds."""
    if not condition:
        raise Rejected(message)


def whole(values: Any, count: int, least: int) -> tuple[int, ...]:
    """Return so many whole numbers, none of them less than ``least``."""
    need(len(values) == count and all(type(n) is int and n >= least for n in values), f"{values}: {count} numbers")
    return tuple(values)


def ratio(text: Any) -> Fraction:
    """Read a fraction of decimal digits: no exponent, which could need more memory than there is."""
    need(type(text) is str and len(text) < 800 and set(text) <= set("-/0123456789"), f"the fraction {text!r:.60}")
    return Fraction(text)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header and the arrays of a file."""
    need(data.startswith(MAGIC), "not a certificate of version 1")
    inflate = zlib.decompressobj()
    body = inflate.decompress(data[len(MAGIC) :], LARGEST_FILE)
    need(inflate.eof and not inflate.unused_data, "truncated, too large, or followed by something else")
    at, arrays = 4 + int.from_bytes(body[:4], "little"), dict[str, Array]()
    header = json.loads(body[4:at])
    for name, dtype, shape in header["arrays"]:
        need(dtype in ("<f4", "<f8", "|u1", "|i1", "<i4") and name not in arrays, f"array {name}: {dtype}")
        count = math.prod(whole(shape, len(shape), 0))
        arrays[name] = np.frombuffer(body, dtype, count, at).reshape(shape)
        at += count * np.dtype(dtype).itemsize
    need(at == len(body), "bytes are left over")
    return header, arrays


class Numbers(NamedTuple):
    """Float64 with every rounding paid, or rationals; and what a float32 execution may add (``deployed``)."""

    exact: bool
    deployed: bool

    def of(self, values: Any) -> Array:
        """Convert numbers that are finite and not huge, exactly."""
        values = np.asarray(values)
        need(values.dtype == object or (np.abs(np.float64(values)) <= LARGEST).all(), "a number is not finite, or huge")
        if not self.exact:
            return np.asarray(values, np.float64)
        return np.array([Fraction(v) for v in values.reshape(-1).tolist()], dtype=object).reshape(values.shape)

    def own(self, n: int, always: int = 0) -> Any:
        """Return the rate of the rounding of our own sums of n terms (1); ``always``: even in rationals."""
        return always * U64 if self.exact else float((n + always) * U64 / (1 - (n + always) * U64)) * (1 + 2.0**-40)

    def network(self, n: int) -> Any:
        """Return the rate of the rounding of the network's sums of n terms, in any order (1)."""
        need(n < 2**22, f"a sum of {n} terms")
        rate = n * U32 / (1 - n * U32) if self.deployed else Fraction(0)
        return rate if self.exact else float(rate) * (1 + 2.0**-40)

    def sizes(self, weight: Array) -> Array:
        """Return |weight|, where those that hardware may read as 0 count more (2)."""
        return np.where(((size := np.abs(weight)) > 0) & (size < 2.0**-126), self.of(FLOOR), size)


class Op(NamedTuple):
    """One operation: y = A x + b, max(left x, x), the largest entries of windows, a curve. (R, *shape) throughout."""

    inputs: tuple[int, ...]  # numbers of values; 0 is the network's input
    apply: Callable[[Array, bool], Array] | None = None  # A x, or |A| x
    adjoint: Callable[[Array], Array] | None = None  # A^T a
    bias: Any = 0
    bias_size: Any = 0
    terms: int = 1  # roundings of an output's terms, at most, in the network; 0: entries only move
    back: int = 1  # summands of a coefficient that goes back
    always: int = 0  # roundings of ours, in float64, that rationals do not spare
    signs: tuple[int, ...] = (1,)  # of the inputs that are added
    left: Any = None  # of max(left x, x)
    windows: Callable[[Array], Array] | None = None  # entries (1, C, H, W, k) that the largest is taken of
    curve: tuple[Callable[[Array], Array], float] | None = None  # of CURVES


def build(given: dict[str, Any], arrays: dict[str, Array], shapes: list[tuple[int, ...]], number: Numbers) -> Op:
    """Make a step from its description; ``shapes`` of the values so far, without the batch."""
    op, inputs = given["op"], whole(given["in"], len(given["in"]), 0)
    need(inputs and max(inputs) < len(shapes), f"{op} reads what nothing computes")
    shape = shapes[inputs[0]]

    def array(name: str) -> Array:
        return number.of(arrays[given[name]]) if given.get(name) else number.of(0.0)

    def entrywise(factor: Array, sizes: Array, bias: Any, size: Any, roundings: int) -> Op:
        need(all(np.broadcast_shapes(shape, np.shape(v)) == shape for v in (factor, bias)), "more numbers than entries")
        scaled = lambda x, absolute: x * (sizes if absolute else factor)  # noqa: E731
        return Op(inputs, scaled, lambda a: a * factor, bias, size, roundings, always=roundings)

    if op == "dense":  # along the last axis
        weight, bias, size = (w := array("weight")), array("bias"), number.sizes(w)  # (out, in)
        need(weight.ndim == 2 and bias.shape in ((), weight.shape[:1]), f"a matrix {weight.shape}, a bias {bias.shape}")
        product = lambda x, absolute: x @ (size if absolute else weight).T  # noqa: E731
        return Op(inputs, product, lambda a: a @ weight, bias, np.abs(bias), weight.shape[1] + 1, weight.shape[0])
    if op in ("conv", "average", "max"):
        return windowed(given, inputs, array, shape, number)
    if op == "scale":  # by a constant; ``divide``: by its reciprocal
        scale = 1 / array("scale") if given.get("divide") else array("scale")
        need((np.abs(scale) <= 2.0**126).all(), "a quotient by 0, or nearly")
        return entrywise(scale, number.sizes(scale), 0, 0, 4)
    if op == "normalise":  # by running statistics
        weight, bias, mean = (array(name).reshape(-1, *[1] * (len(shape) - 1)) for name in ("weight", "bias", "mean"))
        variance = np.float64(arrays[given["variance"]]).reshape(weight.shape)
        need((variance >= 0).all() and (variance + given["eps"] >= FLOOR).all(), "a variance of 0, or less")
        scale = number.of(1 / np.sqrt(variance + given["eps"]))
        size = np.abs(scale * weight * mean) + np.abs(bias)
        return entrywise(scale * weight, scale * number.sizes(weight), bias - scale * weight * mean, size, 32)
    if op == "add":  # values with signs, and a constant
        signs, bias = tuple(given["signs"]), array("bias")
        fits = all(shapes[i] == shape for i in inputs) and np.broadcast_shapes(shape, bias.shape) == shape
        need(fits and len(signs) == len(inputs) and all(s in (1, -1) for s in signs), f"a sum with signs {signs}")
        return Op(inputs, lambda x, _: x, lambda a: a, bias, np.abs(bias), len(inputs) + 1, signs=signs)
    if op == "reshape":
        after = whole(given["shape"], len(given["shape"]), 1)
        return Op(inputs, lambda x, _: x.reshape(len(x), *after), lambda a: a.reshape(len(a), *shape), terms=0)
    if op == "transpose":
        order = (0, *(i + 1 for i in whole(given["order"], len(shape), 0)))
        undo = tuple(int(i) for i in np.argsort(order))
        return Op(inputs, lambda x, _: x.transpose(order), lambda a: a.transpose(undo), terms=0)
    if op == "relu" and type(given["left"]) in (int, float) and 0 <= given["left"] < 1:
        return Op(inputs, left=number.of(float(given["left"]))[()])
    need(op == "curve" and given["name"] in CURVES, f"the operation {op!r} is not known")
    return Op(inputs, curve=CURVES[given["name"]])


def windowed(given: dict[str, Any], inputs: Any, array: Callable[[str], Array], shape: Any, number: Numbers) -> Op:
    """Make a 2-D convolution, or a pooling, which treats every channel by itself."""
    (sh, sw), (top, left, bottom, right) = whole(given["stride"], 2, 1), whole(given["pads"], 4, 0)
    (dh, dw), (groups,) = whole(given["dilation"], 2, 1), whole([given.get("groups", 1)], 1, 1)
    weight, bias, pools = array("weight"), array("bias").reshape(-1, 1, 1), given["op"] != "conv"
    if pools:
        groups, kernel = shape[0], whole(given["kernel"], 2, 1)
        weight = np.full((groups, 1, *kernel), (1 / number.of(float(np.prod(kernel))))[()])
    (kh, kw), each, out = weight.shape[2:], weight.shape[1], len(weight) // groups
    fits = each * groups == shape[0] and out * groups == len(weight) and len(bias) in (1, len(weight))
    need(fits, f"{groups} groups of {shape[0]} channels, a bias of {len(bias)}")
    size, padded = number.sizes(weight), (shape[0], shape[1] + top + bottom, shape[2] + left + right)

    def windows(x: Array, fill: Any = 0) -> Array:  # (N, C, H', W', kh, kw)
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(x, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), axis=(2, 3))
        return np.asarray(view[:, :, ::sh, ::sw, ::dh, ::dw])

    def apply(x: Array, absolute: bool) -> Array:
        w, used = windows(x).transpose(0, 2, 3, 1, 4, 5), size if absolute else weight
        rows = [w[:, :, :, g * each : (g + 1) * each].reshape(*w.shape[:3], -1) for g in range(groups)]
        found = [rows[g] @ used[g * out : (g + 1) * out].reshape(out, -1).T for g in range(groups)]
        return np.concatenate(found, 3).transpose(0, 3, 1, 2)

    def adjoint(a: Array) -> Array:
        found, (h, w), rows = np.zeros((len(a), *padded), a.dtype), a.shape[2:], a.transpose(0, 2, 3, 1)
        for g in range(groups):
            part, target = rows[..., g * out : (g + 1) * out], found[:, g * each : (g + 1) * each]
            for i, j in np.ndindex(kh, kw):
                place = target[:, :, i * dh :: sh, j * dw :: sw][:, :, :h, :w]
                place += (part @ weight[g * out : (g + 1) * out, :, i, j]).transpose(0, 3, 1, 2)
        return found[:, :, top : padded[1] - bottom, left : padded[2] - right]

    if given["op"] == "max":  # what lies outside of the image is never the largest
        lowest = number.of(-LARGEST)[()]
        need((windows(number.of(np.zeros((1, *shape))), lowest).max((-1, -2)) == 0).all(), "a window without an entry")
        return Op(inputs, windows=lambda x: windows(x, lowest).reshape(*windows(x).shape[:4], -1))
    return Op(inputs, apply, adjoint, bias, np.abs(bias), each * kh * kw + 2, out * kh * kw, always=2 * pools)


class CheckedNetwork:
    """A network, the bounds of its values over one box at a time, and rows that are taken back through it."""

    def __init__(self, data: bytes, number: Numbers) -> None:
        header, arrays = unpack(data)
        self.number, self.floor, self.steps, self.done = number, number.of(FLOOR)[()], list[Op](), list[Any]([0, 0])
        self.digest = hashlib.sha256(zlib.decompress(data[len(MAGIC) :])).hexdigest()
        self.shapes: list[tuple[int, ...]] = [whole(header["input"], len(header["input"]), 1)]
        self.low, self.high, self.size = list[Array](), list[Array](), list[Any]()  # of values; |A| max|x| + |b|
        for given in header["steps"]:
            step = build(given, arrays, self.shapes, number)
            x = number.of(np.zeros((1, *self.shapes[step.inputs[0]])))
            y = step.windows(x)[..., 0] if step.windows else step.apply(x, False) + step.bias if step.apply else x
            self.shapes.append(y.shape[1:]), self.steps.append(step)  # type: ignore[func-returns-value]
        self.relus = [i for i, step in enumerate(self.steps) if step.left is not None]
        self.each = max(1, ROWS_BYTES // (16 * max(map(math.prod, self.shapes))))  # rows that go back together

    def largest(self, value: int) -> Array:
        """Return the largest size of a value's entries over the box."""
        return np.maximum(np.abs(self.low[value]), np.abs(self.high[value])) + self.floor

    def over(self, box: Box, linear: bool, every: bool = False, inner: Given | None = None) -> None:
        """Bound every value over a box: by intervals (3); if ``linear``, what ReLUs read also by rows (5), (9)."""
        if inner is None and self.done[0] is box and self.done[1] == linear:
            return
        self.low, self.high, self.size, self.done = [box[0]], [box[1]], [], [None if inner else box, linear]
        need((self.largest(0) < OVERFLOW).all(), "inputs may overflow")
        for i, step in enumerate(self.steps):
            x, size, seen = step.inputs[0], 0, any(s.apply is None and s.windows is None for s in self.steps[:i])
            if linear and seen and step.apply is None and step.windows is None:
                self._tighten(x, every, step.left is None, (inner or {}).get(x))
            if step.apply is not None:
                low, high, size = self._affine(step, step.apply)
            elif step.windows is not None:
                low, high = step.windows(self.low[x]).max(-1), step.windows(self.high[x]).max(-1)
            elif step.curve is not None:
                low, high, size = self._curved(x, *step.curve)
            else:
                paid = (self.number.network(2) + self.number.own(4)) * bool(step.left) * self.largest(x)
                low, high = (np.maximum(step.left * v, v) + s for v, s in ((self.low[x], -paid), (self.high[x], paid)))
            self.low.append(low), self.high.append(high), self.size.append(size)  # type: ignore[func-returns-value]

    def _curved(self, x: int, curve: Callable[[Array], Array], bend: float) -> tuple[Array, Array, Any]:
        """Bound a curve f by its values at nodes, and choose lines below and above; (n,) each (8)."""
        low, high = (v[x].reshape(-1).astype(float) for v in (self.low, self.high))
        low, high = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
        node = np.linspace(low, high, NODES + 1)  # (J, n); its first and last are the ends themselves
        f, gaps = curve(node), np.diff(node, axis=0)
        size = 1 + np.abs(node).max(0) + np.abs(f).max(0)
        rest = bend * gaps.max(0) ** 2 / 7.9 + size * (2.0**-33 + float(self.number.network(64)))
        slopes = np.clip(np.diff(f, axis=0) / np.where(gaps > 0, gaps, 1), -2, 2)
        heights = ([(side * (f - s * node)).max(0) + side * s * (low + high) / 2 for s in slopes] for side in (-1, 1))
        lines = [np.take_along_axis(slopes, np.argmin(height, 0)[None], 0)[0] for height in heights]
        f, rest, *others = (self.number.of(v) for v in (f, rest, size, node, *lines))
        bottom, top = ((v + side * rest).reshape(-1, *self.shapes[x]) for v, side in ((f.min(0), -1), (f.max(0), 1)))
        return bottom, top, (f, rest, *others)

    def _affine(self, step: Op, apply: Callable[[Array, bool], Array]) -> tuple[Array, Array, Any]:
        if not step.terms:
            return apply(self.low[step.inputs[0]], False), apply(self.high[step.inputs[0]], False), 0
        center, radius, size = np.asarray(step.bias), np.asarray(0), np.asarray(step.bias_size + self.floor)
        for value, sign in zip(step.inputs, step.signs, strict=True):
            center = center + sign * apply(self.low[value] / 2 + self.high[value] / 2, False)
            radius = radius + apply(self.high[value] / 2 - self.low[value] / 2, True)
            size = size + apply(self.largest(value), True)
        need(bool((size < OVERFLOW).all()), "sums may overflow")
        error = size * (self.number.network(step.terms) + self.number.own(4 * step.terms + 64, step.always))
        return center - radius - error, center + radius + error, size

    def _tighten(self, value: int, every: bool, curved: bool, given: tuple[Array, ...] | None) -> None:
        """Bound what a ReLU reads by rows where it may have either sign, or all of it; (9): ``given``."""
        low, high = self.low[value].reshape(-1).copy(), self.high[value].reshape(-1).copy()
        wanted = np.flatnonzero(((low < 0) | every) & (high > 0) | curved)
        for entries, slopes, units in ((wanted, wanted, wanted), *([given] if given else [])):
            need(slopes is wanted or slopes.shape == (2, len(entries), len(units)), "slopes of another shape")
            for at in (slice(i, i + self.each) for i in range(0, len(entries), self.each)):
                part, count, splits = entries[at], len(entries[at]), None
                rows = np.zeros((2, count, low.size), low.dtype)
                rows[0, np.arange(count), part], rows[1, np.arange(count), part] = 1, -1
                if slopes is not wanted:
                    none = np.zeros((2 * count, len(units)))
                    splits = self.units(units, slopes[:, at].reshape(none.shape), none, none, none, none[:, :1] > 0)
                found = self.back(value, rows.reshape(-1, *self.shapes[value]), splits=splits)
                high[part], low[part] = np.minimum(high[part], found[:count]), np.maximum(low[part], -found[count:])
            self.low[value], self.high[value] = (v.reshape(1, *self.shapes[value]) for v in (low, high))

    def units(self, units: Array, *given: Array) -> Given:
        """Sort by ReLU steps: places of units (U, 2), slopes, signs, multipliers, coefficients; who has these."""
        slopes = given[0] / 255.0 if given[0].dtype == np.uint8 else given[0]
        found, every = {}, [self.number.of(v) for v in (slopes, *given[1:4])]
        for number, i in enumerate(self.relus):
            place = units[here := units[:, 0] == number, 1]
            need(len(set(place.tolist())) == len(place) and (place >= 0).all(), "units twice, or before the first")
            found[i] = (place, *(v[:, here] for v in every), given[4])
        return found

    def back(self, value: int, rows: Array, stop: bool = False, splits: Given | None = None) -> Array:
        """Bound rows (R, *shape) of a value from above: (R,); -inf where splits leave no execution (4)."""
        number, count, waiting, empty = self.number, len(rows), {value: rows}, np.zeros(len(rows), bool)
        total = np.zeros((3, count), rows.dtype)  # the offset, the sizes of what was added to it, and errors

        def dot(a: Array, b: Any) -> Array:
            return np.asarray((a * b).reshape(count, -1).sum(1))

        def spend(cost: Array) -> None:
            total[:2] += cost, np.abs(cost)

        def pay(sizes: Array, at: Any, rate: Any) -> None:
            total[2] += dot(sizes, at) * rate

        def settle(a: Array, v: int) -> None:  # by the bounds of a value itself
            spend(dot(np.maximum(a, 0 * a), self.high[v]) + dot(np.minimum(a, 0 * a), self.low[v]))
            pay(np.abs(a), self.largest(v), number.own(a[0].size + 8))

        def pass_on(to: int, a: Array) -> None:
            if to in waiting:
                pay(np.abs(waiting[to]) + np.abs(a), self.largest(to), number.own(2))
                a = a + waiting[to]
            waiting[to] = a

        for i in filter(lambda i: i + 1 in waiting, range(value - 1, -1, -1)):  # rows may arrive there meanwhile
            step, a, x = self.steps[i], waiting.pop(i + 1), self.steps[i].inputs[0]
            if step.adjoint is not None:
                if step.terms:
                    pay(np.abs(a), self.size[i], number.network(step.terms))
                    pay(np.abs(a), self.size[i], number.own(step.back + a[0].size + 64, step.always))
                    spend(dot(a, step.bias))
                for each, sign in zip(step.inputs, step.signs, strict=True):
                    pass_on(each, sign * step.adjoint(a))
            elif stop:
                settle(a, i + 1)
            elif step.windows is not None:
                place, sure = self._chosen(step, step.windows)
                through = np.where(sure, a, np.minimum(a, 0 * a)).reshape(count, -1)  # to the entry that is largest
                settle(a - through.reshape(a.shape), i + 1)
                m = np.zeros((self.low[x].size, count), a.dtype)
                np.add.at(m, place, through.T)
                pay(np.abs(through), self.largest(x).reshape(-1)[place], number.own(2 * through.shape[1]))
                pass_on(x, m.T.reshape(count, *self.shapes[x]))
            else:
                m, cost, none, size = self._through(i, a.reshape(count, -1), (splits or {}).get(i))
                spend(cost)
                pay(np.abs(a).reshape(m.shape) + np.abs(m), size, number.own(m.shape[1] + 16))
                pass_on(x, m.reshape(a.shape))
                empty |= none
        settle(waiting.pop(0, np.zeros((count, *self.shapes[0]), rows.dtype)), 0)
        error = total[2] * (1 if number.exact else 1 + 2.0**-20) + total[1] * number.own(8 * len(self.steps) + 16)
        found = total[0] + error + (0 if number.exact else TINY)
        return np.where(empty, -np.inf, np.where(found == found, found, np.inf))  # NaN is no bound

    def _chosen(self, step: Op, windows: Callable[[Array], Array]) -> tuple[Array, Array]:
        """Return the entry of each window with the largest lower bound, which its maximum is at least; is it equal?"""
        low, high = self.low[step.inputs[0]], self.high[step.inputs[0]]
        entries, tops, best = windows(low), windows(high), windows(low).argmax(-1)[..., None]
        place = np.take_along_axis(windows(np.arange(low.size, dtype=float).reshape(low.shape)), best, -1)[..., 0]
        others = np.where(np.arange(tops.shape[-1]) == best, entries, tops).max(-1)
        return place.reshape(-1).astype(int), others <= entries.max(-1)

    def _through(self, i: int, o: Array, given: tuple[Array, ...] | None) -> tuple[Array, Array, Array, Array]:
        """Go back through y = f(x): any coefficient m of x is allowed and costs the largest o y - m x (5), (8)."""
        step, none, x = self.steps[i], np.zeros(len(o), bool), self.steps[i].inputs[0]
        if step.curve is not None:
            f, rest, size, nodes, below, above = self.size[i]
            m = np.where(o > 0, o * above, o * below)
            cost = reduce(np.maximum, (o * v - m * t for v, t in zip(f, nodes, strict=True)))
            return m, (cost + np.abs(o) * rest).sum(1), none, size
        left, low, high = step.left, self.low[x].reshape(1, -1), self.high[x].reshape(1, -1)
        free, zero, one = (low < 0) & (high > 0), 0 * low, 0 * low + 1
        chord = (np.maximum(high, zero) - left * np.minimum(low, zero)) / np.where(free, high - low, one)
        slope = np.where(high > -low, one, left)
        m = np.where(free, np.where(o > 0, o * chord, o * slope), o * np.where(low >= 0, one, left))
        if given is not None:
            at, slopes, sign, beta, through, rows = given
            low, high = low.repeat(len(o), 0), high.repeat(len(o), 0)
            here = np.where(free[:, at] & (o[:, at] <= 0), o[:, at] * slopes, m[:, at])
            here = np.where(sign == 0, here, o[:, at] * np.where(sign > 0, 1, left) + sign * beta)
            m[:, at] = np.where(rows, through, here)
            low[:, at] = np.where(sign > 0, np.maximum(low[:, at], 0), low[:, at])
            high[:, at] = np.where(sign < 0, np.minimum(high[:, at], 0), high[:, at])
            none = np.asarray((low > high).any(1))
        ends = (low, np.minimum(np.maximum(low, zero), high), high)
        cost = reduce(np.maximum, [o * np.maximum(left * end, end) - m * end for end in ends])
        size = self.largest(x).reshape(1, -1)
        return m, (cost + np.abs(o) * size * (self.number.network(2) * bool(left))).sum(1), none, size


@lru_cache(1 << 16)
def input_of(low: Any, high: Any, eps: Any, clip: Any) -> tuple[Fraction, Fraction, float, float]:
    """Return the ends of one input's region, in rationals and in float64 around them: images have few numbers."""
    least, most = Fraction(low) - ratio(eps), Fraction(high) + ratio(eps)
    bottom, top = (least, most) if clip is None else map(ratio, clip)
    need(bottom <= low and high <= top and least <= most, "an empty region, or the centre is no valid input")
    least, most = max(least, bottom), min(most, top)
    return least, most, math.nextafter(float(least), -math.inf), math.nextafter(float(most), math.inf)


def region_of(region: dict[str, Any], arrays: dict[str, Array]) -> tuple[Box, Box]:
    """Return the ends of the region, in rationals and in float64 around them."""
    ball = region["kind"] == "ball"
    both = [arrays[name] for name in (("center", "center") if ball else ("lower", "upper"))]
    asked = (region["eps"], region["clip"] and tuple(region["clip"])) if ball else ("0", None)
    found = (input_of(*ends, *asked) for ends in zip(*(each.reshape(-1).tolist() for each in both), strict=True))
    low, high, under, over = (np.array(each).reshape(1, *both[0].shape) for each in zip(*found, strict=True))
    return (low, high), (under, over)


def cases_of(header: dict[str, Any], arrays: dict[str, Array], outputs: int, number: Numbers) -> tuple[Array, Array]:
    """Return rows c (N, S, K) and d (N, S): a case holds where all its rows c.z + d are > 0."""
    if (label := header.get("label")) is not None:
        need(type(label) is int and 0 <= label < outputs, f"the label {label} of {outputs}")
        rows = np.delete(np.eye(outputs) - np.eye(outputs)[label], label, 0)[:, None]
        return number.of(rows), number.of(0 * rows[..., 0])
    c, d = arrays["c"], arrays["d"]
    need(c.ndim == 3 and c.shape[2] == outputs and d.shape == c.shape[:2], f"rows of shape {c.shape}")
    return number.of(c), number.of(d)


@dataclass
class Claim:
    """One certificate at work: its cases, and the arrays that its proofs name."""

    network: CheckedNetwork
    arrays: dict[str, Array]
    c: Array
    d: Array
    leaves: int = 0

    def bound(self, proof: dict[str, Any], box: Box) -> Array:
        """Bound the cases that a proof is about: (n,)."""
        cases, by = np.array(whole(proof["cases"], len(proof["cases"]), 0)), proof["by"]
        need(len(cases) and cases.max() < len(self.c), f"cases {cases}")
        weights = self.arrays[proof["weights"]] if proof.get("weights") else None
        if by in ("interval", "crown-ibp", "crown"):
            self.network.over(box, linear=by == "crown")
            self.leaves += len(cases)
            return self.rows(cases, weights, stop=by == "interval")
        need(len(cases) == 1 and by in ("splits", "boxes"), f"a proof of {len(cases)} cases by {by!r}")
        if by == "splits":
            return np.array([self._splits(proof, weights, cases, box)])
        tree, cuts = iter(self.arrays[proof["tree"]].tolist()), iter(self.arrays[proof["cuts"]].tolist())
        return np.array([self._boxes(tree, cuts, None if weights is None else iter(weights[:, None]), cases, box)])

    def rows(self, cases: Array, weights: Array | None, stop: bool, splits: Given | None = None) -> Array:
        """Bound mixtures of the rows of cases (n,), with weights (n, S) >= 0 that are not all 0 (7)."""
        number, network, last = self.network.number, self.network, len(self.network.steps)
        if weights is None:  # every row by itself: one that is not > 0 is enough
            alone = [np.eye(self.c.shape[1])[[s]].repeat(len(cases), 0) for s in range(self.c.shape[1])]
            return np.asarray(np.minimum.reduce([self.rows(cases, each, stop, splits) for each in alone]))
        need(weights.shape == (len(cases), self.c.shape[1]) and (weights >= 0).all(), "weights that are negative")
        need((weights > 0).any(1).all(), "weights that are all 0")
        w, c, d = number.of(weights), self.c[cases], self.d[cases]
        size = (w[..., None] * np.abs(c)).sum(1) * network.largest(last).reshape(1, -1)
        error = (size.sum(1) + (w * np.abs(d)).sum(1)) * number.own(4 * w.shape[1] + 8)
        rows = (w[..., None] * c).sum(1).reshape(-1, *network.shapes[-1])
        return np.asarray(network.back(last, rows, stop, splits) + ((w * d).sum(1) + error))

    def _splits(self, proof: dict[str, Any], weights: Array | None, case: Array, box: Box) -> Any:
        """Bound one case by a tree of splits on the signs of ReLU inputs (6)."""
        network, units, tree = self.network, self.arrays[proof["units"]], self.arrays[proof["tree"]].tolist()
        need(units.ndim == 2 and units.shape[1] == 2, f"units of shape {units.shape}")
        inner, worst = Given(), -np.inf
        for relu, entries, slopes in proof.get("inner", ()):
            need((self.arrays[entries] >= 0).all(), "entries before the first")
            inner[network.steps[network.relus[relu]].inputs[0]] = self.arrays[entries], self.arrays[slopes], units
        network.over(box, linear=True, inner=inner or None)
        paths, stack = list[Any](), [list[tuple[int, int]]()]  # of the leaves: units and signs, from the root
        for unit in tree:
            path = stack.pop() if stack else [(unit, 0)]
            need(type(unit) is int and -1 <= unit < len(units) and unit not in dict(path), f"a split of unit {unit}")
            paths += [path] if unit == -1 else []
            stack += [[*path, (unit, 1)], [*path, (unit, -1)]] if unit >= 0 else []
        slopes, betas = self.arrays[proof["slopes"]], iter(self.arrays[proof["betas"]].tolist())
        need(not stack and slopes.shape == (len(paths), len(units)), "leaves or slopes are missing, or too many")
        given, (signs, beta, through) = np.zeros((len(paths), 1), bool), np.zeros((3, *slopes.shape))
        for row, (unit, sign) in ((row, split) for row, path in enumerate(paths) for split in path):
            signs[row, unit], beta[row, unit] = sign, next(betas, np.nan)
        need(next(betas, None) is None and (beta >= 0).all(), "multipliers that are negative, missing or too many")
        if proof.get("through"):
            leaves, through[leaves] = self.arrays[proof["leaves"]], self.arrays[proof["through"]]
            given[leaves] = True
        for at in (slice(i, i + network.each) for i in range(0, len(paths), network.each)):
            found = network.units(units, *(v[at] for v in (slopes, signs, beta, through, given)))
            cases, mixed = case.repeat(len(paths[at])), None if weights is None else weights[at]
            worst = max(worst, *self.rows(cases, mixed, False, found))
        self.leaves += len(paths)
        return worst

    def _boxes(self, tree: Iterator[int], cuts: Iterator[float], weights: Any, case: Array, box: Box) -> Any:
        """Bound one case by a tree of cuts of the box, in the order of a walk: left below the cut, right above it."""
        axis, (low, high) = next(tree, -2), box
        need(type(axis) is int and -1 <= axis < low.size, f"a cut along the axis {axis}")
        if axis == -1:
            self.network.over(box, linear=True, every=True)
            self.leaves += 1
            return self.rows(case, None if weights is None else next(weights), stop=False)[0]
        cut, here = self.network.number.of(next(cuts, np.nan)), np.arange(low.size).reshape(low.shape) == axis
        need((~here | (low <= cut) & (cut <= high)).all(), "a cut outside of its box")
        parts = (low, np.where(here, cut, high)), (np.where(here, cut, low), high)
        return max([self._boxes(tree, cuts, weights, case, part) for part in parts])


def check(certificate: bytes, network: bytes, exact: bool = False) -> tuple[str, float, int]:
    """Check one certificate: what it claims, the worst bound and the number of leaves; raise Rejected if it fails."""
    try:
        with np.errstate(all="ignore"):
            return _checked(*unpack(certificate), network, exact)
    except Exception as error:  # whatever fails is no proof
        raise error if isinstance(error, Rejected) else Rejected(f"unreadable: {error!r}") from None


_network = lru_cache(4)(CheckedNetwork)


def _checked(header: dict[str, Any], arrays: dict[str, Array], data: bytes, exact: bool) -> tuple[str, float, int]:
    need(header["mode"] in ("deployed", "real"), f"the mode {header['mode']!r}")
    network = _network(data, Numbers(exact, header["mode"] == "deployed"))
    need(header["network"] == network.digest, "made for another network")
    (low, high), around = region_of(header["region"], arrays)
    need(low.shape[1:] == network.shapes[0], f"a region of shape {low.shape[1:]}")
    claim = Claim(network, arrays, *cases_of(header, arrays, math.prod(network.shapes[-1]), network.number))
    if header["claim"] == "falsified":
        point = Numbers(True, False).of(arrays["witness"])[None]
        need(point.shape == low.shape and ((low <= point) & (point <= high)).all(), "a witness outside of the region")
        network.over((network.number.of(arrays["witness"])[None],) * 2, linear=False)
        claim, cases = replace(claim, c=-claim.c, d=-claim.d), np.arange(len(claim.c))  # bounds of rows from below
        rows = [-claim.rows(cases, row[None].repeat(len(cases), 0), True) for row in np.eye(claim.c.shape[1])]
        least = float(np.min(rows, 0).max())
        need(least > 0, f"no case is sure to hold at the witness: {least:.6g}")
        return "falsified", least, 0
    need(header["claim"] == "robust", f"the claim {header['claim']!r}")
    box, bounds = (low, high) if exact else around, np.full(len(claim.c), np.inf, dtype=object)
    for proof in header["proofs"]:
        for case, bound in zip(proof["cases"], claim.bound(proof, box), strict=True):
            bounds[case] = min(bounds[case], bound)
    for case, bound in enumerate(bounds):
        need(bound <= 0, f"case {case}: the bound is {float(bound):.6g}, not below 0")
    return "robust", max((float(b) for b in bounds), default=-np.inf), claim.leaves


def stored(place: Path) -> Sequence[tuple[str, Callable[[], bytes]]]:
    """Return the names of files, and what reads them: of a directory and the packs in it, or of an archive."""
    files = [f for f in (sorted(place.rglob("*.[cn]e*t*")) if place.is_dir() else [place]) if f.is_file()]
    zips = [zipfile.ZipFile(path) for path in files if zipfile.is_zipfile(path)]
    found = [(e.filename, partial(lambda f, e: f.open(e).read(LARGEST_FILE), f, e)) for f in zips for e in f.infolist()]
    return found + [(path.name, partial(path.read_bytes)) for path in files if not zipfile.is_zipfile(path)]


def main() -> int:
    """Check the certificates of a directory or an archive; 1 if one of them is rejected, or if there are none."""
    files, found = stored(Path(next((each for each in sys.argv[1:] if each != "--exact"), "."))), [0, 0]
    networks = {_network(d, Numbers(False, True)).digest: d for d in (r() for n, r in files if n.endswith(".net"))}
    for name, read in (each for each in files if each[0].endswith((".cert", ".certs"))):
        try:
            found[0] += bool(check(data := read(), networks[unpack(data)[0]["network"]], "--exact" in sys.argv))
        except Exception as error:  # whatever fails is no proof
            found[1] += 1
            sys.stdout.write(f"{name}: rejected: {error if isinstance(error, Rejected) else repr(error)}\n")
    sys.stdout.write(f"{found[0]:,} valid, {found[1]:,} rejected; networks: {', '.join(networks) or 'none'}\n")
    return int(found[1] > 0 or not found[0])


if __name__ == "__main__":
    sys.exit(main())
