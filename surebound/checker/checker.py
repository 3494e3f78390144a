"""Check certificates of robustness with numpy and the standard library alone: no search, no solver, no trust.

    python checker.py DIRECTORY [--exact]

A certificate says: for no input of a region does a case of linear rows over a network's outputs hold. This file bounds
the rows with the slopes, multipliers and splits that the certificate names, and compares the bounds with 0. Why that
proves the claim is said in docs/certificates.md; numbers in brackets are of its arguments. Nothing else of surebound is
imported, so that the two cannot share a mistake.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[Array, Array]  # (1, *shape) each
Splits = tuple[tuple[int, int], ...]  # units and signs, from the root of a tree to a leaf

MAGIC = b"surebound-certificate 1\n"
LARGEST_FILE = 1 << 30  # bytes, unpacked
ROWS_BYTES = 1 << 26  # of one batch of rows on their way back through the network
FLOOR = 2.0**-100  # where rounding is paid, values and weights count as at least so large: underflow is less (2)
OVERFLOW = 1e38  # sums of float32 beyond this may overflow in some order
U32, U64 = Fraction(1, 2**24), Fraction(1, 2**53)


class Rejected(Exception):
    """The certificate does not prove its claim, or cannot be read; the message says where."""


def need(condition: object, message: str) -> None:
    """Reject the certificate unless the condition holds."""
    if not condition:
        raise Rejected(message)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header and the arrays of a file."""
    need(data.startswith(MAGIC), "not a certificate of version 1")
    inflate = zlib.decompressobj()
    try:
        body = inflate.decompress(data[len(MAGIC) :], LARGEST_FILE)
        need(inflate.eof and not inflate.unused_data, "truncated, too large, or followed by something else")
        (size,) = struct.unpack_from("<I", body)
        header = json.loads(body[4 : 4 + size])
        at, arrays = 4 + size, {}
        for name, dtype, shape in header["arrays"]:
            known = dtype in ("<f4", "<f8", "|u1", "|i1", "<i4") and all(type(n) is int and n >= 0 for n in shape)
            need(known, f"array {name}: {dtype} {shape}")
            count = int(np.prod(np.array(shape, dtype=object)))
            arrays[name] = np.frombuffer(body, dtype, count, at).reshape(shape)
            at += count * np.dtype(dtype).itemsize
        need(at == len(body), "bytes are left over")
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise Rejected(f"unreadable: {error}") from None
    return header, arrays


@dataclass(frozen=True)
class Numbers:
    """Float64 with every rounding paid, or rationals; and what a float32 execution may add (``deployed``)."""

    exact: bool
    deployed: bool

    def of(self, values: Any) -> Array:
        """Convert finite numbers, exactly."""
        values = np.asarray(values)
        need(values.dtype == object or np.isfinite(values).all(), "a number is not finite")
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
        size = np.abs(weight)
        return np.where((size > 0) & (size < 2.0**-126), self.of(FLOOR), size)


@dataclass(frozen=True)
class Op:
    """One operation: y = A x + b, or y = max(left x, x), or the largest entries of windows. (R, *shape) throughout."""

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


