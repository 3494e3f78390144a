"""Optimised multipliers of a reduced network's sub-problems: projected Adam on all of them at once.

property:  any slopes within the activation's and any multipliers >= 0 give a valid bound, so nothing here needs care:
           what is found is evaluated by a sound pass afterwards
reference: Xu et al. 2021 (alpha); Wang et al. 2021 (beta)
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.linear.alpha import Adam
from surebound.bounds.reduced.passes import Multipliers, Passes


def descend(
    passes: Passes, a: Tensor, offset: Tensor, start: Multipliers, adam: Adam, goal: float
) -> tuple[Multipliers, Tensor]:
    """Find multipliers that lower the bounds of a.v + offset, a (N, V), offset (N,); and the relaxation's gaps (N, U).

    A sub-problem is left as soon as its bound is below ``goal``. The maximisers of the bounds, averaged over the steps,
    approach a solution of the linear relaxation (Shor 1985; Larsson et al. 1999); its gap at a ReLU is how far the
    output lies above ReLU of the input there. A cut where there is no gap leaves the solution in one half.
    """
    best_alphas, best_betas = start.alphas.clone(), start.betas.clone()
    best = torch.full_like(offset, torch.inf)
    inputs, outputs = torch.zeros_like(best_alphas), torch.zeros_like(best_alphas)
    active = torch.arange(len(a))
    now = start
    moments = [torch.zeros_like(v) for v in (now.alphas, now.alphas, now.betas, now.betas)]
    for step in range(adam.steps + 1):
        found = passes.pull(a, offset, now)
        upper = passes.upper(found)
        better = upper < best[active]
        index = active[better]
        best[index] = upper[better]
        best_alphas[index], best_betas[index] = now.alphas[better], now.betas[better]
        alive = ~(best[active] <= goal)
        if step == adam.steps or not bool(alive.any()):
            break
        if step == 0:  # multipliers of splits are as large as the coefficients that they act on
            size = found.own.abs()
            unit = size.maximum(size.mean(1, keepdim=True))
        inside, outside = passes.along(found)
        weight = max(0.1, 1 / (step + 1))
        inputs[active] = inputs[active].lerp(inside, weight)
        outputs[active] = outputs[active].lerp(outside, weight)
        free = now.signs == 0
        gradients = (
            torch.where(free, found.own.clamp(max=0) * inside, 0.0),
            torch.where(free, 0.0, inside * now.signs),
        )
        now = _moved(now, gradients, moments, adam, step, unit)
        now = replace(now, alphas=now.alphas.clamp(passes.least, passes.steepest))
        if 2 * int(alive.sum()) <= len(alive):
            keep = alive.nonzero()[:, 0]
            active, a, offset, now = active[keep], a[keep], offset[keep], now[keep]
            moments, unit = [v[keep] for v in moments], unit[keep]
    gaps = (outputs - passes.activated(inputs)).clamp(min=0)
    return Multipliers(start.signs, best_alphas, best_betas), gaps


def _moved(
    now: Multipliers,
    gradients: tuple[Tensor, Tensor],
    moments: list[Tensor],
    adam: Adam,
    step: int,
    unit: Tensor,
) -> Multipliers:
    """Take one step of Adam; the moments are overwritten."""
    scale = (1 - 0.999 ** (step + 1)) ** 0.5 / (1 - 0.9 ** (step + 1)) * adam.decay**step
    moved = []
    for gradient, mean, square, value, rate in zip(
        gradients, moments[::2], moments[1::2], (now.alphas, now.betas), (adam.alpha_rate, adam.beta_rate),
        strict=True,
    ):  # fmt: skip
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        move = mean / square.sqrt().add_(1e-12)  # heuristic: Adam's
        if value is now.betas:
            move = move * unit
        moved.append(torch.add(value, move, alpha=-rate * scale))
    return Multipliers(now.signs, moved[0], moved[1].clamp_(min=0))
