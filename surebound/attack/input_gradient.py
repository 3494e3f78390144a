"""Gradients with respect to the input alone, and quickly through a first convolution.

A convolution of few channels has small windows: its gradient is one small product per example and a sum of windows, two
to three times as fast as the library's kernel, which is made for many channels. A step of an attack on the paper's
small network spends a quarter of its time there. Where values need not be the same bits, convolutions are the compiled
ones of training, with channels innermost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from surebound.kernels.products import Conv, by_windows
from surebound.rules.adjoint_gradient import windowed
from surebound.rules.layouts import channels_last, conv_layer

Pair = tuple[int, int]


class InputGradients(TorchFunctionMode):
    """Inside, convolutions are differentiable in their input only (with ``same_bits``: those with small windows).

    same_bits: values are those of the network outside; without, up to rounding, and faster on some processors.

    >>> layer, x = torch.nn.Conv2d(1, 4, 3), torch.rand(2, 1, 5, 5).requires_grad_()
    >>> with InputGradients():
    ...     value = layer(x).sum()
    >>> torch.autograd.grad(value, x)[0].shape
    torch.Size([2, 1, 5, 5])
    """

    def __init__(self, same_bits: bool = True) -> None:
        super().__init__()
        self.same_bits = same_bits

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.conv2d and torch.is_grad_enabled():
            return _convolution(self.same_bits, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _convolution(
    same_bits: bool,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if not isinstance(padding, str) and input.dim() == 4 and input.requires_grad:
        conv = Conv(_pair(stride), _pair(padding), _pair(dilation), groups)
        fixed, result = None if bias is None else bias.detach(), None
        if not same_bits and conv.ungrouped and conv.pad == (0, 0):
            result = _Rounded.apply(input, weight.detach(), fixed, conv.stride)  # type: ignore[no-untyped-call]
        elif windowed(weight, conv) and input.is_cpu:
            result = _Convolution.apply(input, weight.detach(), fixed, conv)  # type: ignore[no-untyped-call]
        if isinstance(result, Tensor):
            return result
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, conv: Conv) -> Tensor:
        ctx.save_for_backward(w)
        ctx.size, ctx.conv = x.shape[2:], conv
        return torch.conv2d(x, w, b, conv.stride, conv.pad)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return by_windows(g, ctx.size, w, ctx.conv), None, None, None


class _Rounded(torch.autograd.Function):
    """A convolution without padding as training's fast column has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, stride: Pair) -> Tensor:
        x, w = channels_last(x), channels_last(w)
        ctx.layer = conv_layer(2, stride)
        ctx.save_for_backward(x, w)
        value: Tensor = ctx.layer.product(x, w, b)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return ctx.layer.input_gradient(channels_last(g), x, w), None, None, None


def _pair(value: Any) -> Pair:
    sizes = (value, value) if isinstance(value, int) else tuple(int(v) for v in value)
    return (sizes[0], sizes[-1])
