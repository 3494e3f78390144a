"""Slow, obvious references for bounds of small ReLU networks: linear programming, enumeration, exact fractions."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

Layers = list[tuple[np.ndarray, np.ndarray]]  # weight (out, in), bias (out,)


def layers_of(net: nn.Sequential) -> Layers:
    """The linear layers of Linear, ReLU, Linear, ..., in float64."""
    found = [m for m in net if isinstance(m, nn.Linear)]
    return [(m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in found]


def lp_maximum(
    layers: Layers,
    low: np.ndarray,
    high: np.ndarray,
    bounds: list[tuple[np.ndarray, np.ndarray]],
    c: np.ndarray,
) -> float:
    """The largest c.z of the triangle relaxation (Ehlers 2017) with the given pre-activation bounds."""
    sizes = [len(low)] + [s for weight, _ in layers[:-1] for s in (len(weight), len(weight))]
    starts = np.cumsum([0, *sizes])
    total = starts[-1]
    a_eq, b_eq, a_ub, b_ub = [], [], [], []
    ranges: list[tuple[float | None, float | None]] = [(float(lo), float(hi)) for lo, hi in zip(low, high, strict=True)]
    for k, (weight, bias) in enumerate(layers[:-1]):
        x, pre, post = starts[2 * k], starts[2 * k + 1], starts[2 * k + 2]
        lo, hi = bounds[k]
        for i in range(len(weight)):
            row = np.zeros(total)
            row[pre + i], row[x : x + weight.shape[1]] = -1.0, weight[i]
            a_eq.append(row)
            b_eq.append(-bias[i])
            above = np.zeros(total)
            above[pre + i], above[post + i] = 1.0, -1.0  # post >= pre
            a_ub.append(above)
            b_ub.append(0.0)
            top = np.zeros(total)
            if lo[i] < 0 < hi[i]:
                slope = hi[i] / (hi[i] - lo[i])
                top[post + i], top[pre + i] = 1.0, -slope
                a_ub.append(top)
                b_ub.append(-slope * lo[i])
            else:
                top[post + i], top[pre + i] = 1.0, -float(lo[i] >= 0)
                a_ub.append(top)
                b_ub.append(0.0)
        ranges += list(zip(lo.tolist(), hi.tolist(), strict=True)) + [(0.0, None)] * len(weight)
    weight, bias = layers[-1]
    objective = np.zeros(total)
    objective[starts[-2] :] = -(c @ weight)
    found = linprog(
        objective,
        A_ub=np.array(a_ub) if a_ub else None,
        b_ub=b_ub or None,
        A_eq=np.array(a_eq) if a_eq else None,
        b_eq=b_eq or None,
        bounds=ranges,
        method="highs",
    )
    assert found.status == 0, found.message
    return float(-found.fun + c @ bias)


def exact_maximum(layers: Layers, low: np.ndarray, high: np.ndarray, c: np.ndarray) -> float:
    """The largest c.z over the box, by one linear program per pattern of active ReLUs; -inf where none is feasible."""
    hidden = [len(weight) for weight, _ in layers[:-1]]
    best = -np.inf
    for pattern in itertools.product((0.0, 1.0), repeat=sum(hidden)):
        best = max(best, pattern_maximum(layers, low, high, c, pattern))
    return best


def pattern_maximum(
    layers: Layers, low: np.ndarray, high: np.ndarray, c: np.ndarray, pattern: tuple[float, ...]
) -> float:
    """The same for the inputs on which exactly these ReLUs (1.0) are active."""
    weight, bias = np.eye(len(low)), np.zeros(len(low))
    rows, limits, at = [], [], 0
    for w, b in layers[:-1]:
        weight, bias = w @ weight, w @ bias + b
        active = np.array(pattern[at : at + len(w)])
        at += len(w)
        sign = np.where(active > 0, -1.0, 1.0)  # active: -(W x + b) <= 0
        rows.append(sign[:, None] * weight)
        limits.append(-sign * bias)
        weight, bias = active[:, None] * weight, active * bias
    w, b = layers[-1]
    objective = -(c @ w @ weight)
    found = linprog(
        objective,
        A_ub=np.concatenate(rows) if rows else None,
        b_ub=np.concatenate(limits) if limits else None,
        bounds=list(zip(low.tolist(), high.tolist(), strict=True)),
        method="highs",
    )
    return float(-found.fun + c @ (w @ bias + b)) if found.status == 0 else -np.inf


def sampled_maximum(net: nn.Module, low: Tensor, high: Tensor, c: Tensor, count: int = 4000) -> Tensor:
    """The largest c.z found at corners and random points; low, high (N,), c (S, K); in float64: (S,)."""
    generator = torch.Generator().manual_seed(0)
    t = torch.rand(count, low.numel(), generator=generator, dtype=torch.float64)
    t[: count // 2] = t[: count // 2].round()
    x = low.double() + (high.double() - low.double()) * t
    with torch.no_grad():
        z = copy.deepcopy(net).double()(x)
    return (z @ c.double().t()).amax(0)


def exact_outputs(layers: Layers, x: Tensor) -> list[Fraction]:
    """The network at one input in rational arithmetic."""
    values = [Fraction(v) for v in x.double().tolist()]
    for k, (weight, bias) in enumerate(layers):
        rows = [
            sum((Fraction(w) * v for w, v in zip(row, values, strict=True)), Fraction(b))
            for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
        ]
        values = rows if k == len(layers) - 1 else [max(v, Fraction(0)) for v in rows]
    return values


def worst_float32(weight: Tensor, bias: Tensor, x: Tensor, up: bool) -> Tensor:
    """W x + b in float32 with each row summed in the order that makes the result largest (or smallest), of a few."""
    best = None
    for key in (None, "ascending", "descending", "signs"):
        total = []
        for row, b in zip(weight, bias, strict=True):
            terms = torch.cat([row * x, b.reshape(1)]).tolist()
            if key == "ascending":
                terms.sort()
            elif key == "descending":
                terms.sort(reverse=True)
            elif key == "signs":
                terms.sort(key=abs, reverse=True)
            value = np.float32(0)
            for term in terms:
                value = np.float32(value + np.float32(term))
            total.append(float(value))
        found = torch.tensor(total)
        best = found if best is None else (torch.maximum if up else torch.minimum)(best, found)
    assert best is not None
    return best
