"""Optimised multipliers of a reduced network's sub-problems: projected Adam on all of them at once.

property:  any slopes within the activation's and any multipliers >= 0 give a valid bound, so nothing here needs care:
           what is found is evaluated by a sound pass afterwards
reference: Xu et al. 2021 (alpha); Wang et al. 2021 (beta)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.linear.alpha import Adam
from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.kernels.ascent import AscentState, StepSizes, ascend


@dataclass(frozen=True)
class Patience:
    """So many steps for every sub-problem; more for those where ``times`` what has been gained would do.

    The others are cut, and their halves go on from the multipliers that they have.
    """

    steps: int
    times: float


def descend(
    passes: Passes,
    a: Tensor,
    offset: Tensor,
    start: Multipliers,
    adam: Adam,
    goal: float | Tensor,
    patience: Patience | None = None,
) -> tuple[Multipliers, Tensor]:
    """Find multipliers that lower the bounds of a.v + offset, a (N, V), offset (N,); and the relaxation's gaps (N, U).

    A sub-problem is left as soon as its bound is below its ``goal``, (N,) or one for all, or without hope to come
    there. The maximisers of the bounds, averaged over the steps, approach a solution of the linear relaxation (Shor
    1985; Larsson et al. 1999); its gap at a ReLU is how far the output lies above ReLU of the input there. A cut where
    there is no gap leaves the solution in one half.
    """
    best_alphas, best_betas = start.alphas.clone(), start.betas.clone()
    best = torch.full_like(offset, torch.inf)
    inputs, outputs = torch.zeros_like(best_alphas), torch.zeros_like(best_alphas)
    active, signs, first = torch.arange(len(a)), start.signs, best
    goals = torch.as_tensor(goal, dtype=offset.dtype).expand(len(a))
    zeros = (torch.zeros_like(best_alphas) for _ in range(4))
    now = AscentState(start.alphas.clone(), start.betas.clone(), *zeros)
    for step in range(adam.steps + 1):
        found = passes.pull(a, offset, Multipliers(signs, now.alphas, now.betas))
        upper = passes.upper(found)
        better = upper < best[active]
        index = active[better]
        best[index] = upper[better]
        best_alphas[index], best_betas[index] = now.alphas[better], now.betas[better]
        if step == 0:
            first = best.clone()
        alive = ~(best[active] <= goals[active])
        if patience is not None and step >= patience.steps:
            alive &= best[active] - goals[active] <= patience.times * (first[active] - best[active])
        if step == adam.steps or not bool(alive.any()):
            break
        if step == 0:  # multipliers of splits are as large as the coefficients that they act on
            size = found.own.abs()
            unit = size.maximum(size.mean(1, keepdim=True))
        inside, v = passes.along(found)
        scale = (1 - 0.999 ** (step + 1)) ** 0.5 / (1 - 0.9 ** (step + 1)) * adam.decay**step
        rates = StepSizes(max(0.1, 1 / (step + 1)), adam.alpha_rate * scale, adam.beta_rate * scale)
        ends = passes.least, passes.steepest
        ascend(now, found.own, inside, v[:, passes.inputs :], signs, unit, ends, rates)
        if 2 * int(alive.sum()) <= len(alive):
            inputs[active], outputs[active] = now.inputs, now.outputs
            keep = alive.nonzero()[:, 0]
            active, a, offset, now = active[keep], a[keep], offset[keep], now[keep]
            signs, unit = signs[keep], unit[keep]
    inputs[active], outputs[active] = now.inputs, now.outputs
    gaps = (outputs - passes.activated(inputs)).clamp(min=0)
    return Multipliers(start.signs, best_alphas, best_betas), gaps
