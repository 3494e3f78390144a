"""Training's fast column: clean value, centre and radius through a layer in few calls, skipping channels that are off.

A channel whose upper bound is 0 after a ReLU for the whole batch is exactly 0 (clean, centre and radius) and gets
exactly no gradient, because the ReLU stops it: leaving it out changes neither loss nor gradients. So the forward
products read only the input channels that are on, and the backward ones only those on at both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Skipping costs copies of what remains; below this share of channels that are on it pays.
PAYS_BELOW = 0.85


@dataclass(frozen=True)
class Layer:
    """A weighted operator: product and its two gradients, with channels on axis 1 of input and output."""

    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    backward: Callable[
        [Tensor, Tensor, Tensor, bool], tuple[Tensor | None, Tensor]
    ]  # (g, x, w, need x) -> gx, gw
    grouped: bool = False


def linear_layer() -> Layer:
    """x (N, F)."""

    def backward(g: Tensor, x: Tensor, w: Tensor, need_x: bool) -> tuple[Tensor | None, Tensor]:
        return (g @ w if need_x else None), g.t() @ x

    return Layer(F.linear, backward)


def conv_layer(
    rank: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Layer | None:
    """x (N, C, *size); None where a spelling has no fast form."""
    if isinstance(padding, str):
        return None
    s, p, d = (
        [v] * rank if isinstance(v, int) else list(v) * (rank if len(v) == 1 else 1)
        for v in (stride, padding, dilation)
    )
    zero = [0] * rank

    def product(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return channels_last(torch.convolution(x, channels_last(w), b, s, p, d, False, zero, groups))

    def backward(g: Tensor, x: Tensor, w: Tensor, need_x: bool) -> tuple[Tensor | None, Tensor]:
        mask = [need_x, True, False]
        g, w = channels_last(g), channels_last(w)
        gx, gw, _ = torch.ops.aten.convolution_backward(g, x, w, None, s, p, d, False, zero, groups, mask)
        return gx, gw

    return Layer(product, backward, grouped=groups != 1)


def channels_last(value: Tensor) -> Tensor:
    """Images with their channels innermost, which the convolution kernels like best; other ranks as they are."""
    if (
        value.dim() != 4 or value.shape[1] == 1
    ):  # with one channel the two layouts are one, and PyTorch would copy
        return value
    return value.contiguous(memory_format=torch.channels_last)


def _rows(value: Tensor) -> Tensor:
    """Channels as the last axis: a view where the memory lies that way."""
    return value.movedim(1, -1)


def take(value: Tensor, on: Tensor) -> Tensor:
    """The channels ``on`` of (N, C, ...), in the layout of ``value``."""
    if value.dim() == 2:
        return value.index_select(1, on)
    return _rows(value).index_select(value.dim() - 1, on).movedim(-1, 1)


def on_channels(value: Tensor) -> Tensor | None:
    """Indices of the channels (axis 1) that are not 0 throughout, or None if skipping the others does not pay."""
    flat = value if value.dim() == 2 else _rows(value).reshape(-1, value.shape[1])
    size = flat.abs().sum(0)  # 0 only where all are 0; ten times as fast as a maximum over the outer axis
    on = (size != 0).nonzero().squeeze(1)  # NaN counts as on
    return on if on.numel() < PAYS_BELOW * value.shape[1] else None


class _Weighted(torch.autograd.Function):
    """(both, radius) -> (W both + b, |W| radius) where ``both`` stacks the clean batch and the centres."""

    @staticmethod
    def forward(
        ctx: Any,
        both: Tensor,
        radius: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: Layer,
        after_relu: bool,
    ) -> tuple[Tensor, Tensor]:
        on = on_channels(both[-radius.shape[0] :]) if after_relu and not layer.grouped else None
        if on is not None:
            both, radius, used = (
                both.index_select(1, on),
                radius.index_select(1, on),
                weight.index_select(1, on),
            )
        else:
            used = weight
        ctx.layer, ctx.skips, ctx.shape = layer, after_relu and not layer.grouped, weight.shape
        ctx.has_bias = bias is not None
        ctx.save_for_backward(both, radius, used, on)
        return layer.product(both, used, bias), layer.product(radius, used.abs(), None)

    @staticmethod
    def backward(ctx: Any, g_both: Tensor, g_radius: Tensor) -> Any:
        both, radius, weight, on = ctx.saved_tensors
        g_bias = g_both.sum([i for i in range(g_both.dim()) if i != 1]) if ctx.has_bias else None
        # Channels that the next ReLU switches off for the whole batch send back exact zeros.
        out = None if ctx.layer.grouped else on_channels(g_both)
        if out is not None:
            out = _union(out, on_channels(g_radius), g_both.shape[1])
        used = weight
        if out is not None:
            g_both, g_radius, used = take(g_both, out), take(g_radius, out), weight.index_select(0, out)
        gx, gw = ctx.layer.backward(g_both, both, used, ctx.needs_input_grad[0])
        gr, ga = ctx.layer.backward(g_radius, radius, used.abs(), ctx.needs_input_grad[1])
        gw = torch.addcmul(gw, ga, used.sign())
        return (
            _spread(gx, on, ctx.shape[1]),
            _spread(gr, on, ctx.shape[1]),
            _weight_gradient(gw, out, on, ctx.shape),
            g_bias,
            None,
            None,
        )


def _union(a: Tensor, b: Tensor | None, channels: int) -> Tensor | None:
    if b is None:
        return None
    mask = torch.zeros(channels, dtype=torch.bool, device=a.device)
    mask[a] = True
    mask[b] = True
    on = mask.nonzero().squeeze(1)
    return on if on.numel() < PAYS_BELOW * channels else None


def _spread(value: Tensor | None, on: Tensor | None, channels: int) -> Tensor | None:
    """Put the channels that were on back among zeros."""
    if value is None or on is None:
        return value
    rows = _rows(value)
    return rows.new_zeros((*rows.shape[:-1], channels)).index_copy_(rows.dim() - 1, on, rows).movedim(-1, 1)


def _weight_gradient(gw: Tensor, out: Tensor | None, on: Tensor | None, shape: torch.Size) -> Tensor:
    if on is not None:
        gw = gw.new_zeros((gw.shape[0], *shape[1:])).index_copy_(1, on, gw)
    if out is not None:
        gw = gw.new_zeros(shape).index_copy_(0, out, gw)
    return gw


class _ReLU(torch.autograd.Function):
    """ReLU of (both, radius) in one pass; the masks are recovered from the outputs."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        batch = radius.shape[0]
        center = both[-batch:]
        lower = (center - radius).relu_()
        upper = (center + radius).relu_()
        out = torch.empty_like(both)
        if both.shape[0] > batch:
            torch.clamp_min(both[:batch], 0, out=out[:batch])
        torch.add(lower, upper, out=out[-batch:]).mul_(0.5)
        ctx.save_for_backward(out, lower, upper)
        return out, (upper - lower).mul_(0.5)

    @staticmethod
    def backward(ctx: Any, g_both: Tensor, g_radius: Tensor) -> Any:
        out, lower, upper = ctx.saved_tensors
        batch = lower.shape[0]
        if out.dim() == 4 and out.is_contiguous(memory_format=torch.channels_last):
            g_both, g_radius = channels_last(g_both), channels_last(g_radius)
        g_center = g_both[-batch:]
        g_lower = torch.ops.aten.threshold_backward(g_center - g_radius, lower, 0).mul_(0.5)
        g_upper = torch.ops.aten.threshold_backward(g_center + g_radius, upper, 0).mul_(0.5)
        result = torch.empty_like(g_both)
        if g_both.shape[0] > batch:
            result[:batch] = torch.ops.aten.threshold_backward(g_both[:batch], out[:batch], 0)
        result[-batch:] = g_lower
        result[-batch:] += g_upper
        return result, g_upper.sub_(g_lower)


