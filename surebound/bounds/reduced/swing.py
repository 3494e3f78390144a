"""Slopes (and multipliers of signs) of many rows at once by their directions alone: cheap steps, for inner bounds.

A bound is convex in its slopes, and its derivative by one is the ReLU's coefficient times its input at the maximiser
(Danskin). Steps of a size of their own along the averaged signs of these need a fraction of Adam's passes over memory,
and fewer of them: what optimising inner bounds costs is mostly such passes.

property:  any slopes within the activation's give a valid bound: what is found is evaluated by a sound pass afterwards
reference: Xu et al. 2021 (alpha); Bernstein et al. 2018 (steps by signs with momentum)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.reduced.demands import Weighing
from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.errors import InputError


@dataclass(frozen=True)
class Swing:
    """So many steps; the first of ``rate`` times the range of slopes, each ``decay`` times the one before.

    ``fresh``: the part of the direction that is the last derivative's sign; the rest is the average of those before.
    """

    steps: int = 10
    rate: float = 0.3
    decay: float = 0.8
    fresh: float = 0.6

    def __post_init__(self) -> None:
        if self.steps < 0 or not (self.rate > 0 and 0 < self.decay <= 1 and 0 < self.fresh <= 1):
            raise InputError(f"{self}: steps must be >= 0, the rate > 0, decay and fresh in (0, 1]")


def swung(
    passes: Passes,
    a: Tensor,
    offset: Tensor,
    start: Multipliers,
    swing: Swing,
    goal: float,
    weighing: Weighing | None = None,
) -> Multipliers:
    """Find multipliers (R, U) that lower the bounds of a.v + offset, a (R, V), offset (R,), of signs that all share.

    A row is left as soon as its bound is below ``goal``; each keeps the best that it had. ``weighing``: of demands on
    the values of these rows, optimised with them.
    """
    now, fixed = start.alphas.clone(), start.signs[0] if len(a) else start.signs.new_zeros(start.signs.shape[1])
    best_slopes, best = now.clone(), torch.full_like(offset, torch.inf)
    active, direction = torch.arange(len(a)), torch.zeros_like(now)
    spread = passes.steepest - passes.least  # (U,)
    held = fixed.nonzero()[:, 0]  # (K,)
    side = fixed[held].to(now.dtype)
    betas = start.betas[:, held]
    best_betas, push, unit = betas.clone(), torch.zeros_like(betas), torch.zeros_like(betas)
    for step in range(swing.steps + 1):
        every = torch.zeros_like(now).index_copy_(1, held, betas) if len(held) else now
        if weighing is not None:
            a, offset = weighing.rows()
        found = passes.pull(a, offset, Multipliers(fixed.expand(len(now), -1), now, every))
        upper = passes.upper(found)
        better = upper < best[active]
        index = active[better]
        best[index], best_slopes[index], best_betas[index] = upper[better], now[better], betas[better]
        if weighing is not None:
            weighing.keep(active, better)
        alive = ~(best[active] <= goal)
        if step == swing.steps or not bool(alive.any()):
            break
        inside, v = passes.along(found)
        size = swing.rate * swing.decay**step
        if weighing is not None:
            weighing.step(v, size, swing.fresh if step else 1.0)
        if len(held):  # multipliers are as large as the coefficients that they act on; they gain where signs are broken
            if step == 0:
                own = found.own[:, held].abs()
                unit = own.maximum(found.own.abs().mean(1, keepdim=True))
            push.lerp_((inside[:, held] * side).sign().neg(), swing.fresh if step else 1.0)
            betas = torch.addcmul(betas, push, unit, value=size).clamp_(min=0)
        # Where the coefficient is negative, the lower line counts: a steeper one is better where the input is positive.
        sign = torch.where(found.own < 0, inside.sign_(), 0.0)
        direction.lerp_(sign, swing.fresh if step else 1.0)
        now = torch.addcmul(now, direction, spread, value=size).clamp_(passes.least, passes.steepest)
        if 2 * int(alive.sum()) <= len(alive):
            keep = alive.nonzero()[:, 0]
            active, a, offset, now, direction = active[keep], a[keep], offset[keep], now[keep], direction[keep]
            betas, push, unit = betas[keep], push[keep], unit[keep]
            if weighing is not None:
                weighing.select(keep)
    return Multipliers(start.signs, best_slopes, torch.zeros_like(best_slopes).index_copy_(1, held, best_betas))
