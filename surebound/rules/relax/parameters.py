"""Functions of one variable with a parameter of its own for every entry: PReLU, clamps by tensors, c to the power x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules.facts import Activation, Shape
from surebound.rules.registry import Context, find
from surebound.rules.relax.lines import Lines
from surebound.rules.relax.pairs import joint_shape, maximum_lines, minimum_lines
from surebound.rules.relax.pointwise import Bend, function_lines, pointwise_lines
from surebound.rules.relax.relu import leaky_lines, relu_lines


def _bounds(op: str, ctx: Context, *args: Any) -> Interval:
    rule = find(op)
    if rule is None:
        raise BoundError(f"{op} has no rule")
    found: Interval = rule.interval(ctx, *args)
    return found


def prelu_lines(ctx: Context, x: Interval, weight: Tensor) -> Lines | None:
    """x (B, C, ...), a constant slope per channel below 0, or one for all: then LeakyReLU."""
    if isinstance(weight, Interval):
        return None
    if ctx.soundness is Soundness.NONE and torch.is_grad_enabled() and weight.requires_grad:
        return None  # slopes as numbers would have no gradient; the interval bounds have it
    if weight.numel() == 1:
        found = leaky_lines(ctx, x, float(weight.detach()))
        return pointwise_lines("aten.prelu.default", None, ctx, x, weight) if found is None else found
    slopes = weight.detach().double()
    spread = slopes.reshape(1, -1, *([1] * (len(x.shape) - 2)))
    f = Activation(
        lambda v: torch.prelu(v, slopes),
        ulps=2,  # the product, and the weight where it was rounded
        underflow=2 + float(slopes.abs().max()),
        derivative=lambda v: torch.where(v > 0, torch.ones_like(v), spread),
    )
    return function_lines(ctx, f, Bend(0.0, (0.0,)), x, _bounds("aten.prelu.default", ctx, x, weight))


def clamp_lines(ctx: Context, x: Any, min: Any = None, max: Any = None) -> Lines | None:
    """min(max(x, low), high) with tensors: two bounds must be constants, one may vary."""
    if max is None or min is None:
        return maximum_lines(ctx, x, min) if max is None else minimum_lines(ctx, x, max)
    if not isinstance(x, Interval) or isinstance(min, Interval) or isinstance(max, Interval):
        return None
    if joint_shape(x, min, max) != x.shape:
        return None
    low, high = min.detach().double(), max.detach().double()
    f = Activation(
        lambda v: torch.clamp(v, low, high), derivative=lambda v: ((v > low) & (v < high)).to(v.dtype)
    )
    return function_lines(ctx, f, Bend(0.0, (low, high)), x, _bounds("aten.clamp.Tensor", ctx, x, min, max))


def power_lines(ctx: Context, base: Any, exponent: Any) -> Lines | None:
    """c to the power x with a constant c > 0: convex in x."""
    if isinstance(base, Interval) or not isinstance(exponent, Interval):
        return None
    number = torch.as_tensor(base, dtype=exponent.dtype, device=exponent.device).detach().double()
    if joint_shape(number, exponent) != exponent.shape:
        return None
    f = Activation(
        lambda v: torch.pow(number, v),
        ulps=4,
        shape=Shape.CONVEX,
        derivative=lambda v: torch.log(number) * torch.pow(number, v),
    )
    return function_lines(ctx, f, None, exponent, _bounds("aten.pow.Tensor_Tensor", ctx, base, exponent))


def threshold_lines(ctx: Context, x: Interval, threshold: float, value: float) -> Lines | None:
    """x above the threshold, else ``value``: a bend where these are equal, a step where not, which has no line."""
    if threshold != value:
        return None
    return (
        relu_lines(ctx, x)
        if value == 0
        else pointwise_lines("aten.threshold.default", None, ctx, x, threshold, value)
    )
