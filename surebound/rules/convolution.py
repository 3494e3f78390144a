"""Convolutions of any rank, stride, padding, dilation and groups; a product with |W| gives the radius."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.kernels.products import Conv, product_input
from surebound.rules.adjoint_gradient import convolution_adjoint
from surebound.rules.affine import weighted
from surebound.rules.facts import Affine, Local, Memory, Sums
from surebound.rules.layouts import conv_layer
from surebound.rules.mip.matrix import conv2d_matrix
from surebound.rules.registry import Context, Rule, register
from surebound.rules.vjp import vjp_adjoint

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


def _terms(weight: Tensor, *_: Any, **__: Any) -> int:
    """Count the summands of one output: input channels per group times kernel size."""
    return math.prod(weight.shape[1:])


def _adjoint_terms(weight: Tensor, *_: Any, **__: Any) -> int:
    return int(weight.shape[0]) * math.prod(weight.shape[2:])


def _conv_interval(
    conv: Callable[..., Tensor],
    ctx: Context,
    x: Interval,
    weight: Tensor,
    bias: Tensor | None = None,
    *rest: Any,
) -> Interval:
    _check_constant(x, weight, bias)
    return weighted(
        ctx, x, weight, bias, _terms(weight), weight.shape[0], lambda v, w, b: conv(_laid(v), w, b, *rest),
        batched=len(x.shape) == weight.dim(),
    )  # fmt: skip


def _laid(x: Tensor) -> Tensor:
    """Return the tensor in the memory order that is fastest for convolutions."""
    return channels_innermost(x) if x.dim() == 4 and x.device.type == "cpu" else x


def channels_innermost(x: Tensor) -> Tensor:
    """Return images (B, C, H, W) in NHWC order, which is faster for the CPU's convolutions.

    One channel fits both orders, and is taken for the slow one unless its strides say otherwise.
    """
    if x.shape[1] == 1 and x.is_contiguous() and not x.requires_grad:
        height, width = x.shape[2:]
        return x.as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def _check_constant(x: Any, weight: Any, bias: Any) -> None:
    if not isinstance(x, Interval) or isinstance(weight, Interval) or isinstance(bias, Interval):
        raise BoundError("the weight or bias of a convolution depends on the input; only constant ones are supported")


def _conv_magnitude(
    conv: Callable[..., Tensor], m: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any
) -> Tensor:
    return conv(_laid(m), weight.abs(), None if bias is None else bias.abs(), *rest)


def _transposed_interval(
    conv: Callable[..., Tensor],
    ctx: Context,
    x: Interval,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Interval:
    _check_constant(x, weight, bias)
    # Weight (in, out / groups, *kernel): an output sums at most in / groups * kernel terms.
    terms = weight.shape[0] // groups * math.prod(weight.shape[2:])
    return weighted(
        ctx,
        x,
        weight,
        bias,
        terms,
        weight.shape[1] * groups,
        lambda v, w, b: conv(v, w, b, stride, padding, output_padding, groups, dilation),
        batched=len(x.shape) == weight.dim(),
    )


def _conv_adjoint(
    rank: int,
    a: Tensor,
    in_shape: torch.Size,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return W^T a (S, B, in, *size) of a (S, B, out, *size) as a transposed convolution, never as a matrix."""
    if isinstance(padding, str):
        return vjp_adjoint(_CONVOLUTIONS[rank], a, in_shape, weight, None, stride, padding, dilation, groups)
    each = [v * rank if len(v) == 1 else v for v in (_tuple(stride), _tuple(padding), _tuple(dilation))]
    flat, size, conv = a.flatten(0, 1), tuple(in_shape[-rank:]), Conv(each[0], each[1], each[2], groups)
    if torch.is_grad_enabled() and (a.requires_grad or weight.requires_grad):
        back = convolution_adjoint(flat, weight, a.shape[0], size, conv)
    else:
        back = product_input(flat, size, _laid(weight), conv)
    return back.reshape(*a.shape[:2], *back.shape[1:])


