"""Elementwise passes of bounds and of the training step: compiled where possible, elsewhere in PyTorch, same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.kernels import fallback
from surebound.kernels.build import library
from surebound.kernels.memory import keep_memory

__all__ = [
    "add_signed",
    "channels_outermost",
    "columns_on",
    "fold",
    "keep_memory",
    "library",
    "relu",
    "relu_backward",
    "relu_of_bounds",
]

#: From so many numbers on a pass over bounds is compiled.
WORTH = 1 << 15


def columns_on(
    both: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None, limit: int
) -> Tensor | None:
    """See ``fallback.columns_on``; the compiled one stops reading as soon as the limit is passed."""
    kernels = library() if _plain(both, radius, scale, shift) else None
    if kernels is None:
        return fallback.columns_on(both, radius, scale, shift, limit)
    rows, columns = radius.shape
    on = radius.new_empty(columns, dtype=torch.bool)
    clean, center = _parts(both, rows)
    found = kernels.surebound_scan(
        clean,
        center,
        radius.data_ptr(),
        _at(scale),
        _at(shift),
        rows,
        columns,
        limit,
        on.data_ptr(),
        _threads(),
    )
    return on if found >= 0 else None


def relu(
    both: Tensor,
    radius: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    on: Tensor | None = None,
    *,
    owned: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``fallback.relu``; ``owned`` arguments may be overwritten."""
    kernels = library() if _plain(both, radius, scale, shift) else None
    if kernels is None:
        return fallback.relu(both, radius, scale, shift, on)
    rows, columns = radius.shape
    n = columns if on is None else on.shape[0]
    if owned and on is None and scale is None:
        out, out_radius = both, radius
    else:
        out, out_radius = both.new_empty(both.shape[0], n), radius.new_empty(rows, n)
    mask = radius.new_empty(rows, n, dtype=torch.uint8)
    clean, center = _parts(both, rows)
    out_clean, out_center = _parts(out, rows)
    kernels.surebound_relu(
        clean, center, radius.data_ptr(), _at(scale), _at(shift), _at(on), rows, columns, n,
        out_clean, out_center, out_radius.data_ptr(), mask.data_ptr(), _threads(),
    )  # fmt: skip
    return out, out_radius, mask


def relu_backward(
    g_both: Tensor, g_radius: Tensor, mask: Tensor, to: Tensor | None = None, columns: int = 0
) -> tuple[Tensor, Tensor]:
    """See ``fallback.relu_backward``."""
    kernels = library() if _plain(g_both, g_radius) else None
    if kernels is None:
        return fallback.relu_backward(g_both, g_radius, mask, to, columns)
    rows, n = g_radius.shape
    columns = n if to is None else columns
    out, out_radius = g_both.new_empty(g_both.shape[0], columns), g_radius.new_empty(rows, columns)
    clean, center = _parts(g_both, rows)
    out_clean, out_center = _parts(out, rows)
    kernels.surebound_relu_backward(
        clean, center, g_radius.data_ptr(), mask.data_ptr(), _at(to), rows, n, columns,
        out_clean, out_center, out_radius.data_ptr(), _threads(),
    )  # fmt: skip
    return out, out_radius


def relu_of_bounds(center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """See ``fallback.relu_of_bounds``; compiled for pairs that lie in memory without gaps and in the same order.

    Few numbers are not worth looking for a compiler.
    """
    worth = center.numel() >= WORTH and center.stride() == radius.stride()
    kernels = library() if worth and _dense(center, radius) else None
    if kernels is None:
        return fallback.relu_of_bounds(center, radius)
    kernels.surebound_relu_of_bounds(center.data_ptr(), radius.data_ptr(), center.numel(), _threads())
    return center, radius


def channels_outermost(x: Tensor) -> Tensor:
    """Images (B, C, H, W) that lie with a pixel's channels side by side, in the usual order; anything else as it is."""
    innermost = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    if not innermost or x.numel() < WORTH or (x.requires_grad and torch.is_grad_enabled()):
        return x
    kernels = library() if _dense(x) else None
    if kernels is None:
        return x
    images, channels, height, width = x.shape
    out = x.new_empty(x.shape)
    kernels.surebound_channels_outermost(
        x.data_ptr(), images, height * width, channels, out.data_ptr(), _threads()
    )
    return out


def add_signed(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """See ``fallback.add_signed``; compiled where the three lie in memory without gaps and in the same order."""
    alike = a.stride() == b.stride() == w.stride()
    kernels = library() if alike and _dense(a, b, w) else None
    if kernels is None:
        return fallback.add_signed(a, b, w)
    kernels.surebound_add_signed(a.data_ptr(), b.data_ptr(), w.data_ptr(), a.numel(), _threads())
    return a


def fold(windows: Tensor, size: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int]) -> Tensor:
    """See ``fallback.fold``."""
    kernels = library() if _plain(windows) else None
    if kernels is None:
        return fallback.fold(windows, size, stride, pad)
    out = windows.new_empty(windows.shape[0], *size, windows.shape[-1])
    kernels.surebound_fold(
        windows.data_ptr(), *windows.shape, *size, *stride, *pad, out.data_ptr(), _threads()
    )  # fmt: skip
    return out


def _plain(*values: Tensor | None) -> bool:
    """Can the kernels read these: float32, contiguous, in main memory?"""
    return all(
        v is None or (v.dtype == torch.float32 and v.device.type == "cpu" and v.is_contiguous())
        for v in values
    )


def _dense(*values: Tensor) -> bool:
    """float32 in main memory without gaps, whatever the order of the axes."""
    return all(
        v.dtype == torch.float32
        and v.device.type == "cpu"
        and (v.is_contiguous() or v.is_contiguous(memory_format=torch.channels_last))
        for v in values
    )


def _parts(both: Tensor, rows: int) -> tuple[int | None, int]:
    """Addresses of the clean rows, if there are any, and of the centres."""
    start = both.data_ptr()
    stacked = both.shape[0] > rows
    return (start if stacked else None), start + stacked * rows * both.shape[1] * both.element_size()


def _at(value: Tensor | None) -> int | None:
    return None if value is None else value.data_ptr()


def _threads() -> int:
    return torch.get_num_threads()
