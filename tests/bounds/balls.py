"""Oracles for balls of other norms: the exact largest value of a linear function over a ball cut by a box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import surebound as sb


def greatest(a: Sequence[float], lower: Sequence[float], upper: Sequence[float], eps: float, norm: int) -> float:
    """Maximise a.t over |t| <= eps in the norm l1 or l2 and lower <= 0 <= t <= upper, one example, in float64."""
    free = [hi if v > 0 else -lo for v, lo, hi in zip(a, lower, upper, strict=True)]  # how far each can go
    gain = [abs(v) for v in a]
    if norm == 1:  # the dearest entries first, each as far as it goes
        left, best = eps, 0.0
        for value, most in sorted(zip(gain, free, strict=True), reverse=True):
            step = min(left, most)
            left, best = left - step, best + value * step
        return best
    if math.sqrt(sum(most * most for value, most in zip(gain, free, strict=True) if value > 0)) <= eps:
        return sum(value * most for value, most in zip(gain, free, strict=True))

    def reached(m: float) -> list[float]:
        return [min(value / m, most) for value, most in zip(gain, free, strict=True)]

    low, high = 1e-12, 1e12  # the multiplier at which the ball's surface is met, by bisection
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if math.hypot(*reached(middle)) > eps else (low, middle)
    return sum(value * t for value, t in zip(gain, reached(high), strict=True))


def rows_of(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return an affine network's values (K,) at one input (1, ...) and their coefficients (K, n), in float64."""
    wide = x.double()
    net.double()
    try:
        values = net(wide).flatten()
        rows: Any = torch.autograd.functional.jacobian(net, wide)
    finally:
        net.float()
    return values.detach(), rows.reshape(len(values), -1)


def exact_ends(net: nn.Module, ball: sb.L2Ball | sb.L1Ball) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest values (K,) of an affine network over one ball, in float64."""
    values, rows = rows_of(net, ball.x)
    origin = ball.x.double().flatten()
    low, high = torch.full_like(origin, -float(ball.eps)), torch.full_like(origin, float(ball.eps))
    if ball.clip is not None:
        low, high = torch.maximum(low, ball.clip[0] - origin), torch.minimum(high, ball.clip[1] - origin)
    ends = low.tolist(), high.tolist(), float(ball.eps), ball.norm
    above = torch.tensor([greatest(row.tolist(), *ends) for row in rows], dtype=torch.float64)
    below = torch.tensor([greatest((-row).tolist(), *ends) for row in rows], dtype=torch.float64)
    return values - below, values + above


def points_of(ball: sb.L2Ball | sb.L1Ball, count: int, seed: int = 0) -> list[Tensor]:
    """Draw points of a ball, many of them sparse or on its surface; those that rounding puts outside are moved in."""
    draw = torch.Generator().manual_seed(seed)
    x, found = ball.x.double(), []
    for number in range(count):
        way = torch.randn(x.shape, generator=draw, dtype=torch.float64)
        way = way * (torch.rand(x.shape, generator=draw) < (0.1, 0.5, 1.0)[number % 3])
        share = 1.0 if number % 2 else float(torch.rand((), generator=draw))
        size = way.flatten(1).norm(p=ball.norm, dim=1).clamp(min=1e-12).reshape(-1, *([1] * (x.dim() - 1)))
        way = way / size * float(ball.eps) * share
        point = (x + way).to(ball.x.dtype)
        point = point if ball.clip is None else point.clamp(*ball.clip)
        shrunk = (x + 0.999 * way).to(ball.x.dtype)
        shrunk = shrunk if ball.clip is None else shrunk.clamp(*ball.clip)
        held = ball.contains(point).reshape(-1, *([1] * (x.dim() - 1)))
        found.append(torch.where(held, point, shrunk))
    return found


def exact_maximum(net: nn.Sequential, ball: sb.L2Ball | sb.L1Ball, row: Tensor) -> float:
    """Maximise row.z over one ball of two inputs, z of a network of one hidden ReLU layer; in float64.

    The network is linear between the lines where a ReLU's input is 0, so that the maximum lies where two lines meet,
    lines of the clip range and of an l1 ball among them, or on the circle: where a line meets it, or where a linear
    piece is largest on all of it.
    """
    first, last = net[0], net[2]
    w, b = first.weight.double(), first.bias.double()
    o, eps = ball.x.double()[0], float(ball.eps)
    lines = [(a, -c) for a, c in zip(w, b.tolist(), strict=True)]  # a.x = c
    if ball.clip is not None:
        lines += [(torch.eye(2).double()[i], float(end)) for i in (0, 1) for end in ball.clip]
    signs = [torch.tensor(s).double() for s in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0))]
    if ball.norm == 1:
        lines += [(s, float(s @ o) + eps) for s in signs]
    found = [o]
    for i, (a, c) in enumerate(lines):
        for other, end in lines[:i]:
            both = torch.stack([a, other])
            if abs(float(torch.linalg.det(both))) > 1e-12:
                found.append(torch.linalg.solve(both, torch.tensor([c, end], dtype=torch.float64)))
        gap = (c - float(a @ o)) / float(a.norm())  # how far the line is from the middle
        if ball.norm == 2 and abs(gap) < eps:
            foot, along = o + a / a.norm() * gap, torch.stack([-a[1], a[0]]) / a.norm()
            found += [foot + side * math.sqrt(eps * eps - gap * gap) * along for side in (1, -1)]
    if ball.norm == 2:
        pieces = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * len(w)).double().reshape(-1, len(w))
        slopes = ((row.double() @ last.weight.double()) * pieces) @ w  # (2^U, 2)
        found += [o + eps * slope / slope.norm() for slope in slopes if float(slope.norm()) > 0]
    points = torch.stack(found)
    inside = (points - o).norm(p=ball.norm, dim=1) <= eps + 1e-9
    if ball.clip is not None:
        inside &= ((points >= ball.clip[0] - 1e-9) & (points <= ball.clip[1] + 1e-9)).all(1)
    hidden = (points[inside] @ w.t() + b).clamp(min=0)
    return float(((hidden @ last.weight.double().t() + last.bias.double()) @ row.double()).max())
