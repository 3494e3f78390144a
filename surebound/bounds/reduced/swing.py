"""Lower slopes of many rows at once by their directions alone: cheap steps, for bounds inside a network.

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


def swung(passes: Passes, a: Tensor, offset: Tensor, slopes: Tensor, swing: Swing, goal: float) -> Tensor:
    """Find slopes (R, U) that lower the bounds of a.v + offset, a (R, V), offset (R,), from slopes (U,) of all.

    A row is left as soon as its bound is below ``goal``; each keeps the best slopes that it had.
    """
    now = slopes.repeat(len(a), 1)
    best_slopes, best = now.clone(), torch.full_like(offset, torch.inf)
    active, direction = torch.arange(len(a)), torch.zeros_like(now)
    spread = passes.steepest - passes.least  # (U,)
    unsplit = torch.zeros(now.shape, dtype=torch.int8)
    for step in range(swing.steps + 1):
        found = passes.pull(a, offset, Multipliers(unsplit[: len(now)], now, now))
        upper = passes.upper(found)
        better = upper < best[active]
        index = active[better]
        best[index], best_slopes[index] = upper[better], now[better]
        alive = ~(best[active] <= goal)
        if step == swing.steps or not bool(alive.any()):
            break
        inside, _ = passes.along(found)
        # Where the coefficient is negative, the lower line counts: a steeper one is better where the input is positive.
        sign = torch.where(found.own < 0, inside.sign_(), 0.0)
        direction.lerp_(sign, swing.fresh if step else 1.0)
        size = swing.rate * swing.decay**step
        now = torch.addcmul(now, direction, spread, value=size).clamp_(passes.least, passes.steepest)
        if 2 * int(alive.sum()) <= len(alive):
            keep = alive.nonzero()[:, 0]
            active, a, offset, now, direction = active[keep], a[keep], offset[keep], now[keep], direction[keep]
    return best_slopes
