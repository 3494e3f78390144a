"""The semidefinite bound of Raghunathan et al. 2018 as a method of verification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar

import torch
from torch import Tensor

from surebound.bounds.elision import affine_tail, merged_margins
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import MEMORY, relax
from surebound.bounds.semidefinite.certificate import certificates
from surebound.bounds.semidefinite.two_layers import hidden_call, units_shape
from surebound.errors import InputError
from surebound.flags import exact_kernels
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness, by_rows, nothing_known, round_up, several_sums, slightly_up


@dataclass(frozen=True)
class Semidefinite:
    """Semidefinite bound of networks with one hidden layer of ReLUs.

    requirement: one fully connected layer of ReLUs between affine calls; soundness "real" or "deployed"
    steps:       of Adam on the dual variables of every pair of classes; found once for all inputs and radii
    property:    sound; not complete; intersected with interval bounds
    reference:   Raghunathan et al. 2018, "Certified defenses against adversarial examples", section 3
    """

    within_intervals: ClassVar[bool] = True

    steps: int = 100
    memory: int = MEMORY

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise InputError(f"steps={self.steps}; give 0 or more")

    def margins(self, program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), d (B, S): (B, S)."""
        if mode is Soundness.NONE:
            raise InputError(
                "this method is for verification and pays for rounding; give soundness='real' or 'deployed'"
            )
        hidden, source = hidden_call(program)
        width = math.prod(n or 1 for n in units_shape(program, source)[1:])
        together = max(1, self.memory // (16 * width * max(1, math.prod(box.shape[1:]))))
        if program.graph.input_shape[0] is not None:  # the network fixes its batch size
            together = max(1, box.shape[0])
        upper = torch.empty(c.shape[:2], dtype=box.dtype, device=box.device)
        with torch.no_grad(), exact_kernels():
            for first in range(0, box.shape[0], together):
                part = slice(first, first + together)
                relaxed = relax(program, box.select(itemgetter(part)), mode, own=False)
                found = self._block(relaxed, (hidden, source), c[part], d[part])
                interval = merged_margins(relaxed, affine_tail(program), c[part], d[part])
                upper[part] = torch.fmin(nothing_known(found), interval)
        return upper

    def _block(self, relaxed: Relaxed, names: tuple[str, str], c: Tensor, d: Tensor) -> Tensor:
        """Bound rows of some examples: (B, S)."""
        hidden, source = names
        first = _AffineRun.of(relaxed, source)
        form = relaxed.pull(*relaxed.query(c, d), stop=hidden)
        rows = form.coefficients.double().flatten(2)  # (S, B, m): c.z + d <= rows . relu(h) + offset
        flat, inverse = torch.unique(_signed(rows.flatten(0, 1)), dim=0, return_inverse=True)
        moves = certificates(flat, first.weight, self.steps)[inverse].reshape(rows.shape[:2])  # (S, B)
        box = relaxed.bounds[relaxed.program.graph.input]
        low, high = by_rows(box.lower.double()), by_rows(box.upper.double())
        center = (low + high) / 2
        reach = slightly_up(torch.maximum(high - center, center - low).amax(1))  # (B,)
        # The hidden layer at the centre, and how far the network's may be from it for rounding.
        value = center @ first.weight.t() + first.bias  # (B, m)
        size = center.abs() @ first.weight.t().abs() + first.bias.abs()
        off = first.error + size * several_sums(center.shape[1] + 8, 2)
        on = value.clamp(min=0)
        total = (rows * on).sum(2) + form.offset
        paid = (rows.abs() * (off + on * several_sums(rows.shape[2] + 8, 2))).sum(2)
        sizes = total.abs() + form.offset.abs() + reach * moves
        return round_up(total + reach * moves + slightly_up(paid) + sizes * several_sums(8, 2), box.dtype).t()


@dataclass(frozen=True, eq=False)
class _AffineRun:
    """The value that enters the hidden ReLUs: within ``error`` of weight x + bias for every execution in the boxes."""

    weight: Tensor  # (m, d), float64
    bias: Tensor  # (B, m)
    error: Tensor  # (B, m)

    @classmethod
    def of(cls, relaxed: Relaxed, source: str) -> _AffineRun:
        """Read it off two backward passes, of every unit and of minus it."""
        count = by_rows(relaxed.bounds[source].lower).shape[1]
        box = relaxed.bounds[source]
        eye = torch.eye(count, dtype=box.dtype, device=box.device).reshape(count, 1, *box.shape[1:])
        eye = eye.expand(count, *box.shape).contiguous()
        zero = torch.zeros(count, box.shape[0], dtype=torch.float64, device=box.device)
        above, below = (relaxed.pull(source, sign * eye, zero) for sign in (1.0, -1.0))
        weight = above.coefficients.double().reshape(count, box.shape[0], -1)  # (m, B, d)
        same = torch.equal(weight, weight[:, :1].expand_as(weight)) and torch.equal(
            above.coefficients, -below.coefficients
        )
        bias = (above.offset - below.offset).t() / 2
        error = (above.offset + below.offset).t() / 2
        error = slightly_up(error.abs()) + (above.offset.abs() + below.offset.abs()).t() * several_sums(8, 2)
        if not same:  # rows that depend on the example: nothing is known about them
            error = torch.full_like(error, torch.inf)
        return cls(weight[:, 0], bias, error)


def _signed(rows: Tensor) -> Tensor:
    """Return rows (R, m) or minus them, whichever has a positive first entry: both move as far."""
    first = (rows != 0).to(torch.int8).argmax(1, keepdim=True)
    sign = torch.where(rows.gather(1, first) < 0, -1.0, 1.0).to(rows.dtype)
    return rows * sign
