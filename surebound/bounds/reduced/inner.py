"""Optimised bounds inside a network: every unit of a layer with lower slopes of its own in all layers before it.

property:  sound: any slopes give a valid bound, and what the ascent finds is evaluated by a float64 pass (Lemma 3)
reference: Xu et al. 2021 (alpha-CROWN with optimised intermediate bounds); here each bound is optimised for itself,
           layer by layer, over the tightened bounds of the layers before
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.bounds.reduced.swing import Swing, swung
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
    rows, count = reduced.outputs, len(reduced.outputs)
    a, offset = torch.cat([rows.up, -rows.low]), torch.cat([rows.up_offset, -rows.low_offset])
    fast, exact = (Passes(reduced, dtype) for dtype in (torch.float32, torch.float64))
    slopes = torch.cat([layer.slope for layer in reduced.layers]).float() if reduced.layers else a.new_zeros(0).float()
    at_once = max(1, memory // (_LIVE * 8 * max(1, exact.columns)))
    found = [_upper(fast, exact, a[i], offset[i], slopes, swing) for i in torch.split(torch.arange(2 * count), at_once)]
    if note is not None:
        note(torch.cat([alphas for _, alphas in found]).reshape(2, count, -1))
    upper = round_up(nothing_known(torch.cat([bound for bound, _ in found])), reduced.lower.dtype)
    return Interval(-upper[count:], upper[:count])


def _upper(
    fast: Passes, exact: Passes, a: Tensor, offset: Tensor, slopes: Tensor, swing: Swing
) -> tuple[Tensor, Tensor]:
    """Bound a.v + offset, a (R, V), offset (R,), from above, starting from slopes (U,): (R,) float64, slopes (R, U)."""
    found = swung(fast, a.float(), offset.float(), slopes, swing, _GOAL)
    wide = found.double()
    unsplit = Multipliers(torch.zeros(wide.shape, dtype=torch.int8), wide, torch.zeros_like(wide))
    return exact.upper(exact.pull(a.double(), offset, unsplit)), found