def weighted(
    both: Tensor, radius: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer, after_relu: bool
) -> tuple[Tensor, Tensor]:
    """One weighted layer on the stacked batch: both (B or 2B, ...), radius (B, ...)."""
    result: tuple[Tensor, Tensor] = _apply(_Weighted, both, radius, weight, bias, layer, after_relu)
    return result


def relu(both: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU on the stacked batch."""
    result: tuple[Tensor, Tensor] = _apply(_ReLU, both, radius)
    return result


def _apply(function: Any, *args: Any) -> Any:
    """``function.apply``, which PyTorch leaves untyped."""
    return function.apply(*args)


def layer_of(op: str, rest: tuple[Any, ...]) -> Layer | None:
    """The fast form of a weighted operator with the arguments after (x, weight, bias), if there is one."""
    if op == "aten.linear.default":
        return linear_layer()
    for rank in (1, 2, 3):
        if op == f"aten.conv{rank}d.default":
            return conv_layer(rank, *rest)
    return None


#: Operators that treat each example by itself, whatever the size of the batch, and keep zeros zeros; as functions
#: that accept any memory layout.
ROWWISE: dict[str, Callable[..., Tensor]] = {
    "aten.view.default": torch.reshape,
    "aten.reshape.default": torch.reshape,
    "aten.flatten.using_ints": torch.flatten,
    "aten.clone.default": torch.clone,
    "aten.pad.default": F.pad,
    "aten.constant_pad_nd.default": torch.constant_pad_nd,
}
RELU = ("aten.relu.default",)
