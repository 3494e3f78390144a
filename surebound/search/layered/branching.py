"""Which ReLU to split: the best of a few candidates, tried by their bounds.

Candidates by what a linear bound loses at each ReLU: its coefficient times the gap between ReLU and line (in the
spirit of Bunel et al. 2020, BaBSR); then the halves of each are bounded with the parent's multipliers, without
optimising them, and the cut whose worse half is best wins (filtered smart branching: De Palma et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.linear.alpha import Multipliers
from surebound.bounds.linear.backward import Form, Relaxed
from surebound.numerics import Soundness
from surebound.search.layered.domains import Domains, Layout


@dataclass(frozen=True, eq=False)
class Inspection:
    """A batch of sub-problems seen closely."""

    node: Relaxed
    form: Form  # of the margins, coefficients recorded at every activation; rounding not paid
    free: Tensor  # (N, U) bool: entries still unstable
    example: Tensor  # (N,)

    def select(self, index: Tensor) -> Inspection:
        """Some of the sub-problems."""
        form = Form(
            self.form.coefficients[:, index],
            self.form.offset[:, index],
            {name: v[:, index] for name, v in self.form.recorded.items()},
        )
        return Inspection(self.node.select(index), form, self.free[index], self.example[index])


def inspect(
    node: Relaxed, layout: Layout, example: Tensor, c: Tensor, multipliers: Multipliers
) -> Inspection:
    """Look at the linear bound that multipliers give of relaxed sub-problems; c (N, 1, K)."""
    found = replace(node, mode=Soundness.NONE).evaluate(
        c,
        c.new_zeros(c.shape[:2]),
        alphas=multipliers.alphas,
        betas=multipliers.betas,
        record=tuple(layout.shapes),
    )
    return Inspection(node, found.form, layout.free(node, example), example)


def scores(layout: Layout, seen: Inspection, domains: Domains) -> Tensor:
    """What the bound loses at each unstable entry: (N, U), 0 where there is nothing to split."""
    node, example = seen.node, seen.example
    a = layout.compact({k: v[0] for k, v in seen.form.recorded.items()}, example)
    low = layout.compact({name: node.bounds[node.source(name)].lower for name in layout.shapes}, example)
    high = layout.compact({name: node.bounds[node.source(name)].upper for name in layout.shapes}, example)
    above = -low * high / (high - low)  # the triangle's height: what the upper line loses at most
    below = torch.maximum(-low * domains.alphas, high * (1 - domains.alphas))
    lost = torch.where(a > 0, a * above, -a * below)
    return torch.where(seen.free, lost.nan_to_num(0.0, 0.0, 0.0), torch.zeros_like(lost))


def choose(
    root: Relaxed, layout: Layout, seen: Inspection, domains: Domains, c: Tensor, candidates: int
) -> Tensor:
    """The entry to split of each sub-problem: (N,) into U. Every one has an unstable entry left."""
    score = torch.where(seen.free, scores(layout, seen, domains), -1.0)
    count = min(candidates, score.shape[1])
    top = score.topk(count, 1).indices  # (N, k)
    if count == 1:
        return top[:, 0]
    rows = torch.arange(len(domains)).repeat_interleave(count)
    halves = domains[rows].split(top.flatten())  # (2 N k)
    twice = rows.repeat(2)
    example = seen.example[twice]
    node = replace(layout.restrict(root, halves, example), mode=Soundness.NONE)
    multipliers = layout.multipliers(halves, example)
    bounds = node.evaluate(
        c[twice], c.new_zeros(len(twice), 1), alphas=multipliers.alphas, betas=multipliers.betas
    ).upper
    bounds = bounds.clamp(min=0).reshape(2, -1, count)  # a proved half is as good as any
    worse, better = bounds.max(0).values, bounds.min(0).values
    value = torch.where(seen.free.gather(1, top), worse + 0.1 * better, torch.inf)
    return top.gather(1, value.argmin(1, keepdim=True))[:, 0]
