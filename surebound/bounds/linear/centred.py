"""Affine steps over the reals about a point of the box: rounded coefficients cost their error times the radius.

With x0 any point and z0 = W x0 + b, y = W x + b is W (x - x0) + z0. Coefficients a of y become fl(W^T a), wrong by at
most gamma |a| |W|, so that

    a.y <= fl(W^T a).(x - x0) + a.z0 + gamma |a|.(|W| max|x - x0|),

where an error of the coefficients meets |x - x0| instead of |x| (docs/soundness.md, Lemma 2). Values deep inside a
network are often large and vary little. In ``deployed`` the network's own rounding is as large as |W| |x| anyway.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surebound.bounds.constants import Constants
from surebound.bounds.linear.wide import names_dtype, rounds_numbers, wide_arguments
from surebound.interval import Interval
from surebound.kernels import rows
from surebound.numerics import (
    PREPAID_ROUNDINGS,
    covering,
    dot_rounding,
    gamma,
    per_example,
    round_up,
    several_sums,
    slightly_up,
    tiny,
)

if TYPE_CHECKING:
    from surebound.bounds.linear.steps import AffineStep


#: Sums of fewer terms lose little to rounding, and a step about a point costs more products than one about 0.
LONG = 256  # heuristic: of an output and of a coefficient together

#: Steps of more boxes than this stay about 0: lines sum the prices of one example only in their own pass.
FEW_BOXES = 8


def centred(step: AffineStep, x: Interval, constants: Constants, terms: int, back: int) -> AffineStep | None:
    """Return a step about the centre of its operand's bounds x (B, *in), all roundings but the network's own paid.

    terms, back: summands of an output and of a coefficient. None where that does not pay (short sums, many boxes) or
    is not possible: bounds that are not finite, operators that round numbers of the code or to a dtype, magnitudes that
    are no sums.
    """
    if terms + back < LONG or x.shape[0] > FEW_BOXES:
        return None
    given = step.arguments(x.shape[0])
    odd = names_dtype(given) or rounds_numbers(given, x.dtype) or not step.affine.additive
    if odd or x.dtype != torch.float32 or torch.is_grad_enabled():
        return None
    at = x.center
    rest, kwargs = wide_arguments(given, constants.wide)

    def size(value: Tensor) -> Tensor:
        """Return |W| value + |b| in float64."""
        return step.affine.magnitude(value.double(), *rest, **kwargs)

    radius = slightly_up(torch.maximum(x.upper.double() - at.double(), at.double() - x.lower.double()))
    value = step.apply(at.double(), rest, kwargs)  # z0, up to float64's rounding
    # |b| is in both: |W| |x0| + |b|, and |W| r. As a size, what float64 loses is relative to the two together.
    bias = size(torch.zeros_like(at[:1])) if step.fixed is None else size(torch.zeros_like(at))
    whole, around = size(at.abs()), size(radius)
    spread, every = around - bias, whole + around
    constant = value.to(x.dtype)
    if not bool(constant.isfinite().all() & whole.isfinite().all() & spread.isfinite().all()):
        return None
    sums, own = dot_rounding(constant.shape, x.dtype), several_sums(terms + 64, 8)
    # Of the coefficients: rounded by W^T, and before, up to PREPAID_ROUNDINGS / 2 times since a bound was added.
    before = gamma(PREPAID_ROUNDINGS // 2, x.dtype)
    error = (gamma(terms + 2, x.dtype) + gamma(back + 2, x.dtype) + before) * spread + own * every
    error = error + (value - constant.double()).abs() + (before + sums) * value.abs()
    paid = covering(sums + gamma(rows.NARROW, torch.float32))
    largest = 1 + per_example(every) + per_example(x.magnitude.double())  # (B,)
    under = largest * (8.0 * (terms + back + 1) * tiny(x.dtype))
    error = slightly_up(error * paid) + under.reshape(-1, *([1] * (error.dim() - 1)))
    inside = dot_rounding(at.shape, x.dtype)
    lost = at.abs().double() * (inside * covering(inside + gamma(rows.NARROW, torch.float32)))
    entries = math.prod(constant.shape[1:]) + math.prod(at.shape[1:])
    return dataclasses.replace(
        step,
        constant=constant,
        error=round_up(error, x.dtype),
        absolute=2.0 * entries * under,
        recentre=rows.Price(-at, round_up(slightly_up(lost), x.dtype)),
    )
