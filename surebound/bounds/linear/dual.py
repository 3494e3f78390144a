"""The dual bound of Dvijotham et al. 2018 over interval bounds, its dual variables optimised for every row."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import ClassVar

import torch
from torch import Tensor

from surebound.bounds.elision import affine_tail, merged_margins
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import MEMORY, relax
from surebound.errors import InputError
from surebound.flags import exact_kernels
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness, nothing_known
from surebound.rules import Context, find
from surebound.rules.relax.lines import Lines
from surebound.rules.relax.tilted import tilted_relu

#: Arrays of the size of all values that a pass with gradients holds.
_SAVED = 24

Slopes2 = dict[str, tuple[Tensor, Tensor]]  # by name of a ReLU: lower and upper slope (B, *n)


@dataclass(frozen=True)
class DualBound:
    """Lagrangian dual bound with interval activations, optimised by Adam.

    steps:    of Adam on the dual variables of every row, from those of CROWN-IBP
    rate:     its step size, of slopes
    property: any dual variables bound; sound, not complete; at most the interval bounds
    reference: Dvijotham et al. 2018, "A dual approach to scalable verification of deep networks"; "Training verified
              learners with learned verifiers"
    """

    within_intervals: ClassVar[bool] = True

    steps: int = 20
    rate: float = 0.1
    memory: int = MEMORY

    def __post_init__(self) -> None:
        if self.steps < 0 or not self.rate > 0:
            raise InputError(f"steps={self.steps}, rate={self.rate}; give steps >= 0 and a positive rate")

    def margins(self, program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), d (B, S): (B, S)."""
        upper = torch.empty(c.shape[:2], dtype=box.dtype, device=box.device)
        together = max(1, self.memory // (4 * _SAVED * sum(program.graph.sizes())))
        if program.graph.input_shape[0] is not None:  # the network fixes its batch size
            together = max(1, box.shape[0])
        tail = affine_tail(program)
        with nullcontext() if mode is Soundness.NONE else exact_kernels():
            for first in range(0, box.shape[0], together):
                part = slice(first, first + together)
                relaxed = relax(program, box.select(itemgetter(part)), mode, own=False)
                rows = [self._row(relaxed, c[part, s : s + 1], d[part, s : s + 1]) for s in range(c.shape[1])]
                if rows:
                    upper[part] = torch.fmin(torch.cat(rows, 1), merged_margins(relaxed, tail, c[part], d[part]))
        return nothing_known(upper)

    def _row(self, relaxed: Relaxed, c: Tensor, d: Tensor) -> Tensor:
        """Bound one row of every example, c (B, 1, K), d (B, 1): (B, 1)."""
        slopes = self._optimised(relaxed.unpaid(), c, d)
        return with_slopes(relaxed, slopes).evaluate(c, d).upper

    def _optimised(self, plain: Relaxed, c: Tensor, d: Tensor) -> Slopes2:
        """Return the slopes of the least bounds that Adam meets, example by example; in plain arithmetic."""
        start = first_slopes(plain)
        free = [value.detach().clone().requires_grad_() for pair in start.values() for value in pair]
        if not free or not self.steps:
            return start
        best = [value.detach().clone() for value in free]
        least = torch.full((plain.batch,), torch.inf, dtype=torch.float64, device=c.device)
        adam = torch.optim.Adam(free, lr=self.rate)
        with torch.enable_grad():
            for step in range(self.steps + 1):
                chosen = dict(zip(start, zip(free[::2], free[1::2], strict=True), strict=True))
                found = with_slopes(plain, chosen)
                bound = found.upper(found.pull(*found.query(c, d)))[0].double()  # (B,)
                better = bound.detach() < least
                least = torch.where(better, bound.detach(), least)
                for kept, value in zip(best, free, strict=True):
                    kept[better] = value.detach()[better]
                if not bound.requires_grad:  # rows that are settled after the last ReLU
                    break
                if step < self.steps:
                    adam.zero_grad()
                    bound.sum().backward()  # type: ignore[no-untyped-call]
                    adam.param_groups[0]["lr"] = self.rate * (1 - step / self.steps)
                    adam.step()
        return dict(zip(start, zip(best[::2], best[1::2], strict=True), strict=True))


def first_slopes(relaxed: Relaxed) -> Slopes2:
    """Return the slopes of the lines that every ReLU has: CROWN-IBP's."""
    found = {}
    for name in relaxed.activations:
        rule, step = find(relaxed.program.graph.by_name[name].op), relaxed.steps[name]
        if rule is not None and rule.is_relu and isinstance(step, Lines):
            lower, upper = step.lower[0], step.upper[0]
            if isinstance(lower, Tensor) and isinstance(upper, Tensor):
                found[name] = (lower, upper)
    return found


def with_slopes(relaxed: Relaxed, slopes: Slopes2) -> Relaxed:
    """Replace the lines of ReLUs by lines of the given slopes; sound in the relaxation's mode."""
    context = Context(relaxed.mode)
    steps = {name: tilted_relu(context, relaxed.bounds[relaxed.source(name)], *pair) for name, pair in slopes.items()}
    return replace(relaxed, steps={**relaxed.steps, **steps})