def build(given: dict[str, Any], arrays: dict[str, Array], shapes: list[tuple[int, ...]], number: Numbers) -> Op:
    """Make a step from its description; ``shapes`` of the values so far, without the batch."""
    op, inputs = given["op"], tuple(given["in"])
    need(inputs and all(type(i) is int and 0 <= i < len(shapes) for i in inputs), f"{op} reads what nothing computes")
    shape = shapes[inputs[0]]

    def array(name: str) -> Array:
        return number.of(arrays[given[name]]) if given.get(name) else number.of(0.0)

    def entrywise(factor: Array, bias: Any, size: Any, roundings: int) -> Op:
        need(np.broadcast_shapes(shape, factor.shape) == shape, "a factor larger than what it multiplies")
        sizes = number.sizes(factor)
        scaled = lambda x, absolute: x * (sizes if absolute else factor)  # noqa: E731
        return Op(inputs, scaled, lambda a: a * factor, bias, size, roundings, always=roundings)

    if op == "dense":  # along the last axis
        weight, bias = array("weight"), array("bias")  # (out, in)
        size = number.sizes(weight)
        product = lambda x, absolute: x @ (size if absolute else weight).T  # noqa: E731
        return Op(inputs, product, lambda a: a @ weight, bias, np.abs(bias), weight.shape[1] + 1, weight.shape[0])
    if op in ("conv", "average", "max"):
        return windowed(given, array, shape, number)
    if op == "scale":  # by a constant; ``divide``: by its reciprocal
        return entrywise(1 / array("scale") if given.get("divide") else array("scale"), 0, 0, 4)
    if op == "normalise":  # by running statistics
        by_channel = (-1, *[1] * (len(shape) - 1))
        variance = np.float64(arrays[given["variance"]]) + np.float64(given["eps"])
        scale = number.of((np.float64(arrays[given["weight"]]) / np.sqrt(variance)).reshape(by_channel))
        bias, mean = array("bias").reshape(by_channel), array("mean").reshape(by_channel)
        return entrywise(scale, bias - scale * mean, np.abs(scale * mean) + np.abs(bias), 32)
    if op == "add":  # values with signs, and a constant
        signs, bias = tuple(given["signs"]), array("bias")
        need(len(signs) == len(inputs) and all(s in (1, -1) for s in signs), f"signs {signs}")
        need(all(shapes[i] == shape for i in inputs), f"a sum of shapes {[shapes[i] for i in inputs]}")
        need(np.broadcast_shapes(shape, bias.shape) == shape, "a constant larger than what it is added to")
        return Op(inputs, lambda x, _: x, lambda a: a, bias, np.abs(bias), len(inputs) + 1, signs=signs)
    if op == "reshape":
        after = tuple(given["shape"])
        return Op(inputs, lambda x, _: x.reshape(len(x), *after), lambda a: a.reshape(len(a), *shape), terms=0)
    if op == "transpose":
        order = (0, *(i + 1 for i in given["order"]))
        undo = tuple(int(i) for i in np.argsort(order))
        return Op(inputs, lambda x, _: x.transpose(order), lambda a: a.transpose(undo), terms=0)
    need(op == "relu", f"the operation {op!r} is not known")
    left = Fraction(given.get("left", 0))
    need(0 <= left < 1, f"a slope of {left}")
    return Op(inputs, left=left if number.exact else float(left))


def windowed(given: dict[str, Any], array: Callable[[str], Array], shape: Any, number: Numbers) -> Op:
    """Make a 2-D convolution, or a pooling, which treats every channel by itself."""
    inputs = tuple(given["in"])
    (sh, sw), (top, left, bottom, right), (dh, dw) = given["stride"], given["pads"], given["dilation"]
    weight, groups, bias, pools = array("weight"), given.get("groups", 1), array("bias"), given["op"] != "conv"
    if pools:
        groups, kernel = shape[0], given["kernel"]
        weight = np.full((groups, 1, *kernel), (1 / number.of(float(np.prod(kernel))))[()])
    (kh, kw), each, out = weight.shape[2:], weight.shape[1], len(weight) // groups
    need(each * groups == shape[0] and out * groups == len(weight), f"{groups} groups of {shape[0]} channels")
    size, whole = number.sizes(weight), (shape[0], shape[1] + top + bottom, shape[2] + left + right)

    def windows(x: Array, fill: Any = 0) -> Array:  # (N, C, H', W', kh, kw)
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
        view = sliding_window_view(x, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), axis=(2, 3))
        return np.asarray(view[:, :, ::sh, ::sw, ::dh, ::dw])

    def apply(x: Array, absolute: bool) -> Array:
        w, used = windows(x).transpose(0, 2, 3, 1, 4, 5), size if absolute else weight
        rows = [w[:, :, :, g * each : (g + 1) * each].reshape(*w.shape[:3], -1) for g in range(groups)]
        found = [rows[g] @ used[g * out : (g + 1) * out].reshape(out, -1).T for g in range(groups)]
        return np.concatenate(found, 3).transpose(0, 3, 1, 2)

    def adjoint(a: Array) -> Array:
        found, (h, w), rows = np.zeros((len(a), *whole), a.dtype), a.shape[2:], a.transpose(0, 2, 3, 1)
        for g in range(groups):
            part, target = rows[..., g * out : (g + 1) * out], found[:, g * each : (g + 1) * each]
            for i in range(kh):
                for j in range(kw):
                    place = target[:, :, i * dh :: sh, j * dw :: sw][:, :, :h, :w]
                    place += (part @ weight[g * out : (g + 1) * out, :, i, j]).transpose(0, 3, 1, 2)
        return found[:, :, top : whole[1] - bottom, left : whole[2] - right]

    if given["op"] == "max":  # what lies outside of the image is never the largest
        lowest = number.of(-(2.0**1000))[()]
        return Op(inputs, windows=lambda x: windows(x, lowest).reshape(*windows(x).shape[:4], -1))
    bias = bias.reshape(-1, 1, 1) if bias.ndim else bias
    return Op(inputs, apply, adjoint, bias, np.abs(bias), each * kh * kw + 2, out * kh * kw, always=2 * pools)