def _conv_local(
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Local | None:
    if isinstance(padding, str) or weight.dim() != 4:
        return None
    stride, pad, dil = (v * 2 if len(v) == 1 else v for v in map(_tuple, (stride, padding, dilation)))
    return Local(tuple(weight.shape[2:]), stride, pad, dil)


def _conv_local_adjoint(
    a: Tensor,
    in_shape: torch.Size,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return _conv_adjoint(2, a, in_shape, weight, None, stride, 0, dilation, groups)


def _transposed_adjoint(
    a: Tensor,
    in_shape: torch.Size,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Return W^T a (S, B, in, *size) of a (S, B, out, *size) as a convolution.

    It has a place more where the padding of the output is a stride or longer: no input stands there.
    """
    run = next(conv for rank, conv in _CONVOLUTIONS.items() if rank + 2 == weight.dim())
    back = run(a.flatten(0, 1), weight, None, stride, padding, dilation, groups)
    for axis, size in enumerate(in_shape[2:], 2):
        back = back.narrow(axis, 0, size)
    return back.reshape(*a.shape[:2], *back.shape[1:])


def _transposed_local(
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Local:
    stride, pad, dil = (v * 2 if len(v) == 1 else v for v in map(_tuple, (stride, padding, dilation)))
    return Local(tuple(weight.shape[2:]), (1, 1), pad, dil, spread=stride)


def _transposed_local_adjoint(
    a: Tensor,
    in_shape: torch.Size,
    weight: Tensor,
    *rest: Any,
    start: tuple[tuple[int, int], tuple[int, int]],
) -> Tensor:
    """Return W^T a over windows: coefficients are moved so that the convolution's taps meet their outputs."""
    local, (mine, theirs) = _transposed_local(weight, *rest), start
    spread, margins = local.spread or (1, 1), list[int]()
    for axis in (1, 0):
        before = mine[axis] + local.pad[axis] - spread[axis] * theirs[axis]
        reach = spread[axis] * (in_shape[2 + axis] - 1) + local.dilation[axis] * (local.kernel[axis] - 1) + 1
        margins += [before, reach - before - a.shape[3 + axis]]
    moved = F.pad(a.flatten(0, 1), margins)  # negative: cut off
    groups = int(rest[4]) if len(rest) > 4 else 1
    back = F.conv2d(moved, weight, None, spread, 0, local.dilation, groups)
    return back.reshape(*a.shape[:2], *back.shape[1:])


def _conv_constant(in_shape: torch.Size, weight: Tensor, bias: Tensor | None = None, *_: Any) -> Tensor | None:
    """Return the bias as (1, out, 1, ...)."""
    return None if bias is None else bias.reshape(1, -1, *([1] * (weight.dim() - 2)))


def _conv_linear(
    conv: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any
) -> Tensor:
    return conv(x, weight, None, *rest)


def _conv_sums(conv: Callable[..., Tensor], weight: Tensor, bias: Tensor | None = None, *rest: Any) -> Sums:
    """Return the sums of a convolution: each output meets a window of the input, 0 where it lies outside."""
    return Sums(lambda v, fn: conv(v, fn(weight), None, *rest), partial(_conv_largest, conv, weight, rest))


def _conv_largest(conv: Callable[..., Tensor], weight: Tensor, rest: tuple[Any, ...], v: Tensor) -> Tensor:
    """Return the largest |w| v of each window (N, out, *out), v >= 0, taken by channel over the taps inside."""
    if v.dim() < weight.dim():  # one image without a batch axis
        return _conv_largest(conv, weight, rest, v.unsqueeze(0)).squeeze(0)
    groups = int(rest[3]) if len(rest) > 3 else 1
    most = v.flatten(2).amax(2).reshape(len(v), groups, 1, -1)  # (N, groups, 1, C / groups)
    sizes = weight.abs().flatten(2).reshape(groups, -1, *weight.shape[1:2], weight[0, 0].numel())  # (.., out, C, taps)
    inside = v.new_ones(1, 1, *v.shape[2:])
    best = v.new_zeros(())
    for tap in range(sizes.shape[-1]):
        largest = (most * sizes[..., tap]).amax(3).reshape(len(v), -1, *([1] * (v.dim() - 2)))  # (N, out, 1, ...)
        one = torch.zeros_like(weight[:1, :1]).flatten().index_fill(0, torch.tensor(tap, device=v.device), 1.0)
        meets = conv(inside, one.reshape(weight[:1, :1].shape), None, *rest[:3])  # (1, 1, *out): 0 in the padding
        best = torch.maximum(best, largest * meets)
    return best


def _tuple(value: Any) -> tuple[int, ...]:
    return (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)


for _rank, _conv in _CONVOLUTIONS.items():
    for _suffix in ("default", "padding"):
        register(
            Rule(
                op=f"aten.conv{_rank}d.{_suffix}",
                family="convolution",
                interval=partial(_conv_interval, _conv),
                affine=Affine(
                    adjoint=partial(_conv_adjoint, _rank),
                    magnitude=partial(_conv_magnitude, _conv),
                    terms=_terms,
                    adjoint_terms=_adjoint_terms,
                    constant=_conv_constant,
                    linear=partial(_conv_linear, _conv),
                    local=_conv_local if _rank == 2 else None,
                    local_adjoint=_conv_local_adjoint if _rank == 2 else None,
                    matrix=conv2d_matrix if _rank == 2 and _suffix == "default" else None,
                    sums=partial(_conv_sums, _conv),
                ),
                memory=Memory.OWN,
                layer=partial(conv_layer, _rank) if _suffix == "default" else None,
            )
        )

for _rank, _op in (
    (1, "aten.conv_transpose1d.default"),
    (2, "aten.conv_transpose2d.input"),
    (3, "aten.conv_transpose3d.input"),
):
    _conv = _TRANSPOSED[_rank]
    register(
        Rule(
            op=_op,
            family="convolution",
            interval=partial(_transposed_interval, _conv),
            affine=Affine(
                adjoint=_transposed_adjoint,
                magnitude=partial(_conv_magnitude, _conv),
                terms=lambda weight, *_, **__: int(weight.shape[0]) * math.prod(weight.shape[2:]),
                adjoint_terms=lambda weight, *_, **__: math.prod(weight.shape[1:]),
                local=_transposed_local if _rank == 2 else None,
                local_adjoint=_transposed_local_adjoint if _rank == 2 else None,
            ),
            memory=Memory.OWN,
        )
    )
