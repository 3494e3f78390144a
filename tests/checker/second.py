"""A second checker, written separately from the first: fully connected ReLU networks, rationals, one unit at a time.

Only for tests, to check the checker: it reads the same files, walks units in another order and has no arrays. It
computes over the reals, so that its bounds must equal those of the first one in exact arithmetic to the last digit.
"""

from __future__ import annotations

import json
import struct
import zlib
from fractions import Fraction

Row = list[Fraction]


def parts(data: bytes) -> tuple[dict, dict]:
    """Header and arrays, as nested lists of fractions."""
    body = zlib.decompress(data.split(b"\n", 1)[1])
    length = struct.unpack("<I", body[:4])[0]
    header, at, arrays = json.loads(body[4 : 4 + length]), 4 + length, {}
    codes = {"<f4": "f", "<f8": "d", "|u1": "B", "|i1": "b", "<i4": "i"}
    for name, dtype, shape in header["arrays"]:
        count = 1
        for n in shape:
            count *= n
        size = struct.calcsize("<" + codes[dtype]) * count
        flat = [Fraction(v) for v in struct.unpack(f"<{count}{codes[dtype]}", body[at : at + size])]
        arrays[name], at = (nested(flat, shape), dtype), at + size
    return header, arrays


def nested(flat: list, shape: list[int]) -> list:
    if len(shape) <= 1:
        return flat if shape else flat[0]
    step = len(flat) // shape[0] if shape[0] else 0
    return [nested(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


class Net:
    """Layers W, b with ReLUs between them."""

    def __init__(self, data: bytes) -> None:
        header, arrays = parts(data)
        self.layers = []
        for step in header["steps"]:
            if step["op"] == "dense":
                self.layers.append((arrays[step["weight"]][0], arrays[step["bias"]][0]))
            else:
                assert step["op"] in ("relu", "reshape")

    def bounds(self, low: Row, high: Row, linear: bool, inner: dict) -> list[list[tuple[Fraction, Fraction]]]:
        """Bounds of every hidden layer's inputs; ``inner``: slopes for some of them, by layer and unit."""
        found: list[list[tuple[Fraction, Fraction]]] = []
        ends = list(zip(low, high, strict=True))
        for number, (weight, bias) in enumerate(self.layers[:-1]):
            layer = []
            for row, b in zip(weight, bias, strict=True):
                down = b + sum(w * (lo if w > 0 else hi) for w, (lo, hi) in zip(row, ends, strict=True))
                up = b + sum(w * (hi if w > 0 else lo) for w, (lo, hi) in zip(row, ends, strict=True))
                layer.append((down, up))
            if linear and number:
                for i, (down, up) in enumerate(layer):
                    if down < 0 < up:
                        unit = weight[i]
                        top = self.upper(number, unit, bias[i], found, low, high)
                        bottom = -self.upper(number, [-w for w in unit], -bias[i], found, low, high)
                        layer[i] = max(down, bottom), min(up, top)
            for i, (upward, downward) in inner.get(number, {}).items():
                top = self.upper(number, weight[i], bias[i], [*found, layer], low, high, upward)
                bottom = -self.upper(number, [-w for w in weight[i]], -bias[i], [*found, layer], low, high, downward)
                layer[i] = max(layer[i][0], bottom), min(layer[i][1], top)
            found.append(layer)
            ends = [(max(lo, Fraction(0)), max(hi, Fraction(0))) for lo, hi in layer]
        return found

    def upper(self, layers, o, offset, bounds, low, high, leaf=None, stop=False):
        """Bound o.(outputs of the ReLUs of layer ``layers`` - 1) + offset from above; None: no execution is left."""
        o = list(o)
        for number in range(layers - 1, -1, -1):
            m = []
            for i, coefficient in enumerate(o):
                lo, hi = bounds[number][i]
                sign, slope, beta, given = (leaf or {}).get((number, i), (0, None, 0, None))
                if stop:
                    offset += coefficient * (max(hi, Fraction(0)) if coefficient > 0 else max(lo, Fraction(0)))
                    m.append(Fraction(0))
                    continue
                if slope is None:
                    slope = Fraction(1) if hi > -lo else Fraction(0)
                if lo < 0 < hi:
                    through = coefficient * (hi / (hi - lo) if coefficient > 0 else slope)
                else:
                    through = coefficient if lo >= 0 else Fraction(0)
                if sign:
                    through = coefficient * (1 if sign > 0 else 0) + sign * beta
                    lo, hi = (max(lo, Fraction(0)), hi) if sign > 0 else (lo, min(hi, Fraction(0)))
                    if lo > hi:
                        return None
                if given is not None:
                    through = given
                points = [lo, hi] + ([Fraction(0)] if lo < 0 < hi else [])
                offset += max(coefficient * max(x, Fraction(0)) - through * x for x in points)
                m.append(through)
            if stop:
                return offset
            weight, bias = self.layers[number]
            offset += sum(p * b for p, b in zip(m, bias, strict=True))
            o = [sum(p * row[j] for p, row in zip(m, weight, strict=True)) for j in range(len(weight[0]))]
        return offset + sum(c * (hi if c > 0 else lo) for c, lo, hi in zip(o, low, high, strict=True))


def bound(certificate: bytes, network: bytes) -> Fraction | None:
    """The largest bound of all cases of a label's certificate over the reals; None where nothing is left to bound."""
    header, arrays = parts(certificate)
    net, label, region = Net(network), header["label"], header["region"]
    center, eps = arrays["center"][0], Fraction(region["eps"])
    low, high = [x - eps for x in center], [x + eps for x in center]
    if region["clip"]:
        a, b = (Fraction(end) for end in region["clip"])
        low, high = [min(max(x, a), b) for x in low], [min(max(x, a), b) for x in high]
    worst: list[Fraction] = []
    weight, bias = net.layers[-1]
    for proof in header["proofs"]:
        for case in proof["cases"]:
            k = case + (case >= label)
            row = [p - q for p, q in zip(weight[k], weight[label], strict=True)]
            known = net.bounds(low, high, proof["by"] in ("crown", "splits"), inner_of(proof, arrays))
            leaves = leaves_of(proof, arrays) if proof["by"] == "splits" else [None]
            for leaf in leaves:
                found = net.upper(
                    len(net.layers) - 1, row, bias[k] - bias[label], known, low, high, leaf, proof["by"] == "interval"
                )
                if found is not None:
                    worst.append(found)
    return max(worst) if worst else None


def inner_of(proof: dict, arrays: dict) -> dict:
    """Slopes of bounds inside the network: layer -> unit -> those of its bounds from above and from below."""
    found: dict = {}
    for layer, entries, name in proof.get("inner", ()):
        slopes, dtype = arrays[name]
        scale, units = 255.0 if dtype == "|u1" else 1.0, [(int(a), int(b)) for a, b in arrays[proof["units"]][0]]
        for e, unit in enumerate(arrays[entries][0]):
            pair = [
                {at: (0, Fraction(float(side[e][u]) / scale), 0, None) for u, at in enumerate(units)} for side in slopes
            ]
            found.setdefault(layer, {})[int(unit)] = pair
    return found


def leaves_of(proof: dict, arrays: dict) -> list[dict]:
    """What is given for each leaf, by (layer, unit)."""
    units = [(int(a), int(b)) for a, b in arrays[proof["units"]][0]]
    tree, betas = [int(t) for t in arrays[proof["tree"]][0]], list(arrays[proof["betas"]][0])
    slopes, dtype = arrays[proof["slopes"]]
    scale = 255.0 if dtype == "|u1" else 1.0
    through = dict(zip((int(i) for i in arrays[proof["leaves"]][0]), arrays[proof["through"]][0], strict=True)) if (
        "through" in proof
    ) else {}  # fmt: skip
    found: list[dict] = []

    def walk(signs: dict[int, int]) -> None:
        unit = tree.pop(0)
        if unit >= 0:
            walk({**signs, unit: -1})
            walk({**signs, unit: 1})
            return
        beta = {u: betas.pop(0) for u in signs}
        number = len(found)
        found.append(
            {
                place: (
                    signs.get(u, 0),
                    Fraction(float(slopes[number][u]) / scale),
                    beta.get(u, Fraction(0)),
                    through[number][u] if number in through else None,
                )
                for u, place in enumerate(units)
            }
        )

    walk({})
    return found