@dataclass(frozen=True)
class Units:
    """What a certificate gives for u units of one ReLU step in R sub-problems: (R, u) each, but the units' places."""

    place: Array  # (u,) in the flattened input
    sign: Array  # of the input; 0 where it is not split
    slope: Array  # lower slope
    beta: Array  # multiplier of the split
    through: Array  # coefficient of the input, in the rows that have it
    given: Array  # (R, 1) bool: these rows


class CheckedNetwork:
    """A network, the bounds of its values over one box at a time, and rows that are taken back through it."""

    def __init__(self, data: bytes, number: Numbers) -> None:
        header, arrays = unpack(data)
        self.number, self.digest, self.done = number, hashlib.sha256(data).hexdigest(), (None, False)
        self.floor, self.shapes, self.steps = number.of(FLOOR)[()], [tuple(header["input"])], list[Op]()
        self.low, self.high, self.size = list[Array](), list[Array](), list[Any]()  # of values; |A| max|x| + |b|
        for given in header["steps"]:
            step = build(given, arrays, self.shapes, number)
            x = number.of(np.zeros((1, *self.shapes[step.inputs[0]])))
            x = step.windows(x)[..., 0] if step.windows is not None else x
            self.shapes.append((x if step.apply is None else step.apply(x, False) + step.bias).shape[1:])
            self.steps.append(step)
        self.relus = [i for i, step in enumerate(self.steps) if step.left is not None]

    def largest(self, value: int) -> Array:
        """Return the largest size of a value's entries over the box."""
        return np.maximum(np.abs(self.low[value]), np.abs(self.high[value])) + self.floor

    def over(self, box: Box, linear: bool, every: bool = False) -> None:
        """Bound every value over a box: by intervals (3); if ``linear``, ReLU inputs also by rows (5)."""
        if self.done[0] is box and self.done[1] == linear:
            return
        self.low, self.high, self.size, self.done, seen = [box[0]], [box[1]], [], (box, linear), False  # type: ignore[assignment]
        for step in self.steps:
            x, size = step.inputs[0], 0
            if step.apply is not None:
                low, high, size = self._affine(step)
            elif step.windows is not None:
                low, high = step.windows(self.low[x]).max(-1), step.windows(self.high[x]).max(-1)
            else:
                if linear and seen:
                    self._tighten(x, every)
                paid, seen = self.number.network(2) * bool(step.left) * self.largest(x), True
                low, high = (np.maximum(step.left * v[x], v[x]) for v in (self.low, self.high))
                low, high = low - paid, high + paid
            self.low.append(low), self.high.append(high), self.size.append(size)  # type: ignore[func-returns-value]

    def _rate(self, step: Op, count: int) -> Any:
        """Return what is paid of |A| max|x| + |b|: for the network's sums, and for ours of ``count`` terms."""
        return self.number.network(step.terms) + self.number.own(count + 64, step.always)

    def _affine(self, step: Op) -> tuple[Array, Array, Any]:
        assert step.apply is not None
        if not step.terms:
            x = step.inputs[0]
            return step.apply(self.low[x], False), step.apply(self.high[x], False), 0
        center, radius, size = np.asarray(step.bias), np.asarray(0), np.asarray(step.bias_size + self.floor)
        for value, sign in zip(step.inputs, step.signs, strict=True):
            low, high = self.low[value], self.high[value]
            center = center + sign * step.apply(low / 2 + high / 2, False)
            radius = radius + step.apply(high / 2 - low / 2, True)
            size = size + step.apply(self.largest(value), True)
        need(bool((size < OVERFLOW).all()), "sums may overflow")
        error = size * self._rate(step, 4 * step.terms)
        return center - radius - error, center + radius + error, size

    def _tighten(self, value: int, every: bool) -> None:
        """Bound the entries of a ReLU's input that may have either sign, or all, by rows, with adaptive slopes."""
        low, high = self.low[value].reshape(-1).copy(), self.high[value].reshape(-1).copy()
        open_ones, entries = np.flatnonzero(((low < 0) | every) & (high > 0)), max(v.size for v in self.low)
        each = max(1, ROWS_BYTES // (16 * entries))
        for part in (open_ones[i : i + each] for i in range(0, len(open_ones), each)):
            rows = np.zeros((2, len(part), low.size), low.dtype)
            rows[0, np.arange(len(part)), part], rows[1, np.arange(len(part)), part] = 1, -1
            found = self.back(value, rows.reshape(-1, *self.shapes[value]))
            high[part] = np.minimum(high[part], found[: len(part)])
            low[part] = np.maximum(low[part], -found[len(part) :])
        self.low[value], self.high[value] = (v.reshape(1, *self.shapes[value]) for v in (low, high))

    def back(self, value: int, rows: Array, stop: bool = False, splits: dict[int, Units] | None = None) -> Array:
        """Bound rows (R, *shape) of a value from above: (R,). ``stop``: at the first ReLU, by its intervals (4).

        ``splits``: what the certificate gives, by the numbers of ReLU steps; -inf where they leave no execution.
        """
        number, count = self.number, len(rows)
        waiting, empty = {value: rows}, np.zeros(count, bool)
        offset, added, error = (np.zeros(count, rows.dtype) for _ in range(3))

        def dot(a: Array, b: Any) -> Array:
            return np.asarray((a * b).reshape(count, -1).sum(1))

        def spend(cost: Array) -> None:
            nonlocal offset, added
            offset, added = offset + cost, added + np.abs(cost)

        def pay(sizes: Array, at: Any, rate: Any) -> None:
            nonlocal error
            error = error + dot(sizes, at) * rate

        def settle(a: Array, v: int) -> None:  # by the bounds of a value itself
            spend(dot(np.maximum(a, 0 * a), self.high[v]) + dot(np.minimum(a, 0 * a), self.low[v]))
            pay(np.abs(a), self.largest(v), number.own(a[0].size + 8))

        def pass_on(to: int, a: Array) -> None:
            if to in waiting:
                pay(np.abs(waiting[to]) + np.abs(a), self.largest(to), number.own(2))
                a = a + waiting[to]
            waiting[to] = a

        for i in range(value - 1, -1, -1):
            step, a = self.steps[i], waiting.pop(i + 1, None)
            if a is None:
                continue
            if step.adjoint is not None:
                if step.terms:
                    pay(np.abs(a), self.size[i], self._rate(step, step.back + a[0].size))
                    spend(dot(a, step.bias))
                for each, sign in zip(step.inputs, step.signs, strict=True):
                    pass_on(each, sign * step.adjoint(a))
            elif stop:
                settle(a, i + 1)
            elif step.windows is not None:
                place, sure = self._chosen(step)
                through = np.where(sure, a, np.minimum(a, 0 * a)).reshape(count, -1)  # to the entry that is largest
                settle(a - through.reshape(a.shape), i + 1)
                m = np.zeros((self.low[step.inputs[0]].size, count), a.dtype)
                np.add.at(m, place, through.T)
                pay(np.abs(through), self.largest(step.inputs[0]).reshape(-1)[place], number.own(2 * through.shape[1]))
                pass_on(step.inputs[0], m.T.reshape(count, *self.shapes[step.inputs[0]]))
            else:
                x = step.inputs[0]
                m, cost, none = self._through(step, a, None if splits is None else splits.get(i))
                spend(cost)
                pay(np.abs(a) + np.abs(m), self.largest(x), number.own(a[0].size + 16))
                pay(np.abs(a), self.largest(x), number.network(2) * bool(step.left))
                pass_on(x, m)
                empty |= none
        if 0 in waiting:
            settle(waiting.pop(0), 0)
        error = error * (1 if number.exact else 1 + 2.0**-20) + added * number.own(8 * len(self.steps) + 16)
        return np.where(empty, -np.inf, offset + error)

    def _chosen(self, step: Op) -> tuple[Array, Array]:
        """Return the entry of each window with the largest lower bound, which its maximum is at least; is it equal?"""
        low, high, windows = self.low[step.inputs[0]], self.high[step.inputs[0]], step.windows
        assert windows is not None
        entries, tops, best = windows(low), windows(high), windows(low).argmax(-1)[..., None]
        place = np.take_along_axis(windows(np.arange(low.size, dtype=float).reshape(low.shape)), best, -1)[..., 0]
        others = np.where(np.arange(tops.shape[-1]) == best, entries, tops).max(-1)
        return place.reshape(-1).astype(int), others <= entries.max(-1)

    def _through(self, step: Op, a: Array, given: Units | None) -> tuple[Array, Array, Array]:
        """Go back through y = max(left x, x): any coefficient m of x is allowed and costs the largest o y - m x (5)."""
        o, left, x = a.reshape(len(a), -1), step.left, step.inputs[0]
        low, high = self.low[x].reshape(1, -1), self.high[x].reshape(1, -1)
        free, zero, one = (low < 0) & (high > 0), 0 * low, 0 * low + 1
        chord = (np.maximum(high, zero) - left * np.minimum(low, zero)) / np.where(free, high - low, one)
        slope = np.where(high > -low, one, left)
        m = np.where(free, np.where(o > 0, o * chord, o * slope), o * np.where(low >= 0, one, left))
        none: Array = np.zeros(len(o), bool)
        if given is not None:
            at, sign = given.place, given.sign
            low, high = low.repeat(len(o), 0), high.repeat(len(o), 0)
            here = np.where(free[:, at] & (o[:, at] <= 0), o[:, at] * given.slope, m[:, at])
            here = np.where(sign == 0, here, o[:, at] * np.where(sign > 0, 1, left) + sign * given.beta)
            m[:, at] = np.where(given.given, given.through, here)
            low[:, at] = np.where(sign > 0, np.maximum(low[:, at], 0), low[:, at])
            high[:, at] = np.where(sign < 0, np.minimum(high[:, at], 0), high[:, at])
            none = np.asarray((low > high).any(1))
        cost = np.maximum(*(o * np.maximum(left * end, end) - m * end for end in (low, high)))
        cost = np.where((low < 0) & (high > 0), np.maximum(cost, zero), cost)
        return m.reshape(a.shape), cost.sum(1), none


def region_of(header: dict[str, Any], arrays: dict[str, Array], exact: bool) -> Box:
    """Return a box that contains the region; the region itself in rationals."""
    region = header["region"]
    ball = region["kind"] == "ball"  # or a box
    names = ("center", "center") if ball else ("lower", "upper")
    low, high = ([Fraction(v) for v in arrays[name].reshape(-1).tolist()] for name in names)
    if ball:
        eps = Fraction(region["eps"])
        low, high = [x - eps for x in low], [x + eps for x in high]
        if region["clip"] is not None:
            first, last = (Fraction(end) for end in region["clip"])
            low, high = ([min(max(x, first), last) for x in end] for end in (low, high))
    need(len(low) == len(high) and all(a <= b for a, b in zip(low, high, strict=True)), "an empty region")
    shape = (1, *arrays[names[0]].shape)
    if exact:
        return np.array(low, dtype=object).reshape(shape), np.array(high, dtype=object).reshape(shape)
    below, above = np.array([float(v) for v in low]), np.array([float(v) for v in high])  # to nearest, then outwards
    return np.nextafter(below, -np.inf).reshape(shape), np.nextafter(above, np.inf).reshape(shape)


def cases_of(header: dict[str, Any], arrays: dict[str, Array], outputs: int, number: Numbers) -> tuple[Array, Array]:
    """Return rows c (N, S, K) and d (N, S): a case holds where all its rows c.z + d are > 0."""
    if (label := header.get("label")) is not None:
        need(type(label) is int and 0 <= label < outputs, f"the label {label} of {outputs}")
        rows = np.delete(np.eye(outputs) - np.eye(outputs)[label], label, 0)[:, None]
        return number.of(rows), number.of(np.zeros(rows.shape[:2]))
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
        cases, by = np.array(proof["cases"], dtype=int), proof["by"]
        need(len(cases) and cases.min() >= 0 and cases.max() < len(self.c), f"cases {cases}")
        weights = self.arrays[proof["weights"]] if proof.get("weights") else None
        if by in ("interval", "crown-ibp", "crown"):
            self.network.over(box, linear=by == "crown")
            self.leaves += len(cases)
            return self.rows(cases, weights, stop=by == "interval")
        need(len(cases) == 1 and by in ("splits", "boxes"), f"a proof of {len(cases)} cases by {by!r}")
        if by == "splits":
            return np.array([self._splits(proof, weights, cases, box)])
        tree, cuts = iter(self.arrays[proof["tree"]].tolist()), iter(self.arrays[proof["cuts"]].tolist())
        order = None if weights is None else iter(weights[:, None])
        return np.array([self._boxes(tree, cuts, order, cases, box)])

    def rows(self, cases: Array, weights: Array | None, stop: bool, splits: dict[int, Units] | None = None) -> Array:
        """Bound mixtures of the rows of cases (n,), with weights (n, S) >= 0 that are not all 0 (7)."""
        number, network, last = self.network.number, self.network, len(self.network.steps)
        if weights is None:  # every row by itself: one that is not > 0 is enough
            alone = [np.eye(self.c.shape[1])[[s]].repeat(len(cases), 0) for s in range(self.c.shape[1])]
            return np.asarray(np.minimum.reduce([self.rows(cases, each, stop, splits) for each in alone]))
        need(weights.shape == (len(cases), self.c.shape[1]), "weights of another shape")
        need((weights >= 0).all() and (weights > 0).any(1).all(), "weights that are negative, or all 0")
        w, c, d = number.of(weights), self.c[cases], self.d[cases]
        size = (w[..., None] * np.abs(c)).sum(1) * network.largest(last).reshape(1, -1)
        error = (size.sum(1) + (w * np.abs(d)).sum(1)) * number.own(4 * w.shape[1] + 8)
        rows = (w[..., None] * c).sum(1).reshape(-1, *network.shapes[-1])
        return np.asarray(network.back(last, rows, stop, splits) + ((w * d).sum(1) + error))

    def _splits(self, proof: dict[str, Any], weights: Array | None, case: Array, box: Box) -> Any:
        """Bound one case by a tree of splits on the signs of ReLU inputs (6)."""
        network, units, tree = self.network, self.arrays[proof["units"]], self.arrays[proof["tree"]].tolist()
        network.over(box, linear=True)
        paths = list(leaf_paths(iter(tree), len(units)))
        need(2 * len(paths) - 1 == len(tree), "a tree with more than its leaves")
        slopes, betas = self.arrays[proof["slopes"]], iter(self.arrays[proof["betas"]].tolist())
        need(slopes.shape == (len(paths), len(units)), "slopes of another shape")
        slopes = slopes / 255.0 if slopes.dtype == np.uint8 else slopes
        signs, beta, through = np.zeros(slopes.shape), np.zeros(slopes.shape), np.zeros(slopes.shape)
        for row, path in enumerate(paths):
            for unit, sign in path:
                signs[row, unit], beta[row, unit] = sign, next(betas)
        need(next(betas, None) is None and (beta >= 0).all(), "multipliers that are negative, or too many")
        given = np.zeros((len(paths), 1), bool)
        if proof.get("through"):
            leaves = self.arrays[proof["leaves"]]
            given[leaves], through[leaves] = True, self.arrays[proof["through"]]
        every = [network.number.of(v) for v in (signs, slopes, beta, through)]
        worst, each = -np.inf, max(1, ROWS_BYTES // (16 * max(v.size for v in network.low)))
        for at in (slice(i, i + each) for i in range(0, len(paths), each)):
            found = {}
            for number, i in enumerate(network.relus):
                here = units[:, 0] == number
                place, entries = units[here, 1], network.low[network.steps[i].inputs[0]].size
                need(
                    len(set(place.tolist())) == len(place) and not len(place[(place < 0) | (place >= entries)]), "units"
                )
                sides, lower, push, m = (v[at][:, here] for v in every)
                found[i] = Units(place, sides, lower, push, m, given[at])
            mixed = None if weights is None else weights[at]
            worst = max(worst, *self.rows(case.repeat(len(paths[at])), mixed, False, found))
        self.leaves += len(paths)
        return worst

    def _boxes(self, tree: Iterator[int], cuts: Iterator[float], weights: Any, case: Array, box: Box) -> Any:
        """Bound one case by a tree of cuts of the box, in the order of a walk: left below the cut, right above it."""
        axis, (low, high) = next(tree, -2), box
        need(-1 <= axis < low.size, f"a cut along the axis {axis}")
        if axis == -1:
            self.network.over(box, linear=True, every=True)
            self.leaves += 1
            return self.rows(case, None if weights is None else next(weights), stop=False)[0]
        cut, at = self.network.number.of(next(cuts, np.nan))[()], np.unravel_index(axis, low.shape)
        need(low[at] <= cut <= high[at], "a cut outside of its box")
        middle_low, middle_high = low.copy(), high.copy()
        middle_low[at], middle_high[at] = cut, cut
        below = self._boxes(tree, cuts, weights, case, (low, middle_high))
        return max(below, self._boxes(tree, cuts, weights, case, (middle_low, high)))


def leaf_paths(tree: Iterator[int], units: int, path: Splits = ()) -> Iterator[Splits]:
    """Yield the splits of every leaf of a tree, in the order of a walk: negative halves first."""
    unit = next(tree, -2)
    need(-1 <= unit < units and unit not in [u for u, _ in path], f"a split on the unit {unit}")
    if unit == -1:
        yield path
        return
    for sign in (-1, 1):
        yield from leaf_paths(tree, units, (*path, (unit, sign)))


def check(certificate: bytes, network: bytes, exact: bool = False) -> tuple[str, float, int]:
    """Check one certificate: what it claims, the worst bound and the number of leaves; raise Rejected if it fails."""
    header, arrays = unpack(certificate)
    try:
        return _checked(header, arrays, network, exact)
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError, RecursionError) as error:
        raise Rejected(f"unreadable: {type(error).__name__} {error}") from None


_network = lru_cache(4)(CheckedNetwork)


def _checked(header: dict[str, Any], arrays: dict[str, Array], data: bytes, exact: bool) -> tuple[str, float, int]:
    need(header["mode"] in ("deployed", "real"), f"the mode {header['mode']!r}")
    network = _network(data, Numbers(exact, header["mode"] == "deployed"))
    need(header["network"] == network.digest, "made for another network")
    box, number = region_of(header, arrays, exact), network.number
    need(box[0].shape[1:] == network.shapes[0], f"a region of shape {box[0].shape[1:]}")
    claim = Claim(network, arrays, *cases_of(header, arrays, int(np.prod(network.shapes[-1])), number))
    if header["claim"] == "falsified":
        point, (low, high) = Numbers(True, False).of(arrays["witness"])[None], region_of(header, arrays, True)
        need(point.shape == low.shape and ((low <= point) & (point <= high)).all(), "a witness outside of the region")
        network.over((number.of(arrays["witness"])[None],) * 2, linear=False)
        each = np.eye(claim.c.shape[1])  # every row of every case by itself, at that point
        values = np.array(
            [[claim.rows(np.array([n]), row[None], True)[0] for row in each] for n in range(len(claim.c))]
        )
        need(values.min(1).max() > 0, f"no case holds at the witness: {float(values.min(1).max()):.6g}")
        return "falsified", float(values.min(1).max()), 0
    need(header["claim"] == "robust", f"the claim {header['claim']!r}")
    bounds = np.full(len(claim.c), np.inf, dtype=object)
    for proof in header["proofs"]:
        cases = np.array(proof["cases"], dtype=int)
        bounds[cases] = np.minimum(bounds[cases], claim.bound(proof, box))
    for case, bound in enumerate(bounds):
        need(bound <= 0, f"case {case}: the bound is {float(bound):.6g}, not below 0")
    return "robust", max((float(b) for b in bounds), default=-np.inf), claim.leaves


def main() -> int:
    """Check a directory of certificates; 1 if one of them is rejected."""
    exact, names = "--exact" in sys.argv, [each for each in sys.argv[1:] if each != "--exact"]
    start, found, directory = time.monotonic(), [0, 0], Path(names[0] if names else ".")
    for path in sorted(directory.glob("*.cert")):
        try:
            check(path.read_bytes(), (directory / "network.net").read_bytes(), exact)
            found[0] += 1
        except Rejected as error:
            found[1] += 1
            sys.stdout.write(f"{path.name}: rejected: {error}\n")
    size = sum(path.stat().st_size for path in directory.iterdir()) / 1e6
    seconds = time.monotonic() - start
    sys.stdout.write(f"{found[0]:,} valid, {found[1]:,} rejected, {size:.1f} MB, {seconds:.0f} s\n")
    return int(found[1] > 0 or not found[0])


if __name__ == "__main__":
    sys.exit(main())
