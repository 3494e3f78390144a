"""Which ReLU to split: the best of a few candidates, tried by their bounds.

Candidates by what a linear bound loses at each ReLU: its coefficient times the gap between ReLU and line, at the
solution of the relaxation and at most (in the spirit of Bunel et al. 2020, BaBSR); then the halves of each are
bounded with a few steps of optimisation, and the cut whose worse half is best wins (strong branching, filtered as in
De Palma et al. 2021). The fewer sub-problems there are, the more cuts are tried: a batch costs little more than one.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.linear.alpha import Adam
from surebound.bounds.reduced.descent import descend
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Passes
from surebound.bounds.reduced.targets import TargetRow
from surebound.search.signs.domains import Domains


def candidates(reduced: Reduced, own: Tensor, gaps: Tensor, domains: Domains, count: int) -> Tensor:
    """Rank entries worth splitting, the best first: (N, k) into U, with repetitions; only free ones if there are any.

    own (N, U): coefficients of the ReLUs in the bound; gaps (N, U): of the relaxation (reduced_descent.descend).
    """
    top = torch.cat([layer.top for layer in reduced.layers]).to(own.dtype)
    found = []
    for lost in (own.abs() * gaps, own * top):
        lost = torch.where(domains.free, lost.nan_to_num(0.0, 0.0, 0.0).clamp(min=0), -1.0)
        found.append(lost.topk(min(count, lost.shape[1]), 1))
    # A free entry first: topk fills up with split ones where it has to.
    first = found[0].indices[:, :1]
    both = [torch.where(f.values >= 0, f.indices, first) for f in found]
    return torch.stack(both, 2).flatten(1)[:, :count]


def choose(
    passes: Passes, row: TargetRow, own: Tensor, entries: Tensor, domains: Domains, probe: Adam, goal: Tensor
) -> Domains:
    """Cut every sub-problem at one of its candidates (N, k) into two halves.

    row: what each is bounded for; goal (N,): the bound at which each counts as proved.
    """
    count = entries.shape[1]
    index = torch.arange(len(domains)).repeat_interleave(count)
    at = entries.flatten()
    halves = domains[index].split(at, own[index, at])  # (2 N k)
    if count == 1:
        return halves
    twice = index.repeat(2)
    both_rows, goals = row[twice], goal[twice]
    m, _ = descend(passes, both_rows.a, both_rows.offset, halves.m, probe, goals)
    left = passes.upper(passes.pull(both_rows.a, both_rows.offset, m)) - goals
    bounds = left.clamp(min=0).reshape(2, -1, count)  # a proved half is as good as any
    value = bounds.max(0).values + 0.1 * bounds.min(0).values
    best = value.argmin(1) + count * torch.arange(len(domains))  # (N,) into N k
    both = torch.cat([best, best + len(index)])
    return replace(halves, m=m)[both]
