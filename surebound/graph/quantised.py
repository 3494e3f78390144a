"""PyTorch's quantised programs, written as roundings, sums and cuts while tracing.

What torch.ao and torchao convert a network to (``convert_pt2e``, ``_convert_to_reference_decomposed_fx``) is float
operators between calls that quantise and dequantise. Whole numbers are held as float32 numbers, as those of ONNX files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Decomposition = Callable[..., Any]
About = Callable[[Tensor, Tensor, float], Tensor]

#: x times the rounded 1 / s, or x / s: which of the two an execution computes.
_ROUNDINGS = 4.0


def quantised(about: About) -> dict[Any, Decomposition]:
    """Return the decompositions of the calls that are registered: torch.ao and torchao bring their own with them."""

    def rounded(x: Tensor, scale: float | Tensor, zero: int | Tensor, least: float, most: float) -> Tensor:
        """Return round(x / s) + z, cut to the type's ends, as float32 numbers."""
        share = x * (1.0 / scale)
        number = torch.round(about(share, share, _ROUNDINGS))
        number = torch.round(number + zero)  # whole again: what follows may jump
        return number.clamp(least, most)

    def quantize(x: Tensor, scale: Any, zero: Any, least: int, most: int, dtype: torch.dtype) -> Any:
        return NotImplemented if dtype.is_floating_point else rounded(x, scale, zero, least, most)

    def dequantize(
        x: Tensor, scale: Any, zero: Any, least: int, most: int, dtype: torch.dtype, *, out_dtype: Any = None
    ) -> Any:
        if dtype.is_floating_point or out_dtype not in (None, torch.float32):
            return NotImplemented
        return (x.to(torch.float32) - zero) * scale

    def quantize_channels(
        x: Tensor, scales: Tensor, zeros: Tensor, axis: int, least: int, most: int, dtype: torch.dtype
    ) -> Any:
        return quantize(x, _along(scales, x, axis), _along(zeros, x, axis), least, most, dtype)

    def dequantize_channels(
        x: Tensor, scales: Tensor, zeros: Tensor | None, axis: int, least: int, most: int, dtype: torch.dtype,
        *, out_dtype: Any = None,
    ) -> Any:  # fmt: skip
        shift = 0 if zeros is None else _along(zeros, x, axis)
        return dequantize(x, _along(scales, x, axis), shift, least, most, dtype, out_dtype=out_dtype)

    def fake(x: Tensor, scale: Any, zero: Any, least: int, most: int) -> Tensor:
        made: Tensor = (rounded(x, scale, zero, least, most) - zero) * scale
        return made

    def fake_channels(x: Tensor, scales: Tensor, zeros: Tensor, axis: int, least: int, most: int) -> Tensor:
        return fake(x, _along(scales, x, axis), _along(zeros, x, axis), least, most)

    named: dict[str, Decomposition] = {
        "aten.fake_quantize_per_tensor_affine.default": fake,
        "aten.fake_quantize_per_tensor_affine.tensor_qparams": fake,
        "aten.fake_quantize_per_channel_affine.default": fake_channels,
        "quantized_decomposed.quantize_per_tensor.default": quantize,
        "quantized_decomposed.quantize_per_tensor.tensor": quantize,
        "quantized_decomposed.dequantize_per_tensor.default": dequantize,
        "quantized_decomposed.dequantize_per_tensor.tensor": dequantize,
        "quantized_decomposed.quantize_per_channel.default": quantize_channels,
        "quantized_decomposed.dequantize_per_channel.default": dequantize_channels,
    }
    found = {_operator(name): made for name, made in named.items()}
    return {operator: made for operator, made in found.items() if operator is not None}


def _operator(name: str) -> Any:
    """Return an operator by its name, None if this version of PyTorch, or what is imported, has none of it."""
    place, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, place), packet, None), overload, None)


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return numbers (n,), one for each entry of an axis of x, as they broadcast."""
    return values.reshape(-1, *([1] * (x.dim() - axis % x.dim() - 1)))
