"""Optimised bounds inside a network: every unit of a layer with lower slopes of its own in all layers before it.

property:  sound: any slopes give a valid bound, and what the ascent finds is evaluated by a float64 pass (Lemma 3)
reference: Xu et al. 2021 (alpha-CROWN with optimised intermediate bounds); here each bound is optimised for itself,
           layer by layer, over the tightened bounds of the layers before
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from surebound.bounds.reduced.demands import Demands, Weighing
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.bounds.reduced.swing import Swing, swung
from surebound.bounds.reduced.targets import TargetRow
from surebound.interval import Interval
from surebound.numerics import nothing_known, round_up

#: Arrays of one number for every row and column that live at a time while rows are optimised.
_LIVE = 16

#: An input of a ReLU this far beyond 0 has one sign: its bound is worth no more optimisation.
_GOAL = -1e-4  # heuristic: when to stop


def optimised_bounds(
    reduced: Reduced, swing: Swing, memory: int, note: Callable[[Tensor], None] | None = None
) -> Interval:
    """Bound the reduced network's outputs (R,) soundly, the slopes of each end optimised for itself.

    A few rows at a time, so that arrays keep to ``memory`` bytes. ``note`` is given the slopes (2, R, U).
    """
    bounds, found, _ = improved_bounds(reduced, plain(reduced), swing, memory)
    if note is not None:
        note(found.alphas.reshape(2, len(reduced.outputs), -1))
    return bounds


def plain(reduced: Reduced) -> Multipliers:
    """Return adaptive slopes and no multipliers for both ends of the outputs: (2 R, U)."""
    slopes = torch.cat([layer.slope for layer in reduced.layers]) if reduced.layers else reduced.lower[:0]
    alphas = slopes.float().repeat(2 * len(reduced.outputs), 1)
    return Multipliers(reduced.signs.expand(len(alphas), -1), alphas, torch.zeros_like(alphas))


class Improved(NamedTuple):
    """Bounds of R outputs, and what gives them: multipliers (2R, U) and, of C demands, (2R, C)."""

    bounds: Interval
    m: Multipliers
    weights: Tensor


def improved_bounds(
    reduced: Reduced,
    start: Multipliers,
    swing: Swing,
    memory: int,
    demands: Demands | None = None,
    weights: Tensor | None = None,
) -> Improved:
    """Bound the outputs (R,) soundly by optimised multipliers (2 R, U), of upper and of lower bounds.

    ``demands``: on the columns of the reduced network, with multipliers (2R, C) to begin with; then bounds are those of
    executions that meet them.
    """
    rows, count = reduced.outputs, len(reduced.outputs)
    a, offset = torch.cat([rows.up, -rows.low]), torch.cat([rows.up_offset, -rows.low_offset])
    fast, exact = (Passes(reduced, dtype) for dtype in (torch.float32, torch.float64))
    asked = demands if demands is not None and len(demands) else None
    if asked is not None:
        a = torch.nn.functional.pad(a, (0, asked.a.shape[1] - a.shape[1]))
    begun = a.new_zeros(2 * count, 0 if asked is None else len(asked)) if weights is None else weights
    at_once = max(1, memory // (_LIVE * 8 * max(1, exact.columns)))
    bounds, found, kept = list[Tensor](), list[Multipliers](), list[Tensor]()
    for i in torch.split(torch.arange(2 * count), at_once):
        near, far = a[i].float(), offset[i].float()
        weighing = None if asked is None else Weighing(fast, near, far, asked.to(torch.float32), begun[i].float())
        found.append(swung(fast, near, far, start[i], swing, _GOAL, weighing))
        row = TargetRow(a[i].double(), offset[i], None)
        if weighing is not None and asked is not None:
            row = asked.added(row, weighing.best.double(), exact.largest[: asked.a.shape[1]])
            kept.append(weighing.best)
        bounds.append(exact.upper(exact.pull(row.a, row.offset, found[-1].to(torch.float64), row.rounding_size)))
    upper = round_up(nothing_known(torch.cat(bounds)), reduced.lower.dtype)
    box = Interval(-upper[count:], upper[:count])
    return Improved(box, Multipliers.cat(found), torch.cat(kept) if kept else begun)
