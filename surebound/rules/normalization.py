"""BatchNorm with given statistics: elementwise affine. (Training with batch statistics: bounds/training/engine.py.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness, pay, tiny, unit_roundoff
from surebound.rules.facts import Affine, BatchNorm, Local, Memory
from surebound.rules.registry import Context, Rule, register

#: Roundings of the longest usual evaluation: 1/sqrt(var + eps) (3), times weight, times x, mean times scale, two sums.
_ROUNDINGS = 8


def _per_channel(value: Tensor, dims: int) -> Tensor:
    return value.reshape(1, -1, *([1] * (dims - 2)))


def scale_and_shift(
    dims: int, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scale and shift of y = scale x + shift, and a bound on |mean scale| + |bias|; each (1, C, 1, ...)."""
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    offset = mean * scale
    shift = -offset if bias is None else bias - offset
    size = offset.abs() if bias is None else offset.abs() + bias.abs()
    return _per_channel(scale, dims), _per_channel(shift, dims), _per_channel(size, dims)


def batch_norm_interval(
    ctx: Context,
    x: Interval,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float = 0.1,
    eps: float = 1e-5,  # fact: the operator's default
    *_: Any,
) -> Interval:
    """Bound a BatchNorm of x (B, C, ...) with given statistics."""
    scale, shift, size = scale_and_shift(len(x.shape), weight, bias, mean, var, eps)
    center = torch.addcmul(shift, x.center, scale)
    radius = x.radius * scale.abs()
    if ctx.soundness is not Soundness.NONE:
        u = unit_roundoff(x.dtype)
        error = 4 * _ROUNDINGS * u * (scale.abs() * (x.center.abs() + x.radius) + size)
        error = error + scale.abs() * (4 * tiny(x.dtype))  # subnormal inputs may be flushed to zero
        radius = pay(center, radius + error, ctx.soundness)
    return Interval.around(center, radius)


def _adjoint(
    a: Tensor,
    in_shape: torch.Size,
    weight: Any,
    bias: Any,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    *_: Any,
) -> Tensor:
    return a * scale_and_shift(len(in_shape), weight, bias, mean, var, eps)[0]


def _magnitude(
    m: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, momentum: float, eps: float, *_: Any
) -> Tensor:
    scale, _shift, size = scale_and_shift(m.dim(), weight, bias, mean, var, eps)
    return m * scale.abs() + size


def _constant(
    in_shape: torch.Size,
    weight: Any,
    bias: Any,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    *_: Any,
) -> Tensor:
    return scale_and_shift(len(in_shape), weight, bias, mean, var, eps)[1]


def _linear(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, momentum: float, eps: float, *_: Any
) -> Tensor:
    return x * scale_and_shift(x.dim(), weight, bias, mean, var, eps)[0]


def _statistics(clean: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of a clean batch (B, C, ...), per channel."""
    var, mean = torch.var_mean(clean, dim=[i for i in range(clean.dim()) if i != 1], correction=0)
    return mean, var


def _apply(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, momentum: float, eps: float, *_: Any
) -> Tensor:
    scale, shift, _size = scale_and_shift(x.dim(), weight, bias, mean, var, eps)
    return torch.addcmul(shift, x, scale)


register(
    Rule(
        op="aten._native_batch_norm_legit_no_training.default",
        family="normalization",
        interval=batch_norm_interval,
        affine=Affine(
            _adjoint,
            _magnitude,
            terms=lambda *_: 4 * _ROUNDINGS,
            adjoint_terms=lambda *_: _ROUNDINGS,
            constant=_constant,
            linear=_linear,
            local=lambda *_: Local(),
            local_adjoint=_adjoint,
            entrywise=True,
            disjoint=lambda *_: True,
        ),
        memory=Memory.OWN,
        batch_norm=BatchNorm(
            statistics=_statistics,
            replace=lambda args, mean, var: (*args[:3], mean, var, *args[5:]),
            apply=_apply,
            scale=lambda dims, weight, bias, mean, var, momentum, eps, *_: scale_and_shift(
                dims, weight, bias, mean, var, eps
            ),
            running=3,
            parts=lambda args: (*args[1:5], args[6]),
        ),
    )
)


def _instance_norm(
    ctx: Context,
    x: Interval,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    use_input_stats: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,  # fact: the operator's default
    *_: Any,
) -> Interval:
    """Bound an InstanceNorm that tracks running statistics: in eval mode it is a BatchNorm."""
    if use_input_stats or mean is None or var is None:
        raise BoundError(
            "InstanceNorm with statistics of its own input has no bound rule; use track_running_stats=True or BatchNorm"
        )
    return batch_norm_interval(ctx, x, weight, bias, mean, var, momentum, eps)


def _as_batch_norm(facts: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Adapt BatchNorm's facts to the arguments of InstanceNorm, which also say where statistics come from."""

    def of(x: Any, *args: Any) -> Tensor:
        leading = 2 if facts is _adjoint else 1  # a and the shape of x; x alone, or its shape
        rest = (x, *args)
        return facts(*rest[: leading + 4], *rest[leading + 5 :])

    return of


register(
    Rule(
        "aten.instance_norm.default",
        "normalization",
        _instance_norm,
        Affine(
            _as_batch_norm(_adjoint),
            _as_batch_norm(_magnitude),
            terms=lambda *_: 4 * _ROUNDINGS,
            adjoint_terms=lambda *_: _ROUNDINGS,
            constant=_as_batch_norm(_constant),
            linear=_as_batch_norm(_linear),
            entrywise=True,
            disjoint=lambda *_: True,
        ),
        note="running statistics",
    )
)
